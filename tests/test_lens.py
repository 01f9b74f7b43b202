import polars as pl
import pytest
import torch

from tangentlens import InputError, Lens, open_run
from tangentlens.lens import log_steps
from tiny import tiny_batch, tiny_model


def train(model, steps=5, lens=None, batches=tiny_batch):
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        loss = model(**batches(step)).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if lens is not None:
            lens.step(loss)
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("kind", ["decoder", "encoder"])
def test_training_is_bit_for_bit_the_same_with_and_without_it(kind, tmp_path):
    alone, watched = tiny_model(kind), tiny_model(kind)
    torch.manual_seed(3)
    expected = train(alone)
    after = torch.random.get_rng_state()
    torch.manual_seed(3)
    with Lens(watched, rank=4, every=1, run=tmp_path / "run", counts=torch.ones(64, dtype=torch.long)) as lens:
        assert train(watched, lens=lens) == expected
    assert torch.equal(torch.random.get_rng_state(), after)
    for (name, a), (_, b) in zip(alone.state_dict().items(), watched.state_dict().items(), strict=True):
        assert torch.equal(a, b), name


def test_only_due_steps_are_measured_and_carry_hooks(tmp_path):
    model = tiny_model()
    with Lens(model, rank=4, every=[1, 3], run=tmp_path / "run") as lens:
        assert not model.model.layers[0]._forward_hooks
        train(model, steps=1, lens=lens)
        assert model.model.layers[0]._forward_hooks
        train(model, steps=4, lens=lens)
    assert not model.model.layers[0]._forward_hooks
    assert not model._forward_pre_hooks
    assert open_run(tmp_path / "run").records["step"].unique().sort().to_list() == [1, 3]


def test_a_multiple_is_due_and_log_steps_hold_both_ends(tmp_path):
    lens = Lens(tiny_model(), every=3, run=tmp_path / "run")
    lens.current = 6
    assert lens.due()
    lens.current = 7
    assert not lens.due()
    assert log_steps(5) == [0, 1, 2, 4, 5]
    assert log_steps(4) == [0, 1, 2, 4]
    assert log_steps(0) == [0]


def test_records_say_what_was_measured_where_and_over_what(tmp_path):
    model = tiny_model()
    counts = torch.arange(64)
    with Lens(model, rank=4, every=2, run=tmp_path / "run", counts=counts, name="m", seed=5) as lens:
        losses = train(model, steps=3, lens=lens)
    records = open_run(tmp_path / "run").records
    assert records["model"].unique().to_list() == ["m"]
    assert records["seed"].unique().to_list() == [5]
    assert records.filter(metric="loss").sort("step")["value"].to_list() == pytest.approx([losses[0], losses[2]])
    assert records.filter(step=2)["tokens_seen"].unique().to_list() == [3 * 8 * 12]
    assert records["site"].unique().sort().to_list() == ["", "mean", "resid.0", "resid.1", "resid.2"]
    shares = records.filter(metric="share", site="resid.1", step=0)
    assert set(shares["variant"]) == {"semi_nmf", "pca", "random", "normal"}
    assert set(shares["order"]) == {1.0, 2.0}
    assert {"all", "input.0", "input.3", "target.0", "target.3"} <= set(shares["freq_bin"])
    with_interval = records.filter(pl.col("ci_low").is_not_null())
    assert with_interval["ci_over"].is_not_null().all()
    assert set(with_interval.filter(metric="intrinsic_dimension")["ci_over"]) == {"tokens"}


def test_the_fitted_subspaces_are_kept(tmp_path):
    model = tiny_model()
    with Lens(model, rank=4, every=1, run=tmp_path / "run") as lens:
        train(model, steps=1, lens=lens)
    tensors, _ = open_run(tmp_path / "run").load_tensors("model-step-00000000")
    basis = tensors["resid.1/semi_nmf"]
    torch.testing.assert_close(basis.T @ basis, torch.eye(basis.shape[1]))


def test_a_step_that_is_not_finite_is_recorded_and_training_goes_on(tmp_path):
    model = tiny_model()
    with Lens(model, "resid.1", rank=4, every=1, run=tmp_path / "run") as lens:
        train(model, steps=1, lens=lens)
        with torch.no_grad():
            kept = model.model.layers[0].mlp.down_proj.weight.clone()
            model.model.layers[0].mlp.down_proj.weight.fill_(float("nan"))
        loss = model(**tiny_batch()).loss
        loss.backward()
        with pytest.warns(UserWarning, match=r"resid.1 was not measured at step 1: every value must be finite"):
            lens.step(loss)
        model.zero_grad()
        with torch.no_grad():
            model.model.layers[0].mlp.down_proj.weight.copy_(kept)
        train(model, steps=1, lens=lens)
    records = open_run(tmp_path / "run").records
    unmeasured = records.filter(metric="unmeasured").row(0, named=True)
    assert unmeasured["step"] == 1
    assert "every value must be finite, but 96 of 96 rows hold NaN or Inf" in unmeasured["variant"]
    assert records.filter(metric="loss", step=1)["value"].is_nan().all()
    assert records.filter(metric="share", step=2).height > 0


def test_too_small_a_step_is_recorded_and_training_goes_on(tmp_path):
    model = tiny_model()
    with (
        Lens(model, "resid.1", rank=4, every=1, run=tmp_path / "run") as lens,
        pytest.warns(UserWarning, match="at least 4 sequences are needed"),
    ):
        train(model, steps=1, lens=lens, batches=lambda step: tiny_batch(batch=2))


def test_a_step_without_backward_is_an_error(tmp_path):
    model = tiny_model()
    with Lens(model, rank=4, every=1, run=tmp_path / "run") as lens, torch.no_grad():
        model(**tiny_batch())
        with pytest.raises(InputError, match="no gradient came through it"):
            lens.step()


def test_measuring_the_same_step_again_replaces_it(tmp_path):
    for _ in range(2):
        model = tiny_model()
        with Lens(model, rank=4, every=1, run=tmp_path / "run") as lens:
            train(model, steps=2, lens=lens)
    records = open_run(tmp_path / "run").records
    assert not records.drop("run").is_duplicated().any()


def test_a_lens_with_other_settings_does_not_mix_into_the_run(tmp_path):
    Lens(tiny_model(), rank=4, run=tmp_path / "run")
    with pytest.raises(InputError, match="rank was 4 and is now 8"):
        Lens(tiny_model(), rank=8, run=tmp_path / "run")


def test_settings_that_can_never_work_are_errors(tmp_path):
    model = tiny_model()
    with pytest.raises(InputError, match="every must be at least 1"):
        Lens(model, every=0, run=tmp_path / "run")
    with Lens(model, rank=32, every=1, run=tmp_path / "wide") as lens:
        model(**tiny_batch()).loss.backward()
        with pytest.raises(InputError, match=r"rank must be below the width of .*resid.0.*, but is 32"):
            lens.step()


def test_the_mean_site_is_the_mean_of_the_sites(tmp_path):
    model = tiny_model()
    with Lens(model, rank=4, every=1, run=tmp_path / "run", counts=torch.arange(64)) as lens:
        train(model, steps=1, lens=lens)
    records = open_run(tmp_path / "run").records.filter(pl.col("site") != "")
    for metric, key in (("share", ["variant", "order", "freq_bin"]), ("anisotropy", ["quantity"])):
        rows = records.filter(metric=metric).filter(pl.col("variant") != "uncentred")
        sites = rows.filter(pl.col("site") != "mean").group_by(key).agg(pl.col("value").mean().alias("expected"))
        means = rows.filter(site="mean").join(sites, on=key)
        assert means.height == sites.height
        assert means["value"].to_list() == pytest.approx(means["expected"].to_list())
