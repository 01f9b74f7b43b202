"""A program of a user, for type checkers: it uses every public name and asserts the type of what comes back.

It is checked and never run, so that its models and texts need not exist.
"""

from typing import Any, assert_type

import numpy as np
import polars as pl
from torch import Tensor, nn

import tangentlens as tl
from tangentlens.report.result import Result


def training(model: nn.Module, loss: Tensor) -> None:
    """A training with the lens and a penalty."""
    alarm = tl.Alarm("anisotropy", above=0.9)
    with tl.Lens(model, sites="resid", rank=4, every=tl.log_steps(100), run="runs/x", alarms=[alarm]) as lens:
        with tl.Penalty(model, tl.regularisers.spectral, strength=0.3) as penalty:
            assert_type(penalty(), Tensor)
        lens.step(loss)
        assert_type(lens, tl.Lens)
        assert_type(lens.due(), bool)
        assert_type(lens.run, tl.Run)
        assert_type(lens.scalars, dict[str, float])
        assert_type(lens.state_dict(), dict[str, Tensor])
    assert_type(tl.log_steps(100), list[int])


def reading() -> None:
    """A run and what it holds."""
    run = tl.open_run("runs/x")
    assert_type(run, tl.Run)
    assert_type(run.records, pl.DataFrame)
    assert_type(run.concepts("resid.0"), pl.DataFrame)
    assert_type(run.manifest, dict[str, Any])
    tl.show(run)


def measuring(rows: Tensor, labels: Tensor, sequences: Tensor) -> None:
    """The measures of rows."""
    for measure in (tl.effective_rank, tl.entropy_rank, tl.participation_ratio, tl.stable_rank):
        assert_type(measure(rows), float)
    for simple in (tl.alpha_req, tl.anisotropy, tl.isoscore, tl.mean_cosine, tl.partition_isotropy, tl.rankme):
        assert_type(simple(rows), float)
    assert_type(tl.anisotropy(rows, center=False), float)
    assert_type(tl.rogue_dimensions(rows), Tensor)
    assert_type(tl.Moments.of(rows), tl.Moments)
    assert_type(tl.Moments(8).update(rows).covariance(), Tensor)
    dimension = tl.intrinsic_dimension(rows, method="gride")
    assert_type(dimension, tl.IntrinsicDimension)
    assert_type(dimension.value, float)
    assert_type(dimension.trouble, str)
    assert_type(tl.manifold_entropy(rows), tl.ManifoldEntropy)
    assert_type(tl.local_anisotropy(rows), tl.LocalAnisotropy)
    assert_type(tl.massive_rows(rows), tl.MassiveRows)
    assert_type(tl.massive_rows(rows).mask, Tensor)
    probe = tl.linear_probe(rows, labels, sequences)
    assert_type(probe, tl.LinearProbe)
    assert_type(probe.skill, tl.Interval)
    shape = tl.local_geometry(tl.manifolds.sphere(500, dimension=2, dim=8).rows)
    assert_type(shape, tl.LocalGeometry)
    assert_type(shape.visible_curvature, tl.Interval)
    assert_type(shape.normal_space(0), tl.Subspace)


def testing(rows: Tensor, gradients: Tensor, sequences: Tensor) -> None:
    """Proxies against gradients and against movement."""
    proxy = tl.SemiNMF(4).fit(rows).subspace()
    assert_type(proxy, tl.Subspace)
    assert_type(proxy.rank, int)
    assert_type(tl.share(gradients, proxy), float)
    expected = tl.chance(gradients, rank=4)
    assert_type(expected, tl.Chance)
    assert_type(expected.p_value(0.5), float)
    test = tl.tangent_test(rows, gradients, sequences, rank=4)
    assert_type(test, tl.TangentTest)
    assert_type(test.share(), tl.Interval)
    assert_type(test.log_ratio("pca").exp().value, float)
    assert_type(test.table, pl.DataFrame)
    assert_type(test.verdict(), str)
    active = tl.active_concepts(rows, gradients, sequences)
    assert_type(active, tl.ActiveConcepts)
    assert_type(active.advantage(), tl.Interval)
    moved = tl.movement(rows, rows + gradients, sequences)
    assert_type(moved, tl.Movement)
    assert_type(moved.growth(), tl.Interval)
    checked = tl.audit(rows, gradients, sequences)
    assert_type(checked, tl.Audit)
    assert_type(checked.says, str)
    assert_type(tl.holm([0.01, 0.2]), np.ndarray[tuple[Any, ...], np.dtype[Any]])
    assert_type(tl.benjamini_hochberg([0.01, 0.2]), np.ndarray[tuple[Any, ...], np.dtype[Any]])


def frequencies(tokens: Tensor) -> None:
    """Token frequencies."""
    counts = tl.TokenCounts.of([tokens], vocabulary=300)
    assert_type(counts, tl.TokenCounts)
    assert_type(counts.bins(), tl.FrequencyBins)
    assert_type(counts.loss_weights(0.5), Tensor)
    assert_type(tl.Relabelling.of(counts, 0.5).apply(tokens, seed=0), Tensor)


def whole_models(model: nn.Module) -> None:
    """The commands as functions."""
    for result in (tl.profile(model, "text"), tl.model_test(model), tl.model_audit("path"), tl.sweep("path")):
        assert_type(result, Result)
        assert_type(result.table, pl.DataFrame)
        assert_type(result.findings, list[str])
        assert_type(result.run, tl.Run)
        result.show()
    try:
        tl.profile("nowhere")
    except tl.InputError as error:
        assert_type(error, tl.InputError)
