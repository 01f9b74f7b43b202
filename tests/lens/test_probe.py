"""`Lens(probe=...)`: the training does not notice, and the records are what `tl.movement` gives."""

import math
import warnings

import jaxtyping
import polars as pl
import pytest
import torch

import tangentlens.capture.untouched as quietly
from architectures import batch, build
from loops import assert_same_weights, n_hooks, train
from tangentlens import InputError, Lens, massive_rows, movement, open_run
from tangentlens.alignment.frequency import FrequencyBins
from tangentlens.capture.probe import ProbeText
from tangentlens.capture.sites import find_sites
from tangentlens.lens.measures import WATCHED
from tangentlens.runs.records import KEY
from tiny import tiny_batch, tiny_model

PROBE = tiny_batch(99, batch=12)["input_ids"]


def moved(path):
    return open_run(path).records.filter(quantity="movement")


def with_dropout():
    """A model with dropout, part of which is in evaluation mode, as in fine-tuning."""
    model = build("gpt2").train()
    model.transformer.h[1].eval()
    assert any(isinstance(module, torch.nn.Dropout) and module.p > 0 for module in model.modules())
    return model


def both_ways(tmp_path, **options):
    """The same training without a lens and with one that has a probe: losses, models, and random states after."""
    found = []
    for run in (None, tmp_path / "run"):
        model = with_dropout()
        torch.manual_seed(3)
        if run is None:
            losses = train(model)
        else:
            with Lens(model, "resid.1", rank=4, run=run, probe=PROBE, **options) as lens:
                losses = train(model, lens)
        found.append((losses, model, torch.get_rng_state()))
    return found


@pytest.mark.parametrize("every", [1, [0, 2]])
def test_training_is_bit_for_bit_the_same(every, tmp_path):
    (expected, alone, after), (losses, watched, after_it) = both_ways(tmp_path, every=every)
    assert losses == expected
    assert_same_weights(alone, watched)
    assert torch.equal(after, after_it)
    assert [m.training for m in alone.modules()] == [m.training for m in watched.modules()]
    assert n_hooks(watched) == 0
    assert all(parameter.grad is None for parameter in watched.parameters())
    assert moved(tmp_path / "run").filter(metric="share").height > 0


@pytest.mark.parametrize("broken", ["_modes", "_random_states"])
def test_that_test_would_notice(broken, tmp_path, monkeypatch):
    """Evaluation mode that stays on turns dropout off; a random state that is drawn from changes the masks."""

    def careless(model):
        if broken == "_modes":
            model.eval()
        else:
            torch.rand(1)
        return warnings.catch_warnings()

    monkeypatch.setattr(quietly, broken, careless)
    (expected, *_), (losses, *_) = both_ways(tmp_path, every=1)
    assert losses != expected


def test_all_other_records_are_those_without_a_probe(tmp_path):
    for name, options in (("without", {}), ("with", {"probe": PROBE})):
        model = tiny_model()
        with Lens(
            model, "resid.[01]", rank=4, every=2, run=tmp_path / name, moments_every=1, updates="embed", **options
        ) as lens:
            train(model, lens)
    without, both = (open_run(tmp_path / name).records.drop("run").sort(KEY) for name in ("without", "with"))
    assert both.filter(pl.col("quantity") != "movement").equals(without)
    assert both.height > without.height


def by_hand(steps, site="resid.1", **options):
    """The activations of the probe with the weights of each step, as a plain evaluation has them."""
    model, found = tiny_model(), []
    text = ProbeText.of(PROBE, model, **options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(max(steps) + 1):
        if step in steps:
            with torch.no_grad():
                found.append(model.eval()(input_ids=PROBE, output_hidden_states=True).hidden_states[1].flatten(0, 1))
            model.train()
        train(model, steps=1, first=step, optimizer=optimizer)
    (where,) = find_sites(model, site)
    return text, found, where


def test_records_are_what_tl_movement_gives_on_the_weights_of_both_steps(tmp_path):
    """Step t means the weights after t updates, with which the step's own gradients were measured, too."""
    counts, model = torch.arange(64), tiny_model()
    with Lens(model, "resid.1", rank=4, every=[1, 3], run=tmp_path / "run", counts=counts, seed=3, probe=PROBE) as lens:
        train(model, lens)
    text, (before, after), where = by_hand((1, 3))
    expected = movement(
        before,
        after,
        text.sequences(where),
        text.tokens(where),
        rank=4,
        controls=WATCHED,
        bins=FrequencyBins.of(counts),
        seed=3,
    )
    records = moved(tmp_path / "run").filter(site="resid.1")
    assert records["step"].unique().to_list() == [3]
    assert set(records.filter(metric="distance")["detail"]) == {"since step 1"}
    key = ["metric", "variant", "order", "freq_bin"]
    known = set(expected.table["metric"])
    assert known >= {"share", "token_share", "variance_share", "distance", "shift", "growth", "growth_inside"}
    found = records.filter(pl.col("metric").is_in(list(known))).sort(key)
    table = expected.table.with_columns(pl.col("freq_bin").fill_null("all")).sort(key)
    assert found.select(key).equals(table.select(key))
    for column in ("value", "ci_low", "ci_high"):
        left, right = (one[column].fill_null(0.0).to_list() for one in (found, table))
        assert left == pytest.approx(right, rel=1e-3, abs=1e-4, nan_ok=True)
    assert found.filter(variant="semi_nmf", metric="growth_inside")["detail"].to_list() == ["proxy"]
    assert records.filter(metric="p_value", variant="random").height > 0
    assert records.filter(pl.col("ci_low").is_not_null())["ci_over"].is_not_null().all()


def test_the_mean_site_is_the_mean_of_the_sites(tmp_path):
    model = tiny_model()
    with Lens(model, rank=4, every=1, run=tmp_path / "run", probe=PROBE) as lens:
        train(model, lens, steps=2)
    records = moved(tmp_path / "run")
    for metric, mean in (("share", pl.col("value").mean()), ("growth_inside", pl.col("value").log().mean().exp())):
        rows = records.filter(metric=metric).select("site", "variant", "order", "value")
        sites = rows.filter(pl.col("site") != "mean").group_by("variant", "order").agg(expected=mean)
        means = rows.filter(site="mean").join(sites, on=["variant", "order"], nulls_equal=True)
        assert means.height == sites.height > 2
        assert means["value"].to_list() == pytest.approx(means["expected"].to_list())


@pytest.mark.parametrize("stop", [1, 2, 4])
def test_a_lens_that_goes_on_from_its_state_gives_the_same_numbers(stop, tmp_path):
    """Stopped right before a due step, right after one, and between two."""
    settings = {"sites": "resid.1", "rank": 4, "every": [1, 3, 5], "probe": PROBE}
    model = tiny_model()
    with Lens(model, run=tmp_path / "whole", **settings) as lens:
        train(model, lens, steps=6)
    model = tiny_model()
    optimizer, state = torch.optim.AdamW(model.parameters(), lr=1e-2), {}
    for first, last in ((0, stop), (stop, 6)):
        lens = Lens(model, run=tmp_path / "parts", step=first, **settings)
        lens.load_state_dict(state)
        with lens:
            train(model, lens, last - first, first, optimizer)
        # A checkpoint on disk keeps nothing but the numbers.
        state = {name: value.clone() for name, value in lens.state_dict().items()}
    expected, found = (open_run(tmp_path / name).records.drop("run").sort(KEY) for name in ("whole", "parts"))
    assert found.equals(expected)
    assert set(moved(tmp_path / "parts")["step"]) == {3, 5}


def test_a_state_without_rows_begins_anew_and_one_of_another_probe_is_refused(tmp_path):
    settings = {"sites": "resid.1", "rank": 4, "every": 1}
    model = tiny_model()
    with Lens(model, run=tmp_path / "a", probe=PROBE, **settings) as lens:
        train(model, lens, steps=1)
    state = lens.state_dict()
    with pytest.raises(InputError, match=r"the state must be of the same probe, but has 144 rows at resid.1, where"):
        Lens(model, run=tmp_path / "b", probe=PROBE[:6], **settings).load_state_dict(state)
    Lens(model, run=tmp_path / "c", **settings).load_state_dict(state)
    again = Lens(model, run=tmp_path / "d", probe=PROBE, step=1, tokens_seen=144, **settings)
    with again:
        train(model, again, steps=2)
    assert set(moved(tmp_path / "d")["step"]) == {2}


def test_a_changed_probe_is_refused_on_continuing(tmp_path):
    model = tiny_model()
    with Lens(model, "resid.1", rank=4, every=1, run=tmp_path / "run", probe=PROBE) as lens:
        train(model, lens, steps=1)
    assert lens.run.manifest["lenses"]["model"]["probe"] == ProbeText.of(PROBE, model).sha256
    for other in (PROBE.flip(0), None):
        with pytest.raises(InputError, match=r"another configuration \(probe was"):
            Lens(model, "resid.1", rank=4, every=1, run=tmp_path / "run", probe=other, step=1)


def test_a_probe_that_can_never_work_is_refused_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    model = tiny_model()
    for probe, says in (
        ([], "a probe must be token ids"),
        (PROBE + 60, "below the vocabulary's size, 64"),
        (PROBE[:3], "at least 4 sequences"),
        (3.5, "a probe must be token ids"),
    ):
        with pytest.raises(InputError, match=says):
            Lens(model, run=tmp_path / "run", probe=probe)
    with pytest.raises(InputError, match="at least 4 sequences with tokens that count"):
        Lens(model, run=tmp_path / "run", probe=PROBE, exclude=range(64))
    with pytest.raises(InputError, match="must have decoder_input_ids"):
        Lens(build("t5"), run=tmp_path / "run", probe=PROBE)
    assert n_hooks(model) == 0


def test_a_model_that_cannot_run_on_it_is_an_error_when_the_lens_opens(tmp_path):
    model = build("gpt2")
    lens = Lens(model, rank=4, every=1, run=tmp_path / "run", probe=PROBE.repeat(1, 4))
    with pytest.raises(InputError, match="the model must run on the probe"), lens:
        pass
    assert n_hooks(model) == 0


def test_activations_that_are_not_finite_are_recorded_and_training_goes_on(tmp_path):
    model = tiny_model()
    weight = model.model.layers[0].mlp.down_proj.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with Lens(model, "resid.1", rank=4, every=1, run=tmp_path / "run", probe=PROBE) as lens:
        train(model, lens, steps=1, optimizer=optimizer)
        kept = weight.detach().clone()
        with torch.no_grad():
            weight.fill_(math.nan)
        # The model is run on the probe when this step ends, before the next one begins.
        with pytest.warns(UserWarning, match=r"step 1 was not measured at resid.1: every value must be finite"):
            step_without_training(model, lens)
        with torch.no_grad():
            weight.copy_(kept)
        with pytest.warns(UserWarning, match=r"step 2 was not measured at resid.1 \(probe\): every value must be"):
            train(model, lens, steps=1, first=2, optimizer=optimizer)
        train(model, lens, steps=1, first=3, optimizer=optimizer)
    records = moved(tmp_path / "run")
    row = records.filter(metric="unmeasured").row(0, named=True)
    assert (row["step"], row["site"]) == (2, "resid.1")
    assert "hold NaN or Inf" in row["detail"]
    # The rows of step 1, which were finite, are compared with on.
    assert records.filter(metric="distance", step=3, site="resid.1")["detail"].to_list() == ["since step 1"]


def step_without_training(model, lens):
    model(**tiny_batch(1)).loss.backward()
    model.zero_grad()
    lens.step()


def test_a_site_that_did_not_move_is_recorded_and_training_goes_on(tmp_path):
    model = tiny_model()
    with Lens(model, ["embed", "resid.1"], rank=4, every=1, run=tmp_path / "run", probe=PROBE) as lens:
        optimizer = torch.optim.AdamW(model.model.layers.parameters(), lr=1e-2)
        train(model, lens, steps=1, optimizer=optimizer)
        with pytest.warns(UserWarning, match=r"not measured at embed \(probe\): rows must have moved"):
            train(model, lens, steps=1, first=1, optimizer=optimizer)
    records = moved(tmp_path / "run")
    assert records.filter(metric="unmeasured")["site"].to_list() == ["embed"]
    assert records.filter(metric="share", site="resid.1").height > 0


def test_massive_rows_of_either_step_are_left_out_in_a_second_reading(tmp_path):
    model, sink = tiny_model(), 63
    probe = tiny_batch(5, batch=32)["input_ids"]
    # The embedding is left alone, as it is tied to the output, where the sink would make all gradients huge.
    optimizer = torch.optim.SGD(model.model.layers.parameters(), lr=1e-3)
    with Lens(model, "resid.1", rank=4, every=1, run=tmp_path / "run", probe=probe) as lens:
        train(model, lens, steps=1, optimizer=optimizer)
        text = ProbeText.of(probe, model)
        before = text.rows(model, lens.sites)["resid.1"]
        with torch.no_grad():
            model.get_input_embeddings().weight[sink] *= 1000
        after = text.rows(model, lens.sites)["resid.1"]
        train(model, lens, steps=1, first=1, optimizer=optimizer)
        lens_saw = moved(tmp_path / "run").filter(step=1)
        assert lens_saw["rows"].unique().to_list() == ["all"], "the sink came after the probe had been looked at"
        train(model, lens, steps=1, first=2, optimizer=optimizer)
    massive = massive_rows(after).mask
    assert massive.tolist() == (text.tokens(lens.sites[0]) == sink).tolist()
    assert not massive_rows(before).mask.any()
    counts = dict(moved(tmp_path / "run").filter(step=2, metric="distance", site="resid.1").select("rows", "n").rows())
    tested = text.sequences(lens.sites[0]) >= 16
    assert counts == {"all": int(tested.sum()), "without_massive": int((tested & ~massive).sum())}
    means = moved(tmp_path / "run").filter(step=2, metric="growth", site="mean")
    assert means["rows"].sort().to_list() == ["all", "without_massive"]


def test_a_step_that_did_not_train_is_passed_over(tmp_path):
    model = tiny_model()
    with Lens(model, "resid.1", rank=4, every=1, run=tmp_path / "run", probe=PROBE) as lens:
        train(model, lens, steps=1)
        lens.skip("no batch")
        train(model, lens, steps=1, first=2)
    assert moved(tmp_path / "run").filter(metric="distance", site="resid.1").select("step", "detail").rows() == [
        (2, "since step 0")
    ]


def test_buffers_and_precision_of_the_training_stay(tmp_path):
    """Batch norms in training mode, under autocast: statistics are those of the training alone."""

    class Normed(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(64, 16)
            self.blocks = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(2))
            self.norm = torch.nn.BatchNorm1d(16)

        def forward(self, ids):
            x = self.embed(ids)
            for block in self.blocks:
                x = x + self.norm(block(x).flatten(0, 1)).view_as(x)
            return x

    found = []
    for probe in (None, PROBE):
        torch.manual_seed(0)
        model = Normed()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with Lens(model, "resid.1", rank=4, every=1, run=tmp_path / str(probe is None), probe=probe) as lens:
            for step in range(2):
                with torch.autocast("cpu", dtype=torch.bfloat16):
                    model(tiny_batch(step)["input_ids"]).square().mean().backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    lens.step()
        found.append(model)
    assert_same_weights(*found)
    assert found[1].norm.num_batches_tracked == 4


@pytest.mark.parametrize("name", ["bert", "albert", "t5", "mamba", "lstm", "transformer"])
def test_other_architectures_move_too(name, tmp_path):
    model, losses = None, []
    probe = batch(size=8, length=12, seed=9)
    probe = {"input_ids": probe["input_ids"]} if name not in ("lstm", "transformer", "t5") else probe
    if name == "t5":
        probe["decoder_input_ids"] = probe.pop("labels")
    for run in (None, tmp_path / "run"):
        model = build(name).train()
        torch.manual_seed(1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        lens = None if run is None else Lens(model, "*resid.1", rank=4, run=run, every=1, probe=probe).__enter__()
        for step in range(2):
            loss = model(**batch(size=8, length=12, seed=step)).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            if lens is not None:
                lens.step(loss)
        if lens is not None:
            lens.__exit__(None, None, None)
    assert losses[:2] == losses[2:]
    shares = moved(tmp_path / "run").filter(metric="share", variant="semi_nmf", order=1.0)
    assert set(shares["site"]) == {"mean", *(site.name for site in lens.sites)}
