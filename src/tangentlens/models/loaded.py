"""A model that was loaded, with its tokenizer: how text goes into it, and what a run is told of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor, nn

from tangentlens.errors import InputError
from tangentlens.lazy import cached_property
from tangentlens.models.small import Kind


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model in evaluation mode, with its tokenizer.

    Attributes:
        name: The name of the model: that of its directory, or its hub id.
        revision: The revision on the hub; empty if none was given.
        kind: Whether it is a `decoder` or an `encoder`.
        model: The model.
        tokenizer: Its tokenizer.
        width: The width of its residual stream.
        longest: The largest number of tokens that it takes at once, special tokens included.
        not_loaded: Names of the weights that the checkpoint lacks, which are random.
        begin: Token ids before every text, in addition to those that the tokenizer puts there.
        commit: The commit on the hub that the revision was when it was loaded; empty if that is not known.
    """

    name: str
    revision: str
    kind: Kind
    model: nn.Module
    tokenizer: Any
    width: int
    longest: int
    not_loaded: Collection[str]
    begin: tuple[int, ...] = ()
    commit: str = ""

    def encode(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        ids = list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
        # Which embedding of a module that is not of Hugging Face is that of its tokens cannot be known.
        if hasattr(self.model, "get_input_embeddings") and max(ids, default=-1) >= self.vocabulary:
            raise InputError(
                f"token ids of {self.name} must be below {self.vocabulary}, the number of its embeddings, but the text "
                f"has {max(ids)}; use the tokenizer that the model was trained with, or other ids"
            )
        return ids

    @property
    def vocabulary(self) -> int:
        """The number of token types for which the model has an embedding."""
        model: Any = self.model
        return int(model.get_input_embeddings().num_embeddings)

    @property
    def config(self) -> Any:
        """The configuration of the model."""
        return self.model.config

    @property
    def device(self) -> torch.device:
        """Where its input goes: the device of its embeddings."""
        model: Any = self.model
        if not hasattr(model, "get_input_embeddings"):
            return next(model.parameters()).device
        embedding = model.get_input_embeddings()
        # A weight that accelerate keeps elsewhere is nowhere until it is needed.
        if embedding.weight.is_meta:
            return torch.device(embedding._hf_hook.execution_device)
        return embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The format of its weights."""
        return next(self.model.parameters()).dtype

    @property
    def where(self) -> str:
        """The device as people read it; all of them if the model is spread over several."""
        spread = getattr(self.model, "hf_device_map", {"": self.device}).values()
        # accelerate numbers accelerators, and calls what is not in memory disk.
        names = (one if isinstance(one, str) else str(torch.device(one)) for one in spread)
        return " and ".join(dict.fromkeys(names))

    @property
    def facts(self) -> dict[str, str]:
        """What a run is told of the model."""
        return {"kind": self.kind, "device": self.where, "dtype": str(self.dtype).removeprefix("torch.")}

    @property
    def mask_id(self) -> int:
        """The id of the mask token; -1 for a decoder without one."""
        mask_id = self.tokenizer.mask_token_id
        if mask_id is None and self.kind == "encoder":
            raise InputError(
                f"{self.name} must have a mask token for a masked loss, but its tokenizer has none; pass text with a "
                "tokenizer that has one"
            )
        return -1 if mask_id is None else int(mask_id)

    @cached_property
    def special_ids(self) -> set[int]:
        """The ids of all special tokens: those with a role, such as padding, and those added without one."""
        added = {place for place, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        return added | set(self.tokenizer.all_special_ids)

    def token_name(self, token: int) -> str:
        """Return the text of a token in quotes."""
        return repr(self.tokenizer.decode([token]))

    def is_text(self, tokens: Int[Tensor, "..."]) -> Bool[Tensor, "..."]:
        """Return a mask that is true for tokens that are not special; it has the shape of `tokens`."""
        return ~torch.isin(tokens, torch.tensor(sorted(self.special_ids), dtype=torch.int64))

    def text_length(self, wanted: int, skip_first: int = 0) -> int:
        """Return how many tokens of text to put into a window.

        Args:
            wanted: The number to return, unless the model takes fewer besides its special tokens.
            skip_first: How many positions at the beginning of the window are left out; some must remain.
        """
        room = self.longest - sum(map(len, self.specials))
        if room < 2:
            raise InputError(
                f"{self.name} must take at least 2 tokens besides its special tokens, but takes {self.longest} in all"
            )
        length = min(wanted, room)
        if skip_first >= len(self.specials[0]) + length:
            raise InputError(f"skip_first must leave tokens in windows of {length}, but is {skip_first}; choose less")
        return length

    def framed(self, windows: Int[Tensor, "w length"]) -> Int[Tensor, "w whole"]:
        """Return windows `(w, length)` of text with the special tokens that the tokenizer puts before and after."""
        before, after = (torch.tensor(ids, dtype=torch.int64).expand(len(windows), -1) for ids in self.specials)
        return torch.cat([before, windows, after], dim=1)

    def beside_specials(self, values: Shaped[Tensor, "w length"], at_specials: int) -> Shaped[Tensor, "w whole"]:
        """Return values for the tokens of `framed` windows, given those for the tokens of the text.

        Args:
            values: A value for each token of text, `(w, length)`.
            at_specials: The value at special tokens.
        """
        before, after = map(len, self.specials)
        return nn.functional.pad(values, (before, after), value=at_specials)

    @cached_property
    def specials(self) -> tuple[list[int], list[int]]:
        """The special tokens that the tokenizer puts before and after a text."""
        ids, bare = list(self.tokenizer("a")["input_ids"]), self.encode("a")
        before = next((i for i in range(len(ids)) if ids[i : i + len(bare)] == bare), 0)
        return [*self.begin, *ids[:before]], ids[before + len(bare) :]

    def beginning_with_bos(self) -> LoadedModel:
        """Return the same model with the begin-of-sequence token before every text, if the tokenizer adds none."""
        bos = self.tokenizer.bos_token_id
        if bos is None:
            raise InputError(
                f"{self.name} must have a begin-of-sequence token if bos is asked for, but its tokenizer has none"
            )
        return self if bos in self.specials[0] else replace(self, begin=(int(bos),))
