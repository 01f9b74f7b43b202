"""The plan of a profile: which models to look at, and how."""

from __future__ import annotations

from dataclasses import dataclass

from tangentlens.errors import InputError
from tangentlens.geometry.massive import THRESHOLD, check_threshold
from tangentlens.models.load import check_device

NAME = "profile"


@dataclass(frozen=True)
class Profile:
    """What to look at.

    Attributes:
        models: Directories, hub ids or `id@revision`.
        text: A text file; the built-in text by default.
        sites: Where to look.
        batches: How many batches of token vectors.
        batch_tokens: Token vectors in a batch.
        length: Tokens that the model sees at once.
        skip_first: How many positions at the beginning of each window to leave out.
        bos: Whether every window begins with the begin-of-sequence token, also if the tokenizer adds none.
        massive: How many times as long as the median row a row must be to count as massive.
        seed: Seed of the windows and of the vectors drawn from them.
        device: Where to compute.
        dtype: The format of the weights.
        trust_remote_code: Whether to run code that a model's repository contains.
    """

    models: tuple[str, ...]
    text: str | None = None
    sites: str | tuple[str, ...] = "resid"
    batches: int = 5
    batch_tokens: int = 4096
    length: int = 128
    skip_first: int = 0
    bos: bool = False
    massive: float = THRESHOLD
    seed: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    trust_remote_code: bool = False

    def __post_init__(self) -> None:
        least = {"batches": 2, "batch_tokens": 64, "length": 2, "skip_first": 0}
        for name, smallest in least.items():
            if getattr(self, name) < smallest:
                raise InputError(f"{name} must be at least {smallest}, but is {getattr(self, name)}")
        if self.dtype not in ("float32", "bfloat16", "float16"):
            raise InputError(f"dtype must be float32, bfloat16 or float16, but is {self.dtype!r}")
        check_threshold(self.massive, "massive")
        check_device(self.device)
