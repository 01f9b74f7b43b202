"""Models from a hub or a directory, with their tokenizers. Remote code is run only if that is asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int, Shaped
from torch import Tensor, nn

from tangentlens.errors import InputError
from tangentlens.models.small import Kind


class LoadError(InputError):
    """The error for a model that cannot be loaded.

    Attributes:
        reason: Why it cannot, in the words of what failed.
    """

    def __init__(self, spec: str, reason: str) -> None:
        super().__init__(
            "MODEL must be a directory or a hub id (id@revision) of a text model that transformers can load, with "
            f"tokenizer and safetensors weights, but {spec!r} is not: {reason}"
        )
        self.reason = reason


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
        return list(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])

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
    def mask_id(self) -> int:
        """The id of the mask token; -1 for a decoder without one."""
        mask_id = self.tokenizer.mask_token_id
        if mask_id is None and self.kind == "encoder":
            raise InputError(f"{self.name} must have a mask token for a masked loss, but its tokenizer has none")
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
            raise InputError(f"{self.name} must have a begin-of-sequence token for --bos, but its tokenizer has none")
        return self if bos in self.specials[0] else replace(self, begin=(int(bos),))


def load_model(
    spec: str, device: str = "cpu", dtype: torch.dtype = torch.float32, trust_remote_code: bool = False
) -> LoadedModel:
    """Return a model without its head; of an encoder-decoder, the encoder alone.

    Args:
        spec: A directory, a hub id, or `id@revision`. Weights must be in safetensors files.
        device: Where to put the model.
        dtype: The precision of its weights.
        trust_remote_code: Whether to run code from the hub.
    """
    return _attempt(spec, device, lambda source, revision: _load(spec, source, revision, dtype, trust_remote_code))


def check_model(spec: str, trust_remote_code: bool = False) -> None:
    """Raise if a model's configuration cannot be had: a look at little data, before anything is measured.

    Args:
        spec: A directory, a hub id, or `id@revision`.
        trust_remote_code: Whether to run code from the hub.
    """
    from transformers import AutoConfig

    source, revision = _parse(spec)
    with _quiet(), _explained(spec):
        AutoConfig.from_pretrained(source, **_options(source, revision, trust_remote_code))


def load_language_model(spec: str, device: str = "cpu", trust_remote_code: bool = False) -> LoadedModel:
    """Return a model with its causal or masked language modelling head, in fp32.

    If the checkpoint has no such head, `not_loaded` names its weights, which are random.

    Args:
        spec: A directory, a hub id, or `id@revision`. Weights must be in safetensors files.
        device: Where to put the model.
        trust_remote_code: Whether to run code from the hub.
    """
    return _attempt(spec, device, lambda source, revision: _load_with_head(spec, source, revision, trust_remote_code))


def check_device(device: str) -> None:
    """Raise an error if PyTorch cannot compute on a device."""
    try:
        torch.ones(1, device=device) + 1
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise InputError(
            f"device must be one that PyTorch can compute on here, but {device!r} is not: {error}"
        ) from error


def _attempt(spec: str, device: str, load: Callable[[str, str], LoadedModel]) -> LoadedModel:
    """Return a loaded model on a device, in evaluation mode; any failure of the loader becomes an `InputError`."""
    check_device(device)
    source, revision = _parse(spec)
    with _quiet(), _explained(spec):
        loaded = load(source, revision)
        loaded.model.to(device).eval()
    return replace(loaded, commit=_commit(source, revision))


def _commit(source: str, revision: str) -> str:
    """Return the commit that a revision on the hub was when it was downloaded; empty for a directory."""
    from huggingface_hub import try_to_load_from_cache

    found = (
        None if Path(source).is_dir() else try_to_load_from_cache(source, "config.json", revision=revision or "main")
    )
    # The hub's cache has a folder for each commit.
    return Path(found).parent.name if isinstance(found, str) else ""


@contextmanager
def _explained(spec: str) -> Iterator[None]:
    """Make a `LoadError` of any failure to load a model."""
    try:
        yield
    except InputError:
        raise
    # For a broken or unusual repository, transformers may raise any exception.
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise LoadError(spec, reason[:300]) from error


def _options(source: str, revision: str, trust_remote_code: bool) -> dict[str, Any]:
    """Return what every loader of transformers is told. Without the hub, only what was downloaded before is tried."""
    cached = not Path(source).is_dir() and not hub_answers()
    return {"revision": revision or "main", "trust_remote_code": trust_remote_code, "local_files_only": cached}


@cache
def hub_answers() -> bool:
    """Return whether the hub can be reached; it is asked once, because each file would be tried several times."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=10)
    # What is raised depends on the version of the hub's client, and on what is in the way.
    except Exception:
        return False
    return True


def _load_with_head(spec: str, source: str, revision: str, trust_remote_code: bool) -> LoadedModel:
    """Return a model with its language modelling head, which may be missing from the checkpoint."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoTokenizer

    options = _options(source, revision, trust_remote_code)
    config = AutoConfig.from_pretrained(source, **options)
    if getattr(config, "is_encoder_decoder", False):
        raise InputError(f"{source} must be an encoder or a decoder to be audited, but is both")
    kind = _kind(config.get_text_config())
    family = AutoModelForCausalLM if kind == "decoder" else AutoModelForMaskedLM
    model, info = family.from_pretrained(
        source, dtype=torch.float32, use_safetensors=True, output_loading_info=True, **options
    )
    body = f"{model.base_model_prefix}."
    _check_missing(source, [key for key in info["missing_keys"] if key.startswith(body) and "pooler" not in key])
    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    _check_tokenizer(source, model, tokenizer)
    longest = _longest(model.base_model, tokenizer)
    width = model.config.get_text_config().hidden_size
    head = sorted(key for key in info["missing_keys"] if not key.startswith(body))
    return LoadedModel(model_name(spec), revision, kind, model, tokenizer, width, longest, head)


def _load(spec: str, source: str, revision: str, dtype: torch.dtype, trust_remote_code: bool) -> LoadedModel:
    """Return a model without its head."""
    from transformers import AutoModel, AutoTokenizer

    options = _options(source, revision, trust_remote_code)
    tokenizer = AutoTokenizer.from_pretrained(source, **options)
    model, info = AutoModel.from_pretrained(
        source, dtype=dtype, use_safetensors=True, output_loading_info=True, **options
    )
    # No site depends on a pooler, and masked or causal checkpoints have none.
    _check_missing(source, sorted(key for key in info["missing_keys"] if "pooler" not in key))
    _check_tokenizer(source, model, tokenizer)
    config = model.config.get_text_config()
    kind, looked_at = _kind(config), model
    if getattr(model.config, "is_encoder_decoder", False):
        kind, looked_at = "encoder", model.get_encoder()
    longest = _longest(model, tokenizer)
    return LoadedModel(
        model_name(spec), revision, kind, looked_at, tokenizer, config.hidden_size, longest, info["missing_keys"]
    )


def _check_missing(source: str, missing: list[str]) -> None:
    """Raise an error if weights are missing from a checkpoint."""
    if missing:
        raise InputError(
            f"{source} must hold all weights of its model, but {len(missing)} are missing, such as {missing[0]}; they "
            "would be random"
        )


def _check_tokenizer(source: str, model: Any, tokenizer: Any) -> None:
    """Raise an error if the tokenizer has tokens for which the model has no embedding."""
    known = model.get_input_embeddings().num_embeddings
    if len(tokenizer) > known:
        raise InputError(
            f"{source} must have a token embedding for every token, but its tokenizer has {len(tokenizer)} tokens and "
            f"the model {known}; the two do not belong together"
        )


def _longest(model: Any, tokenizer: Any) -> int:
    """Return the largest number of tokens that a model takes at once, special tokens included."""
    limits = [getattr(model.config.get_text_config(), "max_position_embeddings", None), tokenizer.model_max_length]
    longest = min((limit for limit in limits if limit is not None and limit > 0), default=2**31)
    # RoBERTa and related models number positions from after the padding index.
    positions = getattr(getattr(model, "embeddings", None), "position_embeddings", None)
    offset = getattr(positions, "padding_idx", None)
    if offset is not None and positions is not None:
        longest = min(longest, positions.num_embeddings - offset - 1)
    return int(longest)


def model_name(spec: str) -> str:
    """Return the name of a model: that of its directory, or its hub id as given."""
    return Path(spec).absolute().name if Path(spec).is_dir() else spec


def _parse(spec: str) -> tuple[str, str]:
    """Return the directory or hub id to load from, and the revision; the latter is empty if none is given."""
    if Path(spec).is_dir():
        return spec, ""
    if spec.startswith((".", "/", "~")) or spec.count("/") > 1:
        raise InputError(f"MODEL must be a directory that exists or a hub id, but there is no directory {spec!r}")
    source, _, revision = spec.partition("@")
    return source, revision


def _kind(config: Any) -> Kind:
    """Return the kind of a model by the class it was trained as; without that, by the use of its model family."""
    from transformers.models.auto import modeling_auto as auto

    names = getattr(config, "architectures", None) or []
    if any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names) or getattr(config, "is_decoder", False):
        return "decoder"
    causal = config.model_type in auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return "decoder" if causal and config.model_type not in auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES else "encoder"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence progress bars and messages of transformers, and restore its settings afterwards."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
