"""The networks of a training run, as models whose gradients are looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import nn

from tangentlens.capture.device import Devices
from tangentlens.capture.sites import Site
from tangentlens.corpora.tokens import MASK
from tangentlens.errors import InputError
from tangentlens.geometry.subspace import Subspace
from tangentlens.lens.settings import check_rank
from tangentlens.models.device import find_device
from tangentlens.models.small import weight_hash
from tangentlens.proxies import DEFAULT
from tangentlens.runs.files import Place
from tangentlens.runs.progress import Watch
from tangentlens.runs.run import Run, create_run, is_run, open_run
from tangentlens.studies.in_hand import NOTHING, InHand
from tangentlens.studies.subjects import BATCH, Backward, Subject, model_subject
from tangentlens.studies.train import MADE_BY
from tangentlens.studies.train_plan import Network, TrainPlan
from tangentlens.training.loop import Recipe
from tangentlens.training.objectives import batch_for, draw


def networks_of(target: str) -> list[str]:
    """Return the names of the networks of a training run; none if it is a model."""
    if not is_run(target):
        return []
    return [network.name for network in TrainPlan.of(open_run(target).manifest["config"]).networks()]


def subjects_of(
    target: str, how: Backward, watch: Watch, in_hand: InHand = NOTHING, only: str | None = None
) -> Iterator[Subject]:
    """Yield the networks of a training run, one at a time, or the one model that `target` is.

    Args:
        target: A run that holds its networks, or a model: a directory, a hub id or `id@revision`.
        how: How gradients are made.
        watch: Told the progress of training a missing head.
        in_hand: The model and the text, where they need not be loaded.
        only: The name of the one network of a run to look at; by default all are looked at.
    """
    if in_hand.model is None and is_run(target):
        yield from _of_run(open_run(target), how, only)
    else:
        yield model_subject(target, how, watch, in_hand)


def begin(
    plan: Any,
    target: str,
    made_by: str,
    out: str | Place,
    watch: Watch,
    in_hand: InHand,
    find: Callable[[nn.Module], list[Site]],
    only: str | None = None,
) -> tuple[Run, Iterator[tuple[Subject, list[Site]]]]:
    """Return a run that is made or continued, and the models to look at, each with its sites.

    What cannot be looked at is told before there is a folder.

    Args:
        plan: The plan, which has a rank, a text, and all that `Backward` has.
        target: A run that holds its networks, or a model.
        made_by: The command that makes the run.
        out: The run directory.
        watch: Told the progress of training a missing head.
        in_hand: The model and the text, where they need not be loaded.
        find: Returns the sites of a model.
        only: The name of the one network of a run to look at; by default all are looked at.
    """
    subjects = subjects_of(target, Backward.of(plan), watch, in_hand, only)
    first = next(subjects)
    check_rank(plan.rank, {f"the stream of {first.name}": first.width})
    find(first.model)
    run = create_run(out, asdict(plan), made_by)
    if in_hand.model is not None or not is_run(target):
        run.claim_data(plan.text, in_hand.text_of(plan.text).identity)

    def claimed() -> Iterator[tuple[Subject, list[Site]]]:
        for subject in chain([first], subjects):
            run.claim_model(subject.name, {**subject.facts, "weights_sha256": weight_hash(subject.model)})
            yield subject, find(subject.model)

    return run, claimed()


def _of_run(run: Run, how: Backward, only: str | None = None) -> Iterator[Subject]:
    """Yield the networks of a finished training as its last checkpoints hold them, on held-out text if there is any."""
    if run.manifest["made_by"] not in MADE_BY:
        raise InputError(
            f"{run.path} must be a run that holds its model, as those of `tangentlens demo` do, but does not; name the "
            "model instead, or call tangentlens.audit on rows you captured"
        )
    plan = replace(TrainPlan.of(run.manifest["config"]), device=how.loading.device)
    device = find_device(plan.device)
    tokens = plan.tokens()
    if tokens.sha256 != run.manifest["data"]["sha256"]:
        raise InputError(f"{run.path} was made from another text than {plan.text} now holds; restore that text")
    seen, held_out = plan.split(tokens)
    text = held_out if len(held_out) else seen
    n = min(max(how.tokens // plan.length, 4), len(text))
    for network in (one for one in plan.networks() if only in (None, one.name)):
        model, checkpoint = plan.untrained(network, tokens.vocabulary), network.checkpoint(run)
        step, _ = checkpoint.position()
        if not step:
            raise InputError(
                f"{run.path} must hold a trained {network.name}, but it has not been trained yet; finish the run"
            )
        checkpoint.restore(model, Recipe(plan.steps, plan.learning_rate))
        sequences, make = draw(text, n, how.seed, plan.steps)
        batches = [
            {name: ids.to(device) for name, ids in batch_for(network.kind, some, MASK, plan.mask_rate, make).items()}
            for some in sequences.split(BATCH)
        ]
        yield Subject(
            name=network.name,
            kind=network.kind,
            model=model.eval(),
            width=plan.width,
            untrained=partial(_untrained, plan, network, tokens.vocabulary),
            batches=batches,
            exclude=(),
            skip_first=how.skip_first,
            counts=tokens.counts,
            text=tokens.text,
            step=step,
            earlier=_saved_proxies(run, network.name, plan.schedule(), Devices.of(model).measure),
            facts=_facts(run.manifest["models"][network.name], step, plan.steps) | {"device": str(device)},
        )


def _facts(known: Mapping[str, Any], step: int, steps: int) -> dict[str, Any]:
    """Return what is known of a network; one that is not trained to its end is no member of its family."""
    family = known.get("family")
    return {**known, "family": f"{family}, stopped at {step}"} if family and step < steps else dict(known)


def _untrained(plan: TrainPlan, network: Network, vocabulary: int) -> nn.Module:
    """Return a network as it was before training."""
    return plan.untrained(network, vocabulary).eval()


def _saved_proxies(
    run: Run, network: str, steps: Sequence[int], device: torch.device
) -> dict[str, dict[str, Subspace]]:
    """Return the proxies that the lens fitted at each step, by site, where rows are measured."""
    proxies: dict[str, dict[str, Subspace]] = {}
    for step in steps:
        kept = run.load_tensors(f"{network}-step-{step:08d}")
        for name, basis in kept[0].items() if kept else ():
            site, variant = name.rsplit("/", 1)
            if variant == DEFAULT:
                proxies.setdefault(site, {})[f"step {step}"] = Subspace(basis.to(device))
    return proxies
