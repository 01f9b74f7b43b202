import math
import warnings
from contextlib import nullcontext
from functools import partial

import jaxtyping
import polars as pl
import pytest
import torch

import loops
from loops import n_hooks
from tangentlens import (
    Alarm,
    InputError,
    Lens,
    Subspace,
    anisotropy,
    intrinsic_dimension,
    open_run,
    share,
    tangent_test,
)
from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.capture.sites import find_sites
from tangentlens.capture.step import Capture
from tangentlens.lens.measures import WATCHED
from tangentlens.lens.schedule import log_steps
from tangentlens.runs.records import KEY
from tangentlens.runs.run import create_run
from tiny import tiny_batch, tiny_model

train = partial(loops.train, steps=5)


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
    hooked = []
    with Lens(model, rank=4, every=[2, 5], run=tmp_path / "run") as lens:
        for _ in range(7):
            hooked.append(len(model.model.layers[0]._forward_hooks))
            train(model, steps=1, lens=lens)
    # The first step is looked at for gradients, and the one before a due one for its activations.
    assert hooked == [1, 1, 1, 0, 1, 1, 0]
    assert not model.model.layers[0]._forward_hooks
    assert not model._forward_pre_hooks
    assert open_run(tmp_path / "run").records["step"].unique().sort().to_list() == [2, 5]


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
    assert set(shares["variant"]) == {"semi_nmf", *WATCHED}
    assert set(shares["order"]) == {1.0, 2.0}
    assert {"all", "input.0", "input.3", "target.0", "target.3"} <= set(shares["freq_bin"])
    for metric in ("rms_norm", "anisotropy"):
        binned = records.filter(pl.col("freq_bin") != "all", quantity="gradient", metric=metric, site="resid.1", step=0)
        assert set(binned["freq_bin"]) == set(shares["freq_bin"]) - {"all"}
        assert binned["ci_over"].to_list() == ["sequences"] * binned.height
        assert (binned["ci_low"] <= binned["value"]).all()
        assert binned["n"].sum() < 2 * 4 * 12, "the sequences that test the proxy"
    with_interval = records.filter(pl.col("ci_low").is_not_null())
    assert with_interval["ci_over"].is_not_null().all()
    assert set(with_interval.filter(metric="intrinsic_dimension")["ci_over"]) == {"tokens", "types"}


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
        with pytest.warns(UserWarning, match=r"step 1 was not measured at resid.1: every value must be finite"):
            lens.step(loss)
        model.zero_grad()
        with torch.no_grad():
            model.model.layers[0].mlp.down_proj.weight.copy_(kept)
        train(model, steps=1, lens=lens)
    records = open_run(tmp_path / "run").records
    unmeasured = records.filter(metric="unmeasured").row(0, named=True)
    assert unmeasured["step"] == 1
    assert "every value must be finite, but 96 of 96 rows hold NaN or Inf" in unmeasured["detail"]
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
        with pytest.raises(InputError, match=r"resid.0, resid.1, resid.2 must be in the loss, but no gradient came"):
            lens.step()


def test_a_second_training_from_step_0_is_not_mixed_into_the_first(tmp_path):
    model = tiny_model()
    with Lens(model, rank=4, every=1, run=tmp_path / "run") as lens:
        train(model, steps=1, lens=lens)
    with pytest.raises(InputError, match=r"must be empty for a training that starts at step 0.*pass step="):
        Lens(model, rank=4, every=1, run=tmp_path / "run")


def test_a_lens_with_other_settings_does_not_mix_into_the_run(tmp_path):
    model = tiny_model()
    with Lens(model, rank=4, every=1, run=tmp_path / "run") as lens:
        train(model, steps=1, lens=lens)
    for step in (0, 1):
        with pytest.raises(InputError, match="rank was 4 and is now 8"):
            Lens(model, rank=8, every=1, run=tmp_path / "run", step=step)


def test_settings_with_which_nothing_was_measured_may_be_mended_in_the_same_folder(tmp_path):
    model = tiny_model()
    with (
        pytest.raises(InputError, match="choose a rank of at most 16"),
        Lens(model, rank=20, every=1, run=tmp_path / "run") as lens,
    ):
        train(model, steps=1, lens=lens)
    with Lens(model, rank=4, every=1, run=tmp_path / "run") as lens:
        train(model, steps=1, lens=lens)
    assert lens.run.manifest["lenses"]["model"]["rank"] == 4
    assert set(lens.run.records["rank"].drop_nulls()) == {4}


def test_settings_that_can_never_work_are_errors(tmp_path):
    model = tiny_model()
    for every in (0, -1, [], [3, -5]):
        with pytest.raises(InputError, match="every must be a whole number of at least 1, a list of steps from 0 on"):
            Lens(model, every=every, run=tmp_path / "run")
    with pytest.raises(InputError, match="rank must be a whole number"):
        Lens(model, rank=0, run=tmp_path / "run")
    with pytest.raises(InputError, match=r"an alarm must be of one of tangent_share, .*, but is of 'anisotropie'"):
        Lens(model, alarms=[Alarm("anisotropie", above=1)], run=tmp_path / "run")
    with pytest.raises(InputError, match="log_sites must be among the sites that are measured, but 'embed' is not"):
        Lens(model, log_sites="embed", run=tmp_path / "run")
    with pytest.raises(InputError, match="step must be a whole number of at least 0, but is -1"):
        Lens(model, step=-1, run=tmp_path / "run")
    with pytest.raises(InputError, match="at least one site"):
        Lens(model, sites=[], run=tmp_path / "run")
    with pytest.raises(InputError, match=r"lens.step\(\) must be called inside `with Lens"):
        Lens(model, run=tmp_path / "run").step()
    with pytest.raises(InputError, match=r"lens.skip\(\) must be called inside `with Lens"):
        Lens(model, run=tmp_path / "run").skip("why")
    assert n_hooks(model) == 0
    with pytest.raises(InputError, match="an alarm must have a limit, but that of anisotropy has none"):
        Alarm("anisotropy")
    with pytest.raises(InputError, match=r"token counts must be a number of at least 0 .* some are negative"):
        Lens(model, counts=[-1, 2], run=tmp_path / "run")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        *(({"every": wrong}, "every") for wrong in (0.5, [1.5], "daily", True, None)),
        ({"exclude": 5}, "exclude"),
        ({"exclude": "pad"}, "exclude"),
        ({"counts": "x"}, "token counts"),
        ({"alarms": ["x"]}, "alarms"),
        ({"sites": None}, "sites"),
        ({"loss_scale": 2.0}, "loss_scale"),
        ({"objective": "casual"}, "objective"),
        ({"measure_on": "cuda"}, "measure_on"),
        ({"rank": 8.0}, "rank"),
        ({"model": "gpt2"}, "the model"),
    ],
)
def test_settings_of_the_wrong_type_are_errors_too(wrong, says, tmp_path, monkeypatch):
    # While tests run the types themselves are checked, which is not so for users.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(InputError, match=f"^{says} must be"):
        Lens(**{"model": tiny_model(), "run": tmp_path / "run", **wrong})


@pytest.mark.parametrize("every", [1, 100], ids=["due", "not due"])
def test_a_rank_too_large_for_a_site_is_an_error_in_the_first_step(every, tmp_path):
    model, says = tiny_model(), "at most half the width of every site, but is 17, and resid.1 is 32 wide; choose a rank"
    # The first step shows it, whether it is due or not.
    with Lens(model, "resid.1", rank=17, every=[every], run=tmp_path / "run") as lens:
        model(**tiny_batch()).loss.backward()
        with pytest.raises(InputError, match=says):
            lens.step()


def test_one_sequence_a_batch_leaves_out_shares_and_nothing_else(tmp_path):
    model = tiny_model()
    alarms = [Alarm("anisotropy", above=0.0), Alarm("tangent_share", above=0.0)]
    with (
        pytest.warns(UserWarning, match="no shares: |anisotropy is") as warned,
        Lens(model, rank=4, every=1, run=tmp_path / "run", alarms=alarms, predict=True, moments_every=1) as lens,
    ):
        train(model, steps=3, lens=lens, batches=lambda step: tiny_batch(step, batch=1))
    told = [str(one.message) for one in warned if "no shares" in str(one.message)]
    assert told == [
        "step 0 was not measured at resid.0, resid.1, resid.2: no shares: at least 4 sequences are needed, 2 to fit "
        "and 2 to test, but 1 came; pass more"
    ]
    records = lens.run.records
    assert records.filter(metric="unmeasured").select("step", "site", "quantity").rows() == [
        (step, f"resid.{site}", "gradient") for step in range(3) for site in range(3)
    ]
    found = set(records.filter(site="resid.1").select("step", "quantity", "metric").rows())
    wanted = [("activation", "anisotropy"), ("activation", "intrinsic_dimension"), ("activation", "massive_rows")]
    wanted += [("gradient", "anisotropy"), ("gradient", "rms_norm")]
    assert {(step, *one) for step in range(3) for one in wanted} <= found
    assert not {"share", "token_share"} & set(records["metric"])
    row = records.filter(step=1, site="resid.1", quantity="activation", metric="anisotropy").row(0, named=True)
    assert 0 < row["value"] < 1
    assert row["ci_low"] is None
    assert set(lens.scalars) >= {"anisotropy", "intrinsic_dimension", "gradient_norm", "alarm/anisotropy"}
    assert "tangent_share" not in lens.scalars
    assert (lens.scalars["alarm/anisotropy"], lens.scalars["alarm/tangent_share"]) == (1, 0)


def test_shares_come_back_with_the_sequences(tmp_path):
    model, alarms = tiny_model(), [Alarm("tangent_share", above=0.0)]
    sizes = iter((8, 1, 8))
    with Lens(model, "resid.1", rank=4, every=1, run=tmp_path / "run", alarms=alarms) as lens:
        for says in ("tangent_share is", "no shares: ", None):
            with nullcontext() if says is None else pytest.warns(UserWarning, match=says):
                train(model, steps=1, lens=lens, batches=lambda step: tiny_batch(step, batch=next(sizes)))
            assert lens.scalars["alarm/tangent_share"] == 1, "no measurement is no all-clear"
    assert sorted(lens.run.records.filter(metric="share")["step"].unique()) == [0, 2]


def test_a_site_that_was_frozen_after_steps_without_shares_does_not_end_the_training(tmp_path):
    model = tiny_model()
    with Lens(model, ["resid.0", "resid.2"], rank=4, every=1, run=tmp_path / "run") as lens:
        with pytest.warns(UserWarning, match=r"resid.0, resid.2: no shares: "):
            train(model, steps=1, lens=lens, batches=lambda step: tiny_batch(step, batch=1))
        model.model.embed_tokens.requires_grad_(False)
        train(model, steps=1, lens=lens, batches=lambda step: tiny_batch(step, batch=1))
    reasons = lens.run.records.filter(metric="unmeasured", step=1).sort("site")["detail"].to_list()
    assert [reason[:20] for reason in reasons] == ["no gradient came thr", "no shares: an interv"]


def test_forgetting_to_step_is_noticed(tmp_path):
    model = tiny_model()
    with (
        pytest.warns(UserWarning, match=r"3 backward passes came since the last lens.step\(\)"),
        Lens(model, rank=4, every=1, run=tmp_path / "run"),
    ):
        train(model, steps=3)


def freeze(model, n_blocks=0):
    """Freeze the embedding and the first blocks."""
    for part in (model.get_input_embeddings(), *model.model.layers[:n_blocks]):
        part.requires_grad_(False)


def test_sites_that_are_frozen_from_the_start_are_all_named(tmp_path):
    model = tiny_model()
    freeze(model, 1)
    says = r"^resid.0, resid.1 must be in the loss, but no gradient came through"
    with Lens(model, rank=4, every=1, run=tmp_path / "run") as lens, pytest.raises(InputError, match=says):
        train(model, steps=1, lens=lens)


def test_sites_that_are_frozen_in_the_middle_do_not_end_the_training(tmp_path):
    model = tiny_model()
    with Lens(model, rank=4, every=1, run=tmp_path / "run", updates="embed") as lens:
        train(model, steps=2, lens=lens)
        freeze(model, 1)
        with pytest.warns(UserWarning, match="not measured at resid") as told:
            train(model, steps=3, lens=lens)
    words = [str(one.message) for one in told if "resid" in str(one.message)]
    assert words == ["step 2 was not measured at resid.0, resid.1: no gradient came through it; is it frozen?"]
    missing = lens.run.records.filter(pl.col("metric") == "unmeasured", pl.col("site").str.starts_with("resid"))
    assert missing.select("step", "site").sort("step", "site").rows() == [
        (step, site) for step in (2, 3, 4) for site in ("resid.0", "resid.1")
    ]
    assert lens.run.records.filter(metric="share", site="resid.2")["step"].unique().sort().to_list() == [0, 1, 2, 3, 4]


def test_stepping_twice_is_noticed(tmp_path):
    model = tiny_model()
    with Lens(model, rank=4, every=2, run=tmp_path / "run") as lens:
        train(model, steps=1, lens=lens)
        with pytest.warns(UserWarning, match="although the model has not run since the last call"):
            lens.step()
        train(model, steps=2, lens=lens)


def test_a_lens_is_opened_and_closed_without_a_block(tmp_path):
    model = tiny_model()
    lens = Lens(model, rank=4, every=1, run=tmp_path / "plain").start()
    losses = train(model, steps=2, lens=lens)
    lens.close()
    assert n_hooks(model) == 0
    with pytest.raises(InputError, match="open the lens first"):
        lens.step()
    other = tiny_model()
    with Lens(other, rank=4, every=1, run=tmp_path / "block") as block:
        assert train(other, steps=2, lens=block) == losses
    assert lens.run.records.drop("run").equals(block.run.records.drop("run"))


def test_targets_of_a_model_of_ones_own_are_used_only_if_its_objective_is_known(tmp_path):
    class Own(type(tiny_model())):
        pass

    for name, objective in (("unknown", None), ("told", "causal")):
        model = tiny_model()
        model.__class__ = Own
        with Lens(
            model, "resid.1", rank=4, every=1, run=tmp_path / name, counts=torch.arange(64).numpy(), objective=objective
        ) as lens:
            train(model, steps=1, lens=lens)
        bins = open_run(tmp_path / name).records["freq_bin"].unique()
        assert ("target.3" in bins) == (objective == "causal")
        assert "input.3" in bins


def test_the_dimension_is_also_taken_with_one_row_per_token_type(tmp_path):
    model = tiny_model()
    with Lens(model, "resid.1", rank=4, every=1, run=tmp_path / "run") as lens:
        train(model, steps=1, lens=lens)
    row = (
        open_run(tmp_path / "run")
        .records.filter(metric="intrinsic_dimension", variant="one_per_type")
        .row(0, named=True)
    )
    assert row["n"] == len(tiny_batch(0)["input_ids"].unique())
    assert row["ci_over"] == "types"


def test_whether_a_dimension_is_to_be_trusted_is_a_record(tmp_path):
    model = tiny_model()
    with Lens(model, "resid.1", rank=4, every=1, run=tmp_path / "run") as lens:
        train(model, steps=1, lens=lens)
    records = open_run(tmp_path / "run").records.filter(site="resid.1")
    model = tiny_model()
    (rows,) = captured_steps(model, find_sites(model, "resid.1")[0], 1)
    tokens = rows.tokens.tolist()
    types = sorted(tokens.index(token) for token in set(tokens))
    for variant, some in (("", rows.activations), ("one_per_type", rows.activations[types])):
        found, here = intrinsic_dimension(some), records.filter(variant=variant)
        assert here.filter(metric="dimension_misfit")["value"].item() == pytest.approx(found.misfit, rel=1e-3)
        assert here.filter(metric="dimension_trouble")["value"].item() == bool(found.trouble)


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
        # At order 2, the share of a small bin may not be estimable.
        assert means["value"].to_list() == pytest.approx(means["expected"].to_list(), nan_ok=True)


def captured_steps(model, site, steps):
    """The rows of each step of the same training."""
    found, optimizer = [], torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        with Capture(model, [site], objective="causal") as capture:
            model(**tiny_batch(step)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(capture.rows(site))
    return found


@pytest.mark.parametrize("step", [0, 2])
def test_records_are_what_the_measures_give_on_the_captured_rows(step, tmp_path):
    """By hand: capture the same step, measure it with the public functions, compare."""
    counts = torch.arange(64)
    model = tiny_model()
    with Lens(model, "resid.1", rank=4, every=[step], run=tmp_path / "run", counts=counts, seed=3) as lens:
        train(model, steps=step + 1, lens=lens)
    model = tiny_model()
    *before, rows = captured_steps(model, find_sites(model, "resid.1")[0], step + 1)
    bins = FrequencyBins.of(counts)
    test = tangent_test(
        rows.activations,
        rows.gradients,
        rows.sequences,
        rows.tokens,
        rows.targets,
        rank=4,
        controls=WATCHED,
        orders=(1.0, 2.0),
        bins=bins,
        fit_on=before[-1].activations if before else None,
        seed=3,
    )
    records = open_run(tmp_path / "run").records.filter(site="resid.1")
    key = ["metric", "variant", "order", "freq_bin"]
    shares = records.filter(pl.col("metric").is_in(["share", "token_share"])).sort(key)
    expected = test.table.sort(key)
    assert shares.select(key).equals(expected.select(key))
    for column in ("value", "ci_low", "ci_high"):
        assert shares[column].to_list() == pytest.approx(expected[column].to_list(), nan_ok=True)
    assert shares["ci_over"].to_list() == expected["ci_over"].to_list()

    def value(metric, **about):
        return records.filter(metric=metric, freq_bin="all", **about)["value"].item()

    assert value("anisotropy", quantity="gradient") == pytest.approx(anisotropy(rows.gradients, center=False))
    assert value("anisotropy", quantity="activation") == pytest.approx(anisotropy(rows.activations))
    assert value("rms_norm") == pytest.approx(float(rows.gradients.norm(dim=1).square().mean().sqrt()))
    assert value("intrinsic_dimension", variant="") == pytest.approx(intrinsic_dimension(rows.activations).value)


def test_tokens_seen_are_those_trained_on(tmp_path):
    model = tiny_model()
    mask = torch.ones(8, 12, dtype=torch.long)
    mask[:, :5] = 0
    with Lens(model, "resid.1", rank=4, every=1, run=tmp_path / "run") as lens:
        model.eval()
        model(**tiny_batch())
        with torch.no_grad():
            model(**tiny_batch())
        model.train()
        model(**tiny_batch(), attention_mask=mask).loss.backward()
        lens.step()
    assert open_run(tmp_path / "run").records["tokens_seen"].unique().to_list() == [8 * 7]


def test_two_lenses_of_one_name_do_not_overwrite_each_other(tmp_path):
    run = create_run(tmp_path / "run", {})
    Lens(tiny_model(), "resid", rank=4, run=run)
    with pytest.raises(InputError, match="sites was"):
        Lens(tiny_model(), "embed", rank=4, run=run)
    with pytest.raises(InputError, match="exclude was"):
        Lens(tiny_model(), "resid", rank=4, run=run, exclude=[0])


def test_an_error_in_a_step_that_is_caught_does_not_shift_the_count(tmp_path):
    model = tiny_model()
    with Lens(model, "resid.1", rank=4, every=1, run=tmp_path / "run") as lens:
        with pytest.raises(InputError, match="no gradient came"):
            lens.step()
        train(model, steps=1, lens=lens)
    assert open_run(tmp_path / "run").records["step"].unique().to_list() == [1]


def test_the_run_stays_where_it_is_when_the_process_moves(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = tiny_model()
    with Lens(model, "resid.1", rank=4, every=1, run="run", name="../models/x") as lens:
        (tmp_path / "sub").mkdir()
        monkeypatch.chdir(tmp_path / "sub")
        train(model, steps=1, lens=lens)
    assert open_run(tmp_path / "run").records.height > 0


def test_sites_of_different_widths_have_no_mean(tmp_path):
    model = tiny_model()
    with Lens(model, ["resid.1", "model.layers.0.mlp.gate_proj"], rank=4, every=1, run=tmp_path / "run") as lens:
        train(model, steps=1, lens=lens)
    records = open_run(tmp_path / "run").records
    assert records.filter(site="mean").is_empty()
    assert records.filter(metric="share")["site"].n_unique() == 2


def test_moments_of_all_steps_between_two_due_ones_are_measured_with_the_second(tmp_path):
    """By hand: all rows of the window, and the proxy that was fitted at its beginning."""
    model = tiny_model()
    with Lens(model, "resid.1", rank=4, every=3, run=tmp_path / "run", moments_every=1) as lens:
        train(model, steps=4, lens=lens)
    records = open_run(tmp_path / "run").records.filter(step=3)
    model = tiny_model()
    rows = captured_steps(model, find_sites(model, "resid.1")[0], 4)[1:]
    activations, gradients = (torch.cat([getattr(one, of) for one in rows]) for of in ("activations", "gradients"))

    def value(metric, **about):
        return records.filter(metric=metric, **about)["value"].item()

    assert value("window_anisotropy", quantity="activation") == pytest.approx(anisotropy(activations), rel=1e-5)
    assert value("window_rms_norm") == pytest.approx(float(gradients.square().sum(dim=1).mean().sqrt()), rel=1e-5)
    tensors, _ = lens.run.load_tensors("model-step-00000000")
    for order in (1.0, 2.0):
        expected = share(gradients, Subspace.span(tensors["resid.1/semi_nmf"].T), order)
        assert value("window_share", variant="semi_nmf", order=order) == pytest.approx(expected, rel=1e-4)
    assert records.filter(metric="window_share")["n"].unique().to_list() == [3 * 96]


def test_a_step_that_is_not_finite_does_not_spoil_the_window(tmp_path):
    model = tiny_model()
    with Lens(model, "resid.1", rank=4, every=[2], run=tmp_path / "run", moments_every=1) as lens:
        (model(**tiny_batch(0)).loss * math.nan).backward()
        model.zero_grad()
        lens.step()
        train(model, steps=2, lens=lens)
    found = open_run(tmp_path / "run").records.filter(pl.col("metric").str.starts_with("window"))
    assert found["value"].is_finite().all()
    assert found.filter(quantity="gradient")["n"].unique().to_list() == [2 * 96]


def test_at_most_so_many_tokens_are_measured_and_the_sample_stands_for_all(tmp_path):
    counts, shares = [], []
    for most in (10_000, 300):
        model = tiny_model()
        with Lens(model, "resid.1", rank=4, every=[1], run=tmp_path / f"{most}", max_tokens=most) as lens:
            train(model, steps=2, lens=lens, batches=lambda step: tiny_batch(step, batch=64))
        found = open_run(tmp_path / f"{most}").records.filter(
            metric="share", variant="semi_nmf", order=1.0, site="resid.1"
        )
        counts.append(found["n"].item())
        shares.append(found.row(0, named=True))
    # Of 12 tokens in a sequence, the last one has no target, and so no gradient.
    assert counts[0] == 64 * 11
    assert 250 < counts[1] < 300
    assert shares[1]["value"] == pytest.approx(shares[0]["value"], rel=0.15)


@pytest.mark.parametrize(
    ("every", "due"), [("log", [0, 1, 2, 4]), ("pythia", [0, 1, 2, 4]), (2, [0, 2, 4]), (range(3, 5), [3, 4])]
)
def test_schedules_are_data(every, due, tmp_path):
    model = tiny_model()
    with Lens(model, "resid.1", rank=4, every=every, run=tmp_path / "run") as lens:
        train(model, steps=6, lens=lens)
    assert lens.run.records["step"].unique().sort().to_list() == due
    assert lens.run.manifest["lenses"]["model"]["every"] == (list(every) if isinstance(every, range) else every)


def test_a_lens_is_open_once_at_a_time_and_can_be_opened_again(tmp_path):
    model = tiny_model()
    lens = Lens(model, "resid.1", rank=4, every=1, run=tmp_path / "run")
    with lens:
        with pytest.raises(InputError, match="a lens must be opened once at a time"), lens:
            pass
        train(model, steps=1, lens=lens)
    with lens:
        train(model, steps=1, lens=lens)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())
    assert lens.run.records["step"].unique().sort().to_list() == [0, 1]


def test_a_lens_that_goes_on_from_its_state_gives_the_same_numbers(tmp_path):
    """Stopped between due steps and right before one, with a window and an alarm under way."""
    alarms = lambda: [Alarm("anisotropy", above=0.0)]  # noqa: E731
    settings = {"sites": "resid.1", "rank": 4, "every": [0, 1, 4], "moments_every": 1, "predict": True}
    whole, model = tmp_path / "whole", tiny_model()
    with pytest.warns(UserWarning, match="anisotropy is"), Lens(model, run=whole, alarms=alarms(), **settings) as lens:
        train(model, steps=5, lens=lens)
    for stop in (1, 3):
        model, path = tiny_model(), tmp_path / str(stop)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        state = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for first, last in ((0, stop), (stop, 5)):
                lens = Lens(model, run=path, step=first, alarms=alarms(), **settings)
                lens.load_state_dict(state)
                with lens:
                    for step in range(first, last):
                        loss = model(**tiny_batch(step)).loss
                        loss.backward()
                        optimizer.step()
                        optimizer.zero_grad()
                        lens.step(loss)
                state = lens.state_dict()
        expected, found = (open_run(one).records.drop("run").sort(KEY) for one in (whole, path))
        assert found.equals(expected)


def test_an_alarm_lasts_over_a_step_that_cannot_be_measured(tmp_path):
    model = tiny_model()
    alarm = Alarm("anisotropy", above=0.0)
    with Lens(model, "resid.1", rank=4, every=1, run=tmp_path / "run", alarms=[alarm]) as lens:
        with pytest.warns(UserWarning, match="anisotropy is"):
            train(model, steps=1, lens=lens)
        (model(**tiny_batch(0)).loss * math.nan).backward()
        model.zero_grad()
        with pytest.warns(UserWarning, match="step 1 was not measured"):
            lens.step()
        train(model, steps=1, lens=lens)
    assert lens.run.records.filter(metric="alarm/anisotropy")["value"].to_list() == [1, 1, 1]


def test_a_pass_that_is_never_back_propagated_is_not_fitted_on(tmp_path):
    for name in ("alone", "beside"):
        model = tiny_model()
        with Lens(model, "resid.1", rank=4, every=[1], run=tmp_path / name) as lens:
            if name == "beside":
                model(**tiny_batch(9))
            train(model, steps=2, lens=lens)
    alone, beside = (open_run(tmp_path / name).records.filter(metric="share") for name in ("alone", "beside"))
    assert alone["value"].to_list() == beside["value"].to_list()


def test_a_site_without_a_gradient_is_told_in_the_first_step_and_not_only_when_it_is_due(tmp_path):
    model = tiny_model()
    model.get_input_embeddings().weight.requires_grad_(False)
    with Lens(model, rank=4, every=[500], run=tmp_path / "run") as lens:
        with pytest.warns(UserWarning, match=r"no gradient came through resid.0 in the first step; on a due step"):
            train(model, steps=1, lens=lens)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            train(model, steps=1, lens=lens)


def test_windows_hold_passes_that_were_back_propagated_and_no_others(tmp_path):
    def batches(model, in_vain):
        with Lens(model, "resid.1", rank=4, every=[2], moments_every=1, run=tmp_path / f"{in_vain}") as lens:
            for step in range(3):
                if in_vain:
                    model(**tiny_batch(step + 7))
                model(**tiny_batch(step)).loss.backward()
                lens.step()
        return open_run(tmp_path / f"{in_vain}").records.filter(pl.col("metric").str.starts_with("window"))

    with_it, without = batches(tiny_model(), True), batches(tiny_model(), False)
    assert with_it["n"].to_list() == without["n"].to_list()
    assert with_it["value"].to_list() == without["value"].to_list()


def test_a_second_backward_pass_would_count_rows_twice_in_a_window(tmp_path):
    model = tiny_model()
    with Lens(model, rank=4, every=[2], moments_every=1, run=tmp_path / "run"):
        loss = model(**tiny_batch()).loss
        loss.backward(retain_graph=True)
        with pytest.raises(InputError, match="must be back-propagated once if moments are streamed"):
            loss.backward()


def test_lengths_of_gradients_by_bin_are_those_of_their_tokens(tmp_path):
    model, counts = tiny_model(), torch.arange(64)
    with Lens(model, "resid.1", rank=4, every=1, run=tmp_path / "run", counts=counts) as lens:
        train(model, steps=1, lens=lens)
        with Capture(model, find_sites(model, "resid.1"), objective="causal") as seen:
            train(model, steps=1, lens=lens, batches=lambda _: tiny_batch(1))
    rows, bins = seen.rows(seen.sites[0]), FrequencyBins.of(counts)
    for kind, ids in (("input", rows.tokens), ("target", rows.targets)):
        for number in range(4):
            there = rows.gradients[(bins.assign(ids) == number) & rows.gradients.abs().amax(dim=1).gt(0)]
            record = lens.run.records.filter(
                step=1, site="resid.1", quantity="gradient", metric="rms_norm", freq_bin=f"{kind}.{number}"
            ).row(0, named=True)
            assert record["value"] == pytest.approx(float(there.square().sum(dim=1).mean().sqrt()), rel=1e-5)
            assert record["n"] == len(there)


def test_a_site_that_lacks_frequency_bins_is_in_the_mean_over_sites(tmp_path):
    """The last layer of an encoder has gradients at masked positions only, whose input token is never counted."""
    model, batch = tiny_model("encoder"), tiny_batch(0, batch=16)
    masked = torch.rand(batch["input_ids"].shape, generator=torch.Generator().manual_seed(0)) < 0.4
    inputs, labels = batch["input_ids"].masked_fill(masked, 1), batch["labels"].masked_fill(~masked, -100)
    counts = torch.ones(64, dtype=torch.long)
    counts[1] = 0
    with Lens(model, "resid", rank=4, every=1, run=tmp_path / "run", counts=counts) as lens:
        model(input_ids=inputs, labels=labels).loss.backward()
        lens.step()
    shares = open_run(tmp_path / "run").records.filter(metric="share", variant="semi_nmf", order=1.0)
    assert shares.filter(site="resid.2", freq_bin="input.0").is_empty()
    assert not shares.filter(site="resid.0", freq_bin="input.0").is_empty()
    by_site = shares.filter(freq_bin="all").select("site", "value").rows()
    assert [site for site, _ in by_site] == ["resid.0", "resid.1", "resid.2", "mean"]
    values = [value for _, value in by_site]
    assert values[-1] == pytest.approx(sum(values[:-1]) / 3)
