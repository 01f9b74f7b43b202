import functools
import math
import re
import weakref

import polars as pl
import pytest
import safetensors.torch
import torch
from transformers import AutoModel, AutoTokenizer, LlamaModel

from real_models import minilm, stories
from tangentlens import InputError, anisotropy, intrinsic_dimension, mean_cosine, open_run
from tangentlens.corpora.text import builtin_text
from tangentlens.corpora.windows import Text, windows
from tangentlens.geometry.measures import MEASURES, NAMES
from tangentlens.models.small import small_model
from tangentlens.studies.profile import Profile, measuring, run_profile
from tiny import save_tiny

SMALL = {"batches": 3, "batch_tokens": 128, "length": 16}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(save_tiny(tmp_path_factory.mktemp("models") / "tiny", specials=True))


@pytest.fixture(scope="module")
def run(tiny, tmp_path_factory):
    return run_profile(Profile(models=(tiny,), **SMALL), tmp_path_factory.mktemp("runs") / "run")


def naive(folder, seed=0):
    """The same batches by hand: windows between specials, Hugging Face's own hidden states, specials dropped by id."""
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    tokens, rows, found = [], [], []
    for window in windows(Text(), lambda text: tokenizer(text, add_special_tokens=False)["input_ids"], 16, seed):
        ids = torch.cat([torch.tensor([2]), window, torch.tensor([3])])
        with torch.no_grad():
            states = model(input_ids=ids[None], output_hidden_states=True).hidden_states
        found += [
            (int(ids[i]), [state[0, i] for state in states]) for i in range(1, 17) if int(ids[i]) not in (0, 1, 2, 3)
        ]
        if len(found) >= 128:
            order = torch.randperm(len(found), generator=torch.Generator().manual_seed(seed + len(rows)))[:128].tolist()
            tokens.append([found[i][0] for i in order])
            # The last of Hugging Face's states is after the final norm, so it is no residual site.
            rows.append([torch.stack([found[i][1][site] for i in order]) for site in range(3)])
            found = []
        if len(rows) == 3:
            break
    return tokens, rows


def test_numbers_are_those_of_the_same_batches_taken_by_hand(tiny, run):
    tokens, rows = naive(tiny)
    for site in range(3):
        here = run.records.filter(site=f"resid.{site}", variant="")
        parts = [batch[site] for batch in rows]
        for metric, measure in (("anisotropy", anisotropy), ("mean_cosine", mean_cosine)):
            values = torch.tensor([measure(part) for part in parts], dtype=torch.float64)
            row = here.filter(metric=metric).row(0, named=True)
            assert row["value"] == pytest.approx(float(values.mean()), rel=1e-4)
            sd = here.filter(metric=f"sd/{metric}")["value"][0]
            assert sd == pytest.approx(float(values.std()), rel=1e-3)
            reach = 4.302652729911275 * sd / math.sqrt(3)
            assert (row["ci_low"], row["ci_high"]) == pytest.approx((row["value"] - reach, row["value"] + reach))
            assert (row["ci_over"], row["n"]) == ("batches", 3 * 128)
    dimension = run.records.filter(site="resid.2", metric="intrinsic_dimension", variant="one_per_type")["value"][0]
    types = [
        batch[2][[ids.index(i) for i in sorted(set(ids), key=ids.index)]]
        for batch, ids in zip(rows, tokens, strict=True)
    ]
    assert dimension == pytest.approx(sum(intrinsic_dimension(part).value for part in types) / 3, rel=1e-3)


def keys(records):
    at_sites = records.filter(pl.col("site") == "resid.1", ~pl.col("metric").str.contains("/"))
    return {f"{metric}:{variant}".rstrip(":") for metric, variant in at_sites.select("metric", "variant").rows()}


def test_the_usual_measures_are_there_at_every_site_with_a_shape(run):
    records = run.records
    assert keys(records) == {measure.key for measure in MEASURES if not measure.costly}
    for measure in MEASURES:
        rows = records.filter(metric=measure.name, variant=measure.variant)
        assert rows["site"].to_list() == ([] if measure.costly else ["resid.0", "resid.1", "resid.2", "resid.3"])
        assert measure.costly or records.filter(metric=f"shape/{measure.name}").height >= 1
    assert run.manifest["models"]["tiny"]["kind"] == "decoder"
    assert len(run.manifest["models"]["tiny"]["weights_sha256"]) == 64


def test_measures_are_chosen_by_name_and_come_with_what_they_are_judged_by(tiny, run, tmp_path):
    here = {"models": (tiny,), "sites": "resid.1", **SMALL}
    some = run_profile(Profile(measures=("intrinsic_dimension",), **here), tmp_path / "some")
    judges = {"duplicates", "massive_rows", "massive_threshold", "massive_ratio"}
    judges |= {f"dimension_{what}{variant}" for what in ("misfit", "trouble") for variant in ("", ":one_per_type")}
    assert keys(some.records) == {"intrinsic_dimension", "intrinsic_dimension:one_per_type", *judges}
    everything = run_profile(Profile(measures=NAMES, **here), tmp_path / "all").records
    assert keys(everything) == {measure.key for measure in MEASURES}
    order = ["site", "rows", "metric", "variant"]
    expected = run.records.filter(pl.col("site") == "resid.1", ~pl.col("metric").str.starts_with("shape"))
    same = everything.join(expected, on=order, how="semi", nulls_equal=True)
    assert same.drop("run").sort(order).equals(expected.drop("run").sort(order))
    with pytest.raises(InputError, match=r"a measure must be one of anisotropy, .* did you mean anisotropy"):
        Profile(models=(tiny,), measures=("anisotropi",))
    with pytest.raises(InputError, match="measures must name at least one"):
        Profile(models=(tiny,), measures=())


def test_stopping_anywhere_and_going_on_gives_the_same_numbers(tiny, run, tmp_path):
    """What is lost is the site that was being measured: every other site is on disk, and is not measured again."""
    profile = Profile(models=(tiny,), **SMALL)
    calls = 0

    def stop_in_the_second_batch(progress):
        nonlocal calls
        calls += bool(progress.row)
        if calls == 6:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_profile(profile, tmp_path / "run", stop_in_the_second_batch)
    again = []
    stopped = run_profile(profile, tmp_path / "run", lambda progress: again.append((progress.done, progress.row)))
    assert again[:3] == [(0, ""), (7, "resid.2"), (8, "resid.3")]
    assert [done for done, _ in again[3:]] == [8, 9, 10, 11, 12, 12]
    assert stopped.records.drop("run").equals(run.records.drop("run"))
    done = []
    run_profile(profile, tmp_path / "run", done.append)
    assert not done


def test_the_figure_is_there_after_two_batches_and_then_gets_better(tiny, tmp_path):
    seen = []

    def look(progress):
        if progress.readable is not None:
            rows = open_run(progress.readable).records.filter(metric="mean_cosine", site="resid.2")
            seen.append((progress.done, *rows.select("n", pl.col("ci_high") - pl.col("ci_low")).row(0)))

    run_profile(Profile(models=(tiny,), measures=("mean_cosine",), **{**SMALL, "batches": 5}), tmp_path / "run", look)
    assert [(done, n) for done, n, _ in seen] == [(8, 256), (12, 384), (16, 512), (20, 640)]
    assert seen[-1][2] < seen[0][2]


def test_results_are_told_as_they_come(tiny, run, tmp_path):
    rows = []
    run_profile(Profile(models=(tiny,), measures=("mean_cosine",), **SMALL), tmp_path / "run", rows.append)
    first, last = (
        [one for one in rows if one.row == "resid.2"][place].cells["mean cosine"].split(" ±") for place in (0, -1)
    )
    assert len(first) == 1
    row = run.records.filter(site="resid.2", metric="mean_cosine")["value"][0]
    assert float(last[0]) == pytest.approx(row, rel=5e-3)


def test_rows_are_not_held_beyond_their_site_and_nothing_is_cached(tiny, monkeypatch, tmp_path):
    held, alive, caches = [], [], []
    forward = LlamaModel.forward

    @functools.wraps(forward)
    def watched(self, *args, **kwargs):
        output = forward(self, *args, **kwargs)
        caches.append(output.past_key_values)
        return output

    def see(progress):
        if progress.row:
            held[:] = [ref for ref in held if ref() is not None]
            alive.append(len(held))

    original = measuring.Cloud

    def remember(rows, *rest):
        held.append(weakref.ref(rows))
        return original(rows, *rest)

    monkeypatch.setattr(measuring, "Cloud", remember)
    monkeypatch.setattr(LlamaModel, "forward", watched)
    run_profile(Profile(models=(tiny,), measures=("anisotropy",), **SMALL), tmp_path / "run", see)
    assert len(alive) == 12
    assert max(alive) <= 1
    assert set(caches) == {None}


def test_other_weights_are_not_mixed_in(tmp_path):
    folder = save_tiny(tmp_path / "tiny")
    profile = Profile(models=(str(folder),), **SMALL)

    def stop(*told):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_profile(profile, tmp_path / "run", stop)
    small_model("decoder", 400, layers=3, width=32, length=64, mask=1, seed=1).save_pretrained(folder)
    with pytest.raises(InputError, match="tiny has other weights than when"):
        run_profile(profile, tmp_path / "run")


def test_time_and_memory_are_told_first(tiny, tmp_path):
    told = []
    run_profile(Profile(models=(tiny,), measures=("anisotropy",), **SMALL), tmp_path / "run", told.append)
    assert told[0][:2] == ("tiny", 0)
    assert re.fullmatch(r"about \d+ s, \d+\.\d GiB of memory on cpu", told[0].note)
    assert told[-1][:3] == ("tiny", 12, 12)
    assert told[-1].readable == tmp_path / "run"


def test_two_models_of_one_name_are_kept_apart(tiny, tmp_path):
    other = str(save_tiny(tmp_path / "tiny", kind="encoder"))
    run = run_profile(Profile(models=(tiny, other), measures=("anisotropy",), **SMALL), tmp_path / "run")
    assert run.records["model"].unique().sort().to_list() == sorted([tiny, other])
    assert {facts["kind"] for facts in run.manifest["models"].values()} == {"decoder", "encoder"}


def test_ones_own_text_and_as_many_batches_as_it_gives(tiny, tmp_path):
    (tmp_path / "short.txt").write_text(builtin_text()[5000:6600])
    profile = Profile(models=(tiny,), text=str(tmp_path / "short.txt"), **{**SMALL, "batches": 9})
    run = run_profile(profile, tmp_path / "run")
    n = run.records.filter(metric="anisotropy")["n"][0]
    assert 2 * 128 <= n < 9 * 128
    (tmp_path / "short.txt").write_text(builtin_text()[:1200])
    with pytest.raises(InputError, match="was made from another text"):
        run_profile(profile, tmp_path / "run")


def test_bad_input_says_what_to_do(tiny, tmp_path):
    (tmp_path / "tiny.txt").write_text("a few words only")
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(InputError, match="at least 256 tokens, two batches, in windows of 16, but gives"):
        run_profile(Profile(models=(tiny,), text=str(tmp_path / "tiny.txt"), **SMALL), tmp_path / "a")
    with pytest.raises(InputError, match="must hold text, but is empty"):
        run_profile(Profile(models=(tiny,), text=str(tmp_path / "empty.txt"), **SMALL), tmp_path / "b")
    with pytest.raises(InputError, match="the nearest are resid"):
        run_profile(Profile(models=(tiny,), sites="resd.1", **SMALL), tmp_path / "c")
    with pytest.raises(InputError, match="batches must be a whole number of at least 2"):
        Profile(models=(tiny,), batches=1)
    with pytest.raises(InputError, match="dtype must be one of auto, float32, bfloat16, float16"):
        Profile(models=(tiny,), dtype="float31")
    with pytest.raises(InputError, match="'abacus' is not"):
        Profile(models=(tiny,), device="abacus")


@pytest.mark.calibration
def test_the_spread_over_batches_is_that_over_other_windows(tiny, tmp_path):
    """The deviation over batches of one run tells how far the means of runs with other seeds are apart."""
    means, sds = [], []
    for seed in range(8):
        plan = Profile(models=(tiny,), sites="resid.2", measures=("mean_cosine",), seed=seed, **SMALL)
        run = run_profile(plan, tmp_path / str(seed))
        means.append(run.records.filter(metric="mean_cosine")["value"][0])
        sds.append(run.records.filter(metric="sd/mean_cosine")["value"][0])
    assert 0.4 < sum(sds) / 8 / math.sqrt(3) / float(torch.tensor(means).std()) < 2.5


def test_rows_that_are_not_finite_name_model_and_site(tmp_path):
    folder = save_tiny(tmp_path / "tiny")
    weights = safetensors.torch.load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][0, 0] = torch.inf
    safetensors.torch.save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match=r"tiny at resid\.2: every value must be finite"):
        run_profile(Profile(models=(str(folder),), **SMALL), tmp_path / "run")


@pytest.mark.parametrize("name", ["encoder", "decoder"])
def test_trained_models(name, tmp_path):
    """Real weights: what the embeddings repeat is dropped, and context spreads the occurrences of a token."""
    folder = minilm() if name == "encoder" else stories(tmp_path / "stories")
    if folder is None:
        pytest.skip("the weights are not on this machine")
    run = run_profile(Profile(models=(str(folder),), batches=2, batch_tokens=1024), tmp_path / "run")
    records = run.records.filter(variant="").sort("depth", maintain_order=True)
    assert run.manifest["models"][records["model"][0]]["kind"] == name
    duplicates = records.filter(metric="duplicates")["value"].to_list()
    assert duplicates[0] > 20
    assert max(duplicates[1:]) < 0.1 * duplicates[0]
    assert records.filter(pl.col("metric").is_in(["anisotropy", "mean_cosine"]))["value"].is_between(0, 1).all()
    assert records["value"].is_finite().all()
