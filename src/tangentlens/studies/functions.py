"""The commands as functions: profile, tangent test and audit of a model in hand or named; sweeps of checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import nn

from tangentlens.capture.untouched import untouched
from tangentlens.corpora.windows import Text
from tangentlens.engine import Machines
from tangentlens.errors import InputError, check_name
from tangentlens.models.live import TokenIds, as_text, live_model
from tangentlens.report.result import Result
from tangentlens.runs.files import Place
from tangentlens.runs.progress import Watch, unwatched
from tangentlens.runs.run import Run, open_run
from tangentlens.studies import JOBS, SECTIONS
from tangentlens.studies.audit import AuditPlan
from tangentlens.studies.in_hand import InHand
from tangentlens.studies.profile import Profile
from tangentlens.studies.sweep import SweepPlan
from tangentlens.studies.tangent import TestPlan


def profile(
    model: nn.Module | str | Path,
    text: Any = None,
    *,
    tokenizer: Any = None,
    name: str = "",
    out: str | Place | None = None,
    watch: Watch = unwatched,
    **settings: Any,
) -> Result:
    """Measure a model layer by layer, as `tangentlens profile` does.

    A model in hand is run in evaluation mode, without gradients, and is afterwards as it was.

    Args:
        model: A module; or a directory, a hub id or `id@revision`.
        text: The text, a path to a UTF-8 file, or token ids; by default the built-in text.
        tokenizer: The tokenizer of a module, if the text is not token ids; or the name of another one for a model that
            is named.
        name: What to call a module in the records.
        out: The run directory, or a URL such as `s3://bucket/run`; an unfinished run is continued.
        watch: Told the progress.
        settings: Further settings, as `tangentlens.studies.profile.Profile` has them.
    """
    given = _Given.of(model, text, tokenizer, name)
    plan = _planned(Profile, settings, models=(given.spec,), text=given.text_name, **given.settings)
    return _made("profile", plan, given, out, watch)


def model_test(
    model: nn.Module | str | Path,
    text: Any = None,
    *,
    tokenizer: Any = None,
    name: str = "",
    out: str | Place | None = None,
    watch: Watch = unwatched,
    **settings: Any,
) -> Result:
    """Test how much of a model's gradients lies in the proxy, as `tangentlens test` does; `tangent_test` takes rows.

    Args:
        model: A language model that returns its loss if it is called with `labels`; or a directory, a hub id or
            `id@revision`.
        text: The text, a path to a UTF-8 file, or token ids; by default the built-in text.
        tokenizer: The tokenizer of a module, if the text is not token ids; or the name of another one for a model that
            is named.
        name: What to call a module in the records.
        out: The run directory, or a URL such as `s3://bucket/run`; an unfinished run is continued.
        watch: Told the progress.
        settings: Further settings, as `tangentlens.studies.tangent.TestPlan` has them.
    """
    given = _Given.of(model, text, tokenizer, name)
    plan = _planned(TestPlan, settings, model=given.spec, text=given.text_name, **given.settings)
    return _made("test", plan, given, out, watch)


def model_audit(
    model: nn.Module | str | Path,
    text: Any = None,
    *,
    tokenizer: Any = None,
    name: str = "",
    out: str | Place | None = None,
    watch: Watch = unwatched,
    **settings: Any,
) -> Result:
    """Check whether the proxy of a model is really tangent, as `tangentlens audit` does; `audit` takes rows.

    Args:
        model: A language model that returns its loss if it is called with `labels`; or a directory, a hub id,
            `id@revision`, or a run of `demo`.
        text: The text, a path to a UTF-8 file, or token ids; by default the built-in text.
        tokenizer: The tokenizer of a module, if the text is not token ids; or the name of another one for a model that
            is named.
        name: What to call a module in the records.
        out: The run directory, or a URL such as `s3://bucket/run`; an unfinished run is continued.
        watch: Told the progress.
        settings: Further settings, as `tangentlens.studies.audit.AuditPlan` has them.
    """
    given = _Given.of(model, text, tokenizer, name)
    plan = _planned(AuditPlan, settings, target=given.spec, text=given.text_name, **given.settings)
    return _made("audit", plan, given, out, watch)


def sweep(
    *models: str | Path,
    text: str | Path | None = None,
    out: str | Place | None = None,
    watch: Watch = unwatched,
    machines: Machines | None = None,
    **settings: Any,
) -> Result:
    """Measure many checkpoints of models on the same text, as `tangentlens sweep` does.

    Args:
        models: Hub ids, whose `revisions` are looked at; folders of checkpoints; or directories with a checkpoint each.
        text: A path to a UTF-8 file; by default the built-in text.
        out: The run directory, or a URL such as `s3://bucket/run`; an unfinished sweep is continued.
        watch: Told the progress.
        machines: Where to do it, such as `Machines(OnRay("auto"))`; by default in this process.
        settings: Further settings, as `tangentlens.studies.sweep.SweepPlan` has them.
    """
    own = {"models": tuple(map(str, models)), "text": None if text is None else str(text)}
    plan = _planned(SweepPlan, settings, **own)
    return Result(JOBS["sweep"].run(plan, out, watch, machines), SECTIONS)


def show(run: Run | str | Place) -> None:
    """Show the key figures, the main figure and the findings of a run.

    In a notebook they appear below the cell. Elsewhere, the report is written into the run's directory, opened in a
    browser if there is one, and its place is printed.

    Args:
        run: A run, its directory, or its URL.
    """
    Result(run if isinstance(run, Run) else open_run(run), SECTIONS).show()


@dataclass(frozen=True, eq=False)
class _Given:
    """What a caller gave, as a plan has it.

    Attributes:
        spec: The name of the model, or where it is.
        text_name: The path of the text, or a name for a text in hand.
        settings: What else the plan must say.
        in_hand: The model and the text themselves, where they are in hand.
    """

    spec: str
    text_name: str | None
    settings: dict[str, Any]
    in_hand: InHand

    @classmethod
    def of(cls, model: Any, text: Any, tokenizer: Any, name: str) -> _Given:
        """Return what a caller gave, or raise if it does not go together."""
        is_ids = text is not None and not isinstance(text, str | Path)
        if isinstance(model, nn.Module):
            if tokenizer is None and not is_ids:
                raise InputError(
                    "a module must come with its tokenizer to read text, but none was given; pass tokenizer=, or token "
                    "ids as the text"
                )
            if not (is_ids or callable(tokenizer)):
                raise InputError(
                    f"the tokenizer of a module must be a tokenizer, but is {tokenizer!r}; load it, as with "
                    "transformers.AutoTokenizer.from_pretrained"
                )
            tokenizer, settings = TokenIds() if is_ids else tokenizer, {}
            live = live_model(model, tokenizer, name or type(model).__name__)
        elif is_ids:
            raise InputError("token ids as text need a module, but the model is named; pass text, or load the model")
        else:
            live, settings = None, {} if tokenizer is None else {"tokenizer": str(tokenizer)}
        words = as_text(text) if is_ids else text if isinstance(text, str) else None
        label = str(text) if isinstance(text, Path) else "token ids" if is_ids else "text" if words else None
        held = None if words is None else Text(content=words.encode())
        return cls(str(model) if live is None else live.name, label, settings, InHand(live, held))


def _planned(plan: type[Any], settings: Mapping[str, Any], **own: Any) -> Any:
    """Return a plan from what the function says itself and the caller's further settings."""
    known = [field.name for field in fields(plan) if field.name not in own]
    for name in settings:
        check_name("a setting", name, known)
    return plan(**own, **settings)


def _made(job: str, plan: Any, given: _Given, out: str | Place | None, watch: Watch) -> Result:
    """Make the run of a plan, and return what a report says about it."""
    live = given.in_hand.model
    with nullcontext() if live is None else _as_it_was(live.model):
        run = JOBS[job].run(plan, out, watch, given.in_hand)
    return Result(run, SECTIONS)


@contextmanager
def _as_it_was(model: nn.Module) -> Iterator[None]:
    """A context in which a model may be run and have gradients, and after which it has those from before."""
    before = [(weight, weight.grad) for weight in model.parameters()]
    for weight, _ in before:
        weight.grad = None
    try:
        with untouched(model), torch.enable_grad():
            yield
    finally:
        for weight, grad in before:
            weight.grad = grad
