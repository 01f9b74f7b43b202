"""Massive rows in a training: every number is there with and without them, in steps and in windows."""

import warnings

import polars as pl
import pytest
import torch

from tangentlens import Alarm, InputError, Lens, anisotropy, massive_rows, open_run, tangent_test
from tangentlens.capture.batch import read_batch, read_decoder_batch
from tangentlens.capture.sites import find_sites
from tangentlens.capture.step import Capture
from tangentlens.capture.stream import MomentStream
from tangentlens.lens.measures import WATCHED
from tiny import tiny_batch, tiny_model

SINK = 63


def with_a_sink(seed=0):
    """A model in which one token of 64 is a thousand times as long as the others, all along its depth."""
    model = tiny_model(seed=seed)
    with torch.no_grad():
        model.get_input_embeddings().weight[SINK] *= 1000
    return model


def captured(model, batch, site="resid.1", **options):
    """The rows of one step, as a plain capture has them."""
    (where,) = find_sites(model, site)
    with Capture(model, [where], **options) as capture:
        model(**batch).loss.backward()
    model.zero_grad()
    return capture.rows(where)


def measured(model, tmp_path, batches, **options):
    with Lens(model, "resid", rank=4, every=1, run=tmp_path / "run", **options) as lens:
        for batch in batches:
            loss = model(**batch).loss
            loss.backward()
            model.zero_grad()
            lens.step(loss)
    return open_run(tmp_path / "run").records, lens


def test_every_number_is_there_with_and_without_them(tmp_path):
    batch = tiny_batch(0, batch=32)
    records, _ = measured(with_a_sink(), tmp_path, [batch])
    rows = captured(with_a_sink(), batch)
    keep = ~massive_rows(rows.activations).mask
    assert keep.tolist() == (rows.tokens != SINK).tolist()
    assert 0 < int((~keep).sum()) < 20
    here = records.filter(site="resid.1")
    count = here.filter(metric="massive_rows", rows="all").row(0, named=True)
    assert count["value"] == int((~keep).sum())
    assert count["detail"].endswith(f"tokens {SINK} ({int((~keep).sum())} times)")
    spread = dict(here.filter(metric="anisotropy", quantity="activation").select("rows", "value").iter_rows())
    assert spread["all"] == pytest.approx(anisotropy(rows.activations), rel=1e-4)
    assert spread["without_massive"] == pytest.approx(anisotropy(rows.activations[keep]), rel=1e-4)
    assert spread["all"] > 0.9 > spread["without_massive"]
    share = here.filter(metric="share", variant="semi_nmf", order=1.0, rows="without_massive")["value"].item()
    test = tangent_test(rows.activations[keep], rows.gradients[keep], rows.sequences[keep], rank=4, controls=WATCHED)
    assert share == pytest.approx(test.share().value, rel=1e-4)
    metrics = {rows: set(here.filter(rows=rows)["metric"]) for rows in ("all", "without_massive")}
    assert metrics["all"] == metrics["without_massive"]
    means = records.filter(site="mean", metric="anisotropy", rows="without_massive")["value"].item()
    sites = records.filter(pl.col("depth").is_not_null(), metric="anisotropy", rows="without_massive")
    assert means == pytest.approx(sites.filter(quantity="activation")["value"].mean(), rel=1e-3)


def test_without_massive_rows_there_is_one_reading(tmp_path):
    records, lens = measured(tiny_model(), tmp_path, [tiny_batch(0)])
    assert records["rows"].unique().to_list() == ["all"]
    assert lens.scalars["massive_rows"] == 0


def test_streamed_moments_give_them_back(tmp_path):
    """By hand: all rows of the window, each pass with its own median."""
    model = with_a_sink()
    batches = [tiny_batch(step, batch=32) for step in range(3)]
    with Lens(model, "resid.1", rank=4, every=[2], run=tmp_path / "run", moments_every=1) as lens:
        for batch in batches:
            model(**batch).loss.backward()
            model.zero_grad()
            lens.step()
    window = open_run(tmp_path / "run").records.filter(metric="window_anisotropy", quantity="activation")
    seen = dict(window.select("rows", "value").iter_rows())
    rows = torch.cat([captured(with_a_sink(), batch).activations for batch in batches])
    keep = torch.cat([batch["input_ids"].flatten() != SINK for batch in batches])
    assert seen["all"] == pytest.approx(anisotropy(rows), rel=1e-4)
    assert seen["without_massive"] == pytest.approx(anisotropy(rows[keep]), rel=1e-4)
    counts = dict(window.select("rows", "n").iter_rows())
    assert counts == {"all": len(rows), "without_massive": int(keep.sum())}


def test_the_state_of_a_stream_keeps_them_apart():
    model = with_a_sink()
    sites = find_sites(model, "resid.1")
    stream, again = MomentStream(model, sites), MomentStream(model, sites)
    with stream:
        model(**tiny_batch(0, batch=32)).loss.backward()
    again.load_state_dict(stream.state_dict())
    for which, moments in stream.total("resid.1").items():
        for kind, one in moments.items():
            other = again.total("resid.1")[which][kind]
            assert one.count == other.count
            torch.testing.assert_close(one.scatter, other.scatter)


def test_an_alarm_says_when_they_appear(tmp_path):
    model = tiny_model()
    alarm = Alarm("massive_rows", above=0)
    with Lens(model, "resid.1", rank=4, every=1, run=tmp_path / "run", alarms=[alarm]) as lens:
        for step in range(3):
            if step == 2:
                with torch.no_grad():
                    model.get_input_embeddings().weight[SINK] *= 1000
            model(**tiny_batch(0, batch=32)).loss.backward()
            model.zero_grad()
            with warnings.catch_warnings(record=True) as raised:
                warnings.simplefilter("always")
                lens.step()
            told = [str(warning.message) for warning in raised]
            assert bool(told) == (step == 2)
    assert told[0].startswith("step 2 of model: massive activations appeared: massive_rows is ")


def test_the_first_positions_of_each_sequence_can_be_skipped(tmp_path):
    batch = tiny_batch(0, batch=4, length=8)
    rows = captured(tiny_model(), batch, skip_first=2)
    assert rows.positions.tolist() == list(range(2, 8)) * 4
    assert rows.tokens.tolist() == batch["input_ids"][:, 2:].flatten().tolist()
    records, lens = measured(tiny_model(), tmp_path, [batch], skip_first=2)
    assert records.filter(site="resid.1", metric="anisotropy", quantity="activation")["n"].item() == 4 * 6
    assert lens.run.manifest["lenses"]["model"]["skip_first"] == 2


def test_padding_on_either_side_is_no_position():
    batch = tiny_batch(0, batch=2, length=6)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    rows = captured(tiny_model(), {**batch, "attention_mask": mask})
    assert rows.positions.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    skipped = captured(tiny_model(), {**batch, "attention_mask": mask}, skip_first=3)
    assert skipped.positions.tolist() == [3, 3]


def test_packed_sequences_each_have_a_first_position():
    batch = tiny_batch(0, batch=1, length=6)
    rows = captured(tiny_model(), {**batch, "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]])})
    assert rows.positions.tolist() == [0, 1, 2, 0, 1, 2]


def test_a_mask_may_number_packed_sequences():
    batch = tiny_batch(0, batch=1, length=6)
    mask, positions = torch.tensor([[1, 1, 1, 2, 2, 2]]), torch.tensor([[0, 1, 2, 0, 1, 2]])
    named = {"input_ids": batch["input_ids"], "attention_mask": mask, "position_ids": positions}
    assert read_batch(named).positions.tolist() == [[0, 1, 2, 0, 1, 2]]
    assert read_batch(named, skip_first=1).keep.tolist() == [[False, True, True, False, True, True]]


def test_an_ignored_label_of_a_decoder_is_a_position():
    tokens = torch.tensor([[1, 2, 3, 4]])
    batch = read_decoder_batch(tokens, {"labels": torch.tensor([[-100, -100, 7, 8]])}, (), skip_first=1)
    assert batch.positions.tolist() == [[0, 1, 2, 3]]
    assert batch.keep.tolist() == [[False, False, True, True]]


def test_a_state_that_did_not_keep_them_apart_gives_one_reading_until_the_window_ends():
    model = with_a_sink()
    stream = MomentStream(model, find_sites(model, "resid.1"))
    with stream:
        model(**tiny_batch(0, batch=32)).loss.backward()
        old = {key.replace("ordinary/", "window/"): value for key, value in stream.state_dict().items()}
        stream.load_state_dict({key: value for key, value in old.items() if key.startswith("window/")})
        assert list(stream.total("resid.1")) == ["all"]
        stream.forget()
        model(**tiny_batch(0, batch=32)).loss.backward()
    assert list(stream.total("resid.1")) == ["all", "without_massive"]


def test_a_negative_number_of_positions_is_refused(tmp_path):
    with pytest.raises(InputError, match="skip_first"):
        Lens(tiny_model(), run=tmp_path / "run", skip_first=-1)
