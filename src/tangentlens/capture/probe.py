"""A probe: a fixed text whose activations show how far representations have moved between steps of a training."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tangentlens.capture.batch import Batch, read_batch, read_decoder_batch, unwrapped
from tangentlens.capture.device import device_of
from tangentlens.capture.forward import rows_of_call
from tangentlens.capture.sites import Site
from tangentlens.capture.untouched import untouched
from tangentlens.errors import InputError
from tangentlens.geometry.rows import as_numbers

# Tokens in a forward pass, unless a single sequence has more.
_TOKENS = 2048
# Sequences that a measurement needs: 2 to fit the proxy, 2 to test it.
_LEAST = 4
_IDS, _DECODER_IDS = "input_ids", "decoder_input_ids"


@dataclass(frozen=True, eq=False)
class ProbeText:
    """Token ids on which a model is run again and again.

    Attributes:
        inputs: The arguments of the model's call by name, one entry for each sequence.
        by_name: Whether the model is called with these names; if not, with token ids as its only argument.
        batches: What each position is, and whether it counts, by stack: '', 'encoder' and 'decoder'.
    """

    inputs: Mapping[str, Tensor]
    by_name: bool
    batches: Mapping[str, Batch]

    @classmethod
    def of(cls, probe: Any, model: nn.Module, exclude: Sequence[int] = (), skip_first: int = 0) -> ProbeText:
        """Return a probe that has been checked.

        Args:
            probe: Token ids (sequences, length), or a mapping of model inputs with `input_ids`.
            model: The model that will be run on it.
            exclude: Token ids that do not count.
            skip_first: How many positions at the beginning of each sequence do not count.
        """
        by_name = isinstance(probe, Mapping)
        if by_name and _IDS not in probe:
            raise InputError(f"a probe with names must have {_IDS}, but has {', '.join(map(str, probe))}; add them")
        named = dict(probe) if by_name else {_IDS: probe}
        inputs = {name: as_numbers(f"the probe's {name}", value).cpu() for name, value in named.items()}
        for name in (_IDS, _DECODER_IDS):
            if name in inputs:
                inputs[name] = _checked_ids(name, inputs[name], model)
        sequences = len(inputs[_IDS])
        for name, value in inputs.items():
            if value.ndim == 0 or len(value) != sequences:
                raise InputError(
                    f"the probe's {name} must have an entry for each of its {sequences} sequences, but has the shape "
                    f"{tuple(value.shape)}; pass what the model is called with"
                )
        batch = read_batch(inputs, exclude, None, skip_first)
        batches = dict.fromkeys(("", "encoder"), batch)
        if _DECODER_IDS in inputs:
            batches["decoder"] = read_decoder_batch(inputs[_DECODER_IDS], inputs, exclude, skip_first)
        for one in batches.values():
            _check_counted(one)
        return cls(inputs, by_name, batches)

    @property
    def sha256(self) -> str:
        """A hash of everything that the model is called with."""
        state = hashlib.sha256()
        for name, value in sorted(self.inputs.items()):
            numbers = value.double() if value.is_floating_point() else value.long()
            state.update(f"{name} {tuple(value.shape)} {numbers.dtype} ".encode())
            state.update(numbers.contiguous().numpy().tobytes())
        return state.hexdigest()

    def tokens(self, site: Site) -> Int[Tensor, "n"]:
        """Return the token id of each row of a site."""
        batch = self._batch(site)
        return batch.tokens[batch.keep]

    def sequences(self, site: Site) -> Int[Tensor, "n"]:
        """Return the number of the sequence of each row of a site."""
        batch = self._batch(site)
        return batch.sequences[batch.keep]

    def rows(self, model: nn.Module, sites: Sequence[Site]) -> dict[str, Float[Tensor, "n d"]]:
        """Run the model and return the rows of each site, by its name, in fp32 on the CPU.

        The training does not notice (`untouched`).
        """
        pieces: dict[str, list[Tensor]] = {site.name: [] for site in sites}

        def see(site: Site, rows: Tensor) -> None:
            pieces[site.name].append(rows.to(device="cpu", dtype=torch.float32, copy=True))

        inner, device = _without_data_parallel(model), device_of(model)
        with untouched(inner):
            for part in self._parts():
                call = {name: value[part].to(device) for name, value in self.inputs.items()}
                rows_of_call(partial(self._call, inner, call), sites, partial(self._carried, part, device), see)
        return {name: torch.cat(rows) for name, rows in pieces.items()}

    def _call(self, model: nn.Module, inputs: Mapping[str, Tensor]) -> None:
        """Run the model on a part of the probe."""
        try:
            model(**inputs) if self.by_name else model(inputs[_IDS])
        except InputError:
            raise
        except Exception as error:
            called = f"{', '.join(inputs)} by name" if self.by_name else "token ids as its only argument"
            raise InputError(
                f"the model must run on the probe, but called with {called} it raised {type(error).__name__}: {error}; "
                "pass a mapping of all inputs that it needs, and sequences no longer than it takes"
            ) from error

    def _batch(self, site: Site) -> Batch:
        if site.stack not in self.batches:
            raise InputError(
                f"a probe must have {_DECODER_IDS} if {site.name} is to be measured, but has "
                f"{', '.join(self.inputs)}; add them, or leave out the decoder's sites"
            )
        return self.batches[site.stack]

    def _carried(self, part: slice, device: torch.device, site: Site) -> tuple[Int[Tensor, "b l"], Bool[Tensor, "b l"]]:
        """Return the token ids that a site carries in a part of the probe, and which positions count."""
        batch = self._batch(site)
        return batch.tokens[part].to(device), batch.keep[part].to(device)

    def _parts(self) -> Iterator[slice]:
        """Yield the sequences of each forward pass."""
        sequences, length = self.inputs[_IDS].shape
        size = max(1, _TOKENS // length)
        return (slice(first, first + size) for first in range(0, sequences, size))


def _checked_ids(name: str, ids: Tensor, model: nn.Module) -> Tensor:
    """Return token ids as int64, or raise if they are not ids (sequences, length) of the model's vocabulary."""
    if ids.ndim != 2 or ids.is_floating_point() or ids.dtype == torch.bool or not ids.numel():
        raise InputError(
            f"a probe must be token ids (sequences, length), whole numbers, but its {name} came as "
            f"{tuple(ids.shape)} of {ids.dtype}; tokenize a text, and pad its sequences to one length with an "
            "attention_mask"
        )
    ids, vocabulary = ids.long(), _vocabulary(model)
    least, most = int(ids.min()), int(ids.max())
    if least < 0 or (vocabulary is not None and most >= vocabulary):
        below = "" if vocabulary is None else f" and below the vocabulary's size, {vocabulary}"
        raise InputError(
            f"a probe's token ids must be at least 0{below}, but its {name} are {least} to {most}; use the tokenizer "
            "of this model"
        )
    return ids


def _vocabulary(model: nn.Module) -> int | None:
    """Return the number of token types that a model knows; None if that is not known."""
    inner = unwrapped(model)
    named: Any = getattr(inner, "get_input_embeddings", None)
    try:
        embedding = None if named is None else named()
    except NotImplementedError:
        embedding = None
    # Without a name for it, an id that is beyond every embedding is surely beyond that of tokens.
    known = [embedding] if isinstance(embedding, nn.Embedding) else inner.modules()
    return max((one.num_embeddings for one in known if isinstance(one, nn.Embedding)), default=None)


def _check_counted(batch: Batch) -> None:
    """Raise if too few sequences have a token that counts."""
    counted = len(batch.sequences[batch.keep].unique())
    if counted < _LEAST:
        raise InputError(
            f"a probe must have at least {_LEAST} sequences with tokens that count, 2 to fit the proxy and 2 to test "
            f"it, but has {counted} of {int(batch.sequences.max()) + 1}; pass more sequences, or exclude and skip less"
        )


def _without_data_parallel(model: nn.Module) -> nn.Module:
    """Return the module inside of wrappers that hold whole replicas, whose own forward pass would exchange buffers."""
    if isinstance(model, nn.DataParallel | DistributedDataParallel):
        return _without_data_parallel(model.module)
    return model
