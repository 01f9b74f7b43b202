"""Finished models whose gradients are looked at: the text and the loss that give them, and nulls to compare with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from itertools import islice
from typing import Any, cast

import torch
from jaxtyping import Int
from torch import Tensor, nn

from tangentlens.alignment.rows import TokenRows
from tangentlens.capture.backward import gradients
from tangentlens.capture.batch import Objective
from tangentlens.capture.sites import Site, find_sites
from tangentlens.corpora.windows import Text, windows
from tangentlens.errors import InputError
from tangentlens.geometry.subspace import Subspace
from tangentlens.models.foreign import explained
from tangentlens.models.load import load_language_model
from tangentlens.models.loaded import LoadedModel
from tangentlens.models.loading import Loading
from tangentlens.models.small import Kind
from tangentlens.runs.progress import Progress, Watch
from tangentlens.studies.in_hand import NOTHING, InHand, not_run
from tangentlens.training.objectives import IGNORED, batch_for

# Sequences in a forward pass.
BATCH = 16
# Activations and gradients that are held at once, in bytes.
_HELD = 4 * 2**30


@dataclass(frozen=True)
class Backward:
    """How the gradients of a finished model are made.

    Attributes:
        text: A text file; the built-in text by default.
        tokens: How many tokens' gradients to look at.
        length: Tokens that the model sees at once.
        skip_first: How many positions at the beginning of each window to leave out.
        bos: Whether every window begins with the begin-of-sequence token, also if the tokenizer adds none.
        mask_rate: For a masked model, the share of tokens that it has to predict.
        fit_head: For a model without a head, the number of steps to train one; 0 refuses such a model.
        seed: Seed of everything that is drawn.
        nulls: Whether an untrained twin will be held beside the model.
        loading: How the model is loaded.
    """

    text: str | None
    tokens: int
    length: int
    skip_first: int
    bos: bool
    mask_rate: float
    fit_head: int
    seed: int
    nulls: bool
    loading: Loading

    @classmethod
    def of(cls, plan: Any) -> Backward:
        """Return the settings of a plan that has all of these; one that does not mention nulls has them."""
        names = [field.name for field in fields(cls) if field.name != "loading"]
        own: dict[str, Any] = {name: getattr(plan, name, True) for name in names}
        return cls(loading=Loading.of(plan), **own)


@dataclass(frozen=True, eq=False)
class Subject:
    """A model whose gradients are looked at.

    Attributes:
        name: Its name in the records.
        kind: Decoder or encoder, which decides its loss.
        model: The model.
        width: The width of its residual stream.
        untrained: Makes a model of the same architecture with fresh weights.
        batches: The batches that give both their gradients.
        exclude: Token ids to leave out.
        skip_first: How many positions at the beginning of each sequence to leave out.
        counts: Token counts, for frequency bins.
        step: The training step, if it is known.
        earlier: Proxies of earlier steps, by site and step.
        revision: The model's revision, if it has any.
        token_name: Returns what to call a token, given its id.
        text: Returns the text of token ids.
        facts: What a run is told of the model.
    """

    name: str
    kind: Kind
    model: nn.Module
    width: int
    untrained: Callable[[], nn.Module]
    batches: Sequence[Mapping[str, Tensor]]
    exclude: Sequence[int]
    skip_first: int
    counts: Int[Tensor, "vocabulary"]
    step: int = 0
    earlier: Mapping[str, Mapping[str, Subspace]] | None = None
    revision: str = ""
    token_name: Callable[[int], str] = str
    text: Callable[[list[int]], str] = str
    facts: Mapping[str, Any] = field(default_factory=dict)


def subject_rows(subject: Subject, which: str, sites: Sequence[Site], seed: int) -> tuple[dict[str, TokenRows], float]:
    """Return the rows of every site, and the mean loss, of the model or of one of its nulls.

    Args:
        subject: The model.
        which: One of `NULLS`; anything else is the model itself.
        sites: The sites.
        seed: Seed of shuffled labels.
    """
    model = subject.untrained() if which == "untrained" else subject.model
    batches = subject.batches
    if which == "shuffled labels":
        make = torch.Generator().manual_seed(seed)
        batches = [_with_shuffled_labels(batch, make) for batch in batches]
    # Sites are modules of one model, and the twin has its own under the same names.
    own = find_sites(model, [site.name for site in sites])
    objective: Objective = "causal" if subject.kind == "decoder" else "masked"
    return gradients(model, batches, own, objective, subject.exclude, subject.skip_first)


def rows_of_sites(
    subject: Subject, which: str, sites: Sequence[Site], seed: int
) -> Iterator[tuple[Site, TokenRows, float]]:
    """Yield each site with its rows and the mean loss; sites whose rows do not fit together have passes of their own.

    Args:
        subject: The model.
        which: One of `NULLS`; anything else is the model itself.
        sites: The sites.
        seed: Seed of shuffled labels.
    """
    at_once = max(_HELD // _site_bytes(subject), 1)
    for first in range(0, len(sites), at_once):
        some = sites[first : first + at_once]
        rows, loss = subject_rows(subject, which, some, seed)
        for site in some:
            yield site, rows.pop(site.name), loss


def held_bytes(subject: Subject, n_sites: int) -> int:
    """Return how many bytes of rows are held at once if so many sites are looked at."""
    return min(n_sites * _site_bytes(subject), max(_HELD, _site_bytes(subject)))


def _site_bytes(subject: Subject) -> int:
    """Return the bytes of the activations and gradients of a site."""
    return 2 * 4 * sum(batch["input_ids"].numel() for batch in subject.batches) * subject.width


def _with_shuffled_labels(batch: Mapping[str, Tensor], make: torch.Generator) -> dict[str, Tensor]:
    labels = batch["labels"].clone()
    given = labels != IGNORED
    mixed = torch.randperm(int(given.sum()), generator=make).to(labels.device)
    labels[given] = labels[given][mixed]
    return {**batch, "labels": labels}


def model_subject(spec: str, how: Backward, watch: Watch, in_hand: InHand = NOTHING) -> Subject:
    """Return a model from a hub or a directory, or one in hand, with batches of its text.

    Args:
        spec: A directory, a hub id or `id@revision`.
        how: How its gradients are made.
        watch: Told the progress of training a missing head.
        in_hand: The model and the text, where they need not be loaded.
    """
    with torch.random.fork_rng():
        # A head that is missing begins at random.
        torch.manual_seed(how.seed)
        loaded = in_hand.model or load_language_model(spec, how.loading, copies=2 if how.nulls else 1)
    if loaded.not_loaded and not how.fit_head:
        raise InputError(
            f"{spec} must hold its head for a language-model loss, but {len(loaded.not_loaded)} weights are "
            f"missing, such as {next(iter(loaded.not_loaded))}; fit_head=200 trains these alone before it is measured"
        )
    if how.bos:
        loaded = loaded.beginning_with_bos()

    def untrained() -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(how.seed)
            return type(loaded.model)(loaded.config).to(loaded.device, loaded.dtype).eval()

    text = in_hand.text_of(how.text)
    batches = _text_batches(how, loaded, text, first=0, n_tokens=how.tokens)
    if in_hand.model is not None:
        _check_loss(loaded, batches)
    if how.nulls and not hasattr(loaded.model, "config"):
        raise InputError(
            f"{spec} must have a `config` from which its class makes an untrained twin, but has none; keep what the "
            "model was made from as its `config`, or use tl.model_test without nulls, or tl.audit of captured rows"
        )
    if loaded.not_loaded:
        _fit_head(how, loaded, text, watch)
    # The loss of a masked model is where its masks are.
    exclude = sorted(loaded.special_ids - ({loaded.mask_id} if loaded.kind == "encoder" else set()))
    return Subject(
        name=loaded.name,
        kind=loaded.kind,
        model=loaded.model,
        width=loaded.width,
        untrained=untrained,
        batches=batches,
        exclude=exclude,
        skip_first=how.skip_first,
        counts=_counts(batches),
        revision=loaded.revision,
        token_name=loaded.token_name,
        text=loaded.tokenizer.decode,
        facts=loaded.facts,
    )


def _check_loss(loaded: LoadedModel, batches: Sequence[Mapping[str, Tensor]]) -> None:
    """Raise if a model does not return its loss; it is run on the sequence with the largest token id."""
    batch = max(batches, key=lambda batch: int(batch["input_ids"].max()))
    place = int(batch["input_ids"].amax(dim=1).argmax())
    one = {name: ids[place : place + 1] for name, ids in batch.items()}
    try:
        inspect.signature(loaded.model.forward).bind(**one)
    except TypeError:
        came = "cannot be called so"
    else:
        with explained(partial(not_run, loaded.name, one["input_ids"])), torch.no_grad():
            output = loaded.model(**one)
        loss = getattr(output, "loss", None)
        if isinstance(loss, Tensor) and loss.numel() == 1:
            return
        came = f"returns {type(output).__name__} without one"
    raise InputError(
        f"{loaded.name} must return an output with a `loss`, a number, if it is called with input_ids and labels, but "
        f"{came}; load a Hugging Face model with its head (AutoModelForCausalLM or AutoModelForMaskedLM), and wrap any "
        "other in a module whose forward(input_ids, labels) returns one"
    )


def _counts(batches: Sequence[Mapping[str, Tensor]]) -> Int[Tensor, "vocabulary"]:
    """Return how often each token occurs in the text, masked or not."""
    text = [batch["input_ids"].where(batch["labels"] == IGNORED, batch["labels"]) for batch in batches]
    return torch.cat([tokens.flatten().cpu() for tokens in text]).bincount()


def _text_batches(how: Backward, loaded: LoadedModel, text: Text, first: int, n_tokens: int) -> list[dict[str, Tensor]]:
    """Return batches of windows of the text from window `first` on, each between the tokenizer's special tokens."""
    length = loaded.text_length(how.length, how.skip_first)
    wanted = max(n_tokens // length, 4)
    source = windows(text, loaded.encode, length, how.seed)
    chosen = list(islice(source, first, first + wanted))
    if len(chosen) < 4:
        raise InputError(
            f"the text must give at least 4 windows of {length} tokens, but gives {len(chosen)}; use a longer text"
        )
    make = torch.Generator().manual_seed(how.seed + first)
    batches = []
    for some in torch.stack(chosen).split(BATCH):
        batch = batch_for(loaded.kind, some, loaded.mask_id, how.mask_rate, make)
        tokens, labels = loaded.framed(batch["input_ids"]), loaded.beside_specials(batch["labels"], IGNORED)
        batches.append({"input_ids": tokens.to(loaded.device), "labels": labels.to(loaded.device)})
    return batches


def _fit_head(how: Backward, loaded: LoadedModel, text: Text, watch: Watch) -> None:
    """Train only the weights that were missing, on windows of the text whose gradients are not looked at."""
    missing = [weight for name, weight in loaded.model.named_parameters() if name in loaded.not_loaded]
    for weight in loaded.model.parameters():
        weight.requires_grad_(False)
    for weight in missing:
        weight.requires_grad_(True)
    used = max(how.tokens // loaded.text_length(how.length), 4)
    batches = _text_batches(how, loaded, text, first=used, n_tokens=how.fit_head * BATCH * how.length)
    optimizer = torch.optim.AdamW(missing, lr=1e-3)
    for number in range(how.fit_head):
        loss = head_loss(loaded.model, loaded.kind, batches[number % len(batches)])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        watch(Progress(loaded.name, number + 1, how.fit_head, f"head, loss {loss.item():.2f}"))
    for weight in loaded.model.parameters():
        weight.requires_grad_(True)


def head_loss(model: Any, kind: Kind, batch: Mapping[str, Tensor]) -> Tensor:
    """Return the loss of a batch. The head of an encoder sees only positions with a label, which are few."""
    if kind == "decoder":
        return cast(Tensor, model(**batch).loss)
    labels = batch["labels"]
    given = labels != IGNORED

    def keep(_: nn.Module, __: Any, output: Any) -> Any:
        output["last_hidden_state"] = output["last_hidden_state"][given][None]
        return output

    with model.base_model.register_forward_hook(keep):
        return cast(Tensor, model(input_ids=batch["input_ids"], labels=labels[given][None]).loss)
