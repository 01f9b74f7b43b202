"""Training networks from scratch with the lens on: several kinds of them, several seeds of each, on one text."""

from __future__ import annotations

import warnings
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tangentlens.capture.sites import find_sites
from tangentlens.corpora.counts import TokenCounts
from tangentlens.corpora.tokens import MASK, TokenizedText, train_tokenizer
from tangentlens.errors import InputError
from tangentlens.lens.lens import Lens
from tangentlens.models.device import find_device
from tangentlens.models.keeping import keep_checkpoint, save_tokenizer
from tangentlens.models.small import weight_hash
from tangentlens.runs.files import Place
from tangentlens.runs.progress import Progress, Watch, unwatched
from tangentlens.runs.records import Record
from tangentlens.runs.run import Run, create_run
from tangentlens.runs.vocabulary import HELD_OUT, LOSS, null_name
from tangentlens.studies.held_out import EVALUATED, LOOKED_AT, held_out_batch, held_out_loss, look
from tangentlens.studies.job import Job
from tangentlens.studies.probes import probe_records, tasks
from tangentlens.studies.train_plan import Network, TrainPlan
from tangentlens.training.loop import Recipe, train
from tangentlens.training.objectives import batch_for, draw, draw_in_epochs
from tangentlens.training.penalty import Penalty
from tangentlens.training.tempering import Tempered, entropy, tempered

NAME = "train"
# What the manifests of such runs say; the first trainings were those of the demo.
MADE_BY = (NAME, "demo")
# Sequences of held-out text on which the movement of representations is measured.
PROBE = 64
# What is measured on held-out text beyond what a lens always measures.
LOOKED_FOR = ("visible_curvature", "manifold_entropy")


def run_train(plan: TrainPlan, out: str | Place, watch: Watch = unwatched, only: str | None = None) -> Run:
    """Train each network of the plan with the lens on, into the run directory `out`; continues if interrupted.

    Args:
        plan: The plan.
        out: The run directory.
        watch: Told the progress.
        only: The name of the one network to train; by default all are trained.
    """
    for network in plan.networks() if plan.keep else ():
        plan.kept(out, network)
    tokens = plan.tokens()
    sequences, held_out = plan.split(tokens)
    if len(sequences) < plan.batch:
        raise InputError(
            f"the text must give at least {plan.batch} sequences of {plan.length} tokens, but gives "
            f"{len(sequences)}; use a longer text"
        )
    if plan.probe and len(held_out) < PROBE:
        raise InputError(
            f"the held-out text must give at least {PROBE} sequences of {plan.length} tokens for a probe, but gives "
            f"{len(held_out)}; use a longer text"
        )
    text = _text(plan, tokens)
    for model in plan.models:
        find_sites(plan.untrained(Network("", model, 0), tokens.vocabulary), plan.sites)
    run = create_run(out, asdict(plan), NAME)
    facts = {"sha256": tokens.sha256, "sequences": len(tokens.sequences), "vocabulary": tokens.vocabulary}
    run.claim_data(plan.text, facts)
    TokenCounts(tokens.counts).save(run)
    if plan.keep:
        tokenizer = train_tokenizer(plan.whole_text(), plan.vocabulary)
        for network in plan.networks():
            save_tokenizer(tokenizer, plan.kept(run.path, network), plan.length)
    for network in plan.networks():
        if only in (None, network.name):
            _train_one(plan, network, tokens, text, run, watch)
    return run


def _train_one(
    plan: TrainPlan, network: Network, tokens: TokenizedText, text: Tempered, run: Run, watch: Watch
) -> None:
    checkpoint = network.checkpoint(run)
    step, tokens_seen = checkpoint.position()
    watch(Progress(network.name, step, plan.steps))
    known = run.manifest.get("models", {}).get(network.name, {})
    if step >= plan.steps and "weights_sha256" in known:
        return
    _, held_out = plan.split(tokens)
    model = plan.untrained(network, text.vocabulary)
    device = find_device(plan.device)
    facts = {
        "kind": network.model,
        "family": plan.family(network, tokens),
        "treatment": plan.treatment,
        "trained_seed": network.seed,
        "epoch": len(text.sequences) // plan.batch,
        "token_entropy": text.entropy,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "initial_weights_sha256": weight_hash(model),
        "device": str(device),
    }
    run.describe("models", {network.name: facts})
    settings: dict[str, Any] = {
        "sites": plan.sites,
        "rank": plan.rank,
        "every": plan.schedule(),
        "run": run,
        "counts": text.counts if plan.by_frequency else None,
        "seed": network.seed,
    }
    lens = Lens(
        model,
        **settings,
        name=network.name,
        measures=plan.measures,
        updates=plan.updates,
        predict=plan.predict,
        probe=text.read(held_out[:PROBE]) if plan.probe else None,
        concepts=tokens.text if plan.concepts else None,
        step=step,
        tokens_seen=tokens_seen,
    )

    def batch(number: int) -> dict[str, Tensor]:
        choose = draw_in_epochs if plan.in_epochs else draw
        chosen, generator = choose(text.sequences, plan.batch, network.seed, number)
        made = batch_for(network.kind, chosen, MASK, plan.mask_rate, generator)
        return {name: tensor.to(device) for name, tensor in made.items()}

    shown = held_out[:LOOKED_AT]
    read, asked = text.read(shown), tasks(shown, tokens.text, tokens.counts) if plan.look else {}

    def before_due(step: int) -> None:
        if plan.keep:
            keep_checkpoint(model, plan.kept(run.path, network), step)
        if plan.evaluate:
            loss = held_out_loss(model, network.kind, text, held_out[:EVALUATED], plan.mask_rate)
            here = Record(model=network.name, step=step, quantity=LOSS, metric=LOSS, detail=HELD_OUT)
            run.write(f"{network.name}-held-out-{step:08d}", [replace(here, variant="held_out", value=loss)])
        if plan.looks_at(step):
            copy = plan.untrained(network, text.vocabulary)
            copy.load_state_dict(model.state_dict())
            name, seen = null_name(network.name, HELD_OUT), lens.tokens_seen
            beside = Lens(copy, **settings, name=name, measures=LOOKED_FOR, step=step, tokens_seen=seen)
            look(beside, held_out_batch(copy, network.kind, read, plan.mask_rate))
            here = Record(model=name, step=step, tokens_seen=seen)
            run.write(f"{name}-probes-{step:08d}", probe_records(here, copy, plan.sites, read, asked))

    penalty = Penalty(model, plan.penalty, plan.strength) if plan.penalty else None

    with warnings.catch_warnings():
        # Steps that were measured after the last checkpoint are measured again, to the same numbers.
        warnings.filterwarnings("ignore", message="the training of .* continues at step")
        recipe = Recipe(plan.steps, plan.learning_rate)
        train(model, batch, recipe, lens, checkpoint, watch, before_due, penalty, text.weights)
    run.describe("models", {network.name: facts | {"weights_sha256": weight_hash(model)}})


def _text(plan: TrainPlan, tokens: TokenizedText) -> Tempered:
    """Return what the networks of a plan are trained on."""
    sequences, _ = plan.split(tokens)
    if plan.tempering:
        return tempered(plan.tempering, plan.alpha, sequences, tokens.vocabulary, plan.batch)
    return Tempered(sequences, tokens.counts, tokens.vocabulary, entropy(sequences.flatten().bincount()))


TRAIN = Job(
    NAME,
    TrainPlan,
    run_train,
    folder=lambda plan: Path("runs") / NAME,
    smaller="sites=resid:3 or rank=8",
    apart=lambda plan: [network.name for network in plan.networks()],
    make_one=lambda plan, out, name: run_train(plan, out, only=name),
)
