import re
import shutil
import subprocess
from dataclasses import replace

import plotly.graph_objects as go
import polars as pl
import pytest
import torch

from cells import cell
from tangentlens import InputError, Lens, open_run
from tangentlens.report.contents import Figure, Section, draw, find, key_figures, tabulate
from tangentlens.report.page import plotly_js, write_report
from tangentlens.report.reading import read_runs
from tangentlens.report.sections.shares import share_over_depth
from tangentlens.runs.records import Record, as_frame
from tangentlens.runs.run import create_run
from tangentlens.studies import SECTIONS, visibility
from tangentlens.studies.profile import Profile, run_profile
from tangentlens.studies.profile.section import profile_over_depth
from tangentlens.studies.sweep import SweepPlan, run_sweep
from tangentlens.studies.tangent import TestPlan, run_test
from tangentlens.studies.train import run_train
from tiny import TINY, save_sunk, save_tiny, tiny_batch, tiny_model

FIGURES = [figure for section in SECTIONS for figure in section.figures]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_train(replace(TINY, steps=3), tmp_path_factory.mktemp("report") / "a-run")


@pytest.fixture(scope="module")
def judged(tmp_path_factory):
    """Two seeds of a network: claims are judged over networks."""
    plan = replace(TINY, models=("decoder",), steps=3, seeds=2)
    return run_train(plan, tmp_path_factory.mktemp("judged") / "a-run")


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("profiled")
    wanted = Profile(models=(str(save_tiny(folder / "tiny")),), batches=3, batch_tokens=128, length=16)
    return run_profile(wanted, folder / "a-profile")


@pytest.fixture(scope="module")
def visible(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(visibility, "SYNTHETIC", {"torus": visibility.SYNTHETIC["torus"]})
        plan = visibility.VisibilityPlan(anchors=16)
        return visibility.run_visibility(plan, tmp_path_factory.mktemp("visibility") / "run")


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    """A model with massive activations at one of its tokens."""
    folder = tmp_path_factory.mktemp("tested")
    plan = TestPlan(str(save_sunk(folder / "tiny")[0]), rank=4, tokens=512, length=16)
    return run_test(plan, folder / "a-test")


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """A training with a probe."""
    path, model = tmp_path_factory.mktemp("moved") / "run", tiny_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with Lens(model, "resid.1", rank=4, every=1, run=path, probe=tiny_batch(9)["input_ids"], concepts=str) as lens:
        for step in range(3):
            model(**tiny_batch(step)).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            lens.step()
    return open_run(path)


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """A sweep over a model whose last two checkpoints have the same weights."""
    folder = tmp_path_factory.mktemp("swept")
    for step in (1, 2, 3):
        save_tiny(folder / "tiny" / f"step{step}", seed=min(step, 2))
    cheap = {"sites": "resid.1", "measures": ("anisotropy",), "controls": ("random", "pca")}
    plan = SweepPlan((str(folder / "tiny"),), rank=4, tokens=256, length=16, **cheap)
    return run_sweep(plan, folder / "a-sweep")


@pytest.fixture(scope="module")
def varied(tmp_path_factory):
    """Planted trainings: two seeds of a plain network, of two with another training, and of a variation."""
    run = create_run(tmp_path_factory.mktemp("varied") / "run", {}, "train")
    for kind, treatment in (
        ("plain decoder", ""),
        ("plain decoder", "cosine 1"),
        ("plain decoder", "relabelled 0.5"),
        ("LSTM", ""),
    ):
        for seed in range(2):
            name = f"{kind} {treatment} {seed}"
            facts = {"kind": kind, "treatment": treatment, "family": f"{kind} {treatment}, one", "trained_seed": seed}
            run.describe("models", {name: facts | {"weights_sha256": name}})
            for step in (1, 4):
                about = {"model": name, "step": step}
                loss = 3.0 + seed + len(name) / 7 - step / 5
                told = [cell("loss", loss, quantity="loss", site="", variant="held_out", **about)]
                for place in (
                    {"site": f"resid.{i}", "depth": i / 2, "quantity": "activation", **about} for i in range(3)
                ):
                    shape = cell("anisotropy", 0.1 * seed + len(name) ** 2 % 7, **place)
                    beside = {**place, "model": f"{name} (held-out text)"}
                    skill = cell("probe_skill", len(name) % 5 / 5, variant="token class", **beside)
                    told += [shape, replace(shape, model=beside["model"]), skill]
                run.write(f"{name}-{step}", told)
    return run


@pytest.fixture(scope="module")
def page(run, profiled):
    return write_report([run, profiled], run.path / "report.html", SECTIONS).path


def test_every_figure_is_drawn_with_a_title_and_says_what_its_bars_are_over(
    judged, profiled, visible, tested, moved, swept, varied
):
    # The first run is what the others are compared with.
    figures = draw(SECTIONS, read_runs([moved, judged, profiled, visible, tested, swept, varied]))
    assert len(figures) == len(FIGURES)
    assert len({figure.key for figure in figures}) == len(figures), "a live page knows figures by their keys"
    assert all(re.search(r"\d", figure.title) for figure in figures), "a title says what is seen"
    assert all("interval" in figure.caption for figure in figures)


def test_a_sweep_says_which_checkpoints_are_suspicious(swept):
    records = read_runs([swept])
    (table,) = [one.frame for one in tabulate(SECTIONS, records) if "suspicious" in one.title]
    assert table.select("step", "checkpoint", "state").rows() == [
        (2, "step2", "left out"),
        (3, "step3", "left out"),
    ]
    assert "the same weights as step 3" in table["why"][0]
    said = [finding.text for finding in find(SECTIONS, records)]
    assert "3 checkpoints were measured." in said
    assert any(text.startswith("2 of them are not what their names say") for text in said)


def test_the_file_is_small_and_asks_the_network_for_nothing(page):
    text = page.read_text()
    assert page.stat().st_size < 2_500_000
    outside = text.replace(plotly_js(), "")
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", outside)
    assert "@import" not in outside


def browse(address, tmp_path, *options):
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("no chromium on this machine")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    command = [chromium, *flags, f"--user-data-dir={tmp_path}", "--virtual-time-budget=10000", *options, address]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def test_a_browser_draws_every_figure_from_disk(page, tmp_path):
    logged = ("--dump-dom", "--enable-logging=stderr", "--log-level=0")
    folded, opened = (browse(page.as_uri() + part, tmp_path, *logged) for part in ("", "#all"))
    # Each is drawn when it is asked for, in several layers.
    assert _drawn(folded.stdout) == 1
    assert _drawn(opened.stdout) == len(re.findall(r'id="figure-[\w-]+-data"', opened.stdout)) > 6
    assert "errorbars" in opened.stdout
    # The page colours a figure before it is drawn; plotly's own background is white.
    assert 'style="background: rgba(0, 0, 0, 0);"' in folded.stdout
    assert "Uncaught" not in folded.stderr + opened.stderr


def _drawn(dom):
    return len(re.findall(r'<div class="plot js-plotly-plot"', dom))


def test_the_first_screen_has_the_key_figures_of_every_model(run, profiled, page):
    decoder, encoder = key_figures(SECTIONS, read_runs([run]))
    assert (decoder.model, encoder.model) == ("decoder", "encoder")
    shares = run.records.filter(metric="share", order=1.0, freq_bin="all", site="mean", model="decoder", rows="all")
    proxy = shares.filter(detail="proxy").sort("step").row(-1, named=True)
    chance = shares.filter(variant="random")["value"][0]
    card = decoder.cards[0]
    assert card.value == f"{proxy['value'] / chance:.3g} ×"
    assert card.interval == f"[{proxy['ci_low'] / chance:.3g}, {proxy['ci_high'] / chance:.3g}]"
    assert [step for step, _ in card.course] == [0, 1, 2]
    assert len(decoder.cards) == 4
    text = page.read_text()
    assert text.index('class="card') < text.index('class="plot"') < text.index("<details")
    profile = [card for model in key_figures(SECTIONS, read_runs([profiled])) for card in model.cards]
    assert text.count("<polyline") == 8 + sum(bool(card.course) for card in profile)


def test_a_profile_has_key_figures_over_depth(profiled):
    (model,) = key_figures(SECTIONS, read_runs([profiled]))
    values = profiled.records.filter(metric="anisotropy", rows="all").sort("value")
    peak = values.row(-1, named=True)
    card = model.cards[0]
    assert card.title == f"Anisotropy: highest at {peak['site']}"
    assert card.value == f"{peak['value']:.3g}"
    assert card.interval == f"[{peak['ci_low']:.3g}, {peak['ci_high']:.3g}]"
    assert [place for place, _ in card.course] in ([], [0, 1, 2, 3])
    assert [one.title.partition(":")[0] for one in model.cards] == [
        "Anisotropy",
        "Massive rows",
        "Intrinsic dimension",
        "Mean cosine",
    ]


def test_it_says_what_the_measurement_cost(run, page):
    text = page.read_text()
    told = re.findall(r"a-run, (decoder|encoder): (\d) due steps took", text)
    assert told == [("decoder", "3"), ("encoder", "3")]
    known = run.manifest["cost"]["decoder"]
    assert 0 < known["measuring_seconds"] < known["seconds"]


def test_what_a_report_cannot_answer_is_named_with_the_command_that_would(page):
    text = page.read_text()
    missing = text[text.index("What this report does not answer") :]
    assert "<code>tangentlens visibility MODEL</code>" in missing
    assert "<code>tangentlens profile MODEL</code>" not in missing


def test_names_from_outside_are_text_never_markup(run, tmp_path):
    evil = "</script><img src=x onerror=alert(1)>"
    records = [
        Record(
            model=evil,
            site=site,
            depth=depth,
            step=step,
            quantity=quantity,
            metric=metric,
            variant=variant,
            detail="proxy" if variant == "semi_nmf" else "",
            order=order,
            value=0.5,
            ci_low=0.4,
            ci_high=0.6,
            ci_over="sequences",
        )
        for step in (0, 1)
        for site, depth in ((evil, 0.0), ("b" + evil, 1.0), ("mean", None))
        for quantity, metric, variant, order in (
            ("activation", "anisotropy", "", None),
            ("gradient", "share", "semi_nmf", 1.0),
            ("gradient", "share", "random", 1.0),
            ("loss", "loss", "", None),
        )
    ]
    evil_run = create_run(tmp_path / "r<b>", {"text": evil})
    evil_run.write("a", records)
    page = write_report([evil_run, run], tmp_path / "evil.html", SECTIONS).path
    assert "<img" not in page.read_text().replace(plotly_js(), "")
    dom = browse(page.as_uri() + "#all", tmp_path / "profile", "--dump-dom").stdout
    assert "<img" not in re.sub(r"<script.*?</script>", "", dom, flags=re.DOTALL)


def test_several_runs_are_drawn_together(run, tmp_path):
    study = replace(TINY, steps=2, seed=1, models=("decoder",), sites=("resid.1",))
    other = run_train(study, tmp_path / "b-run")
    text = write_report([run, other], tmp_path / "both.html", SECTIONS).path.read_text()
    assert "a-run / decoder" in text
    assert "b-run / decoder" in text


def test_a_figure_without_its_data_skips_itself(tmp_path):
    run = create_run(tmp_path / "run", {})
    run.write("a", [Record(model="m", quantity="loss", metric="loss", value=1.0, step=s) for s in (0, 1)])
    assert [figure.title for figure in draw(SECTIONS, run.records)] == ["Training loss: m from 1.00 to 1.00"]
    write_report([run], tmp_path / "loss.html", SECTIONS)


def test_a_training_stopped_after_one_step_is_no_profile(run):
    first = draw(SECTIONS, run.records.filter(step=0))
    assert not any("over batches" in figure.caption for figure in first)
    assert any("Anisotropy over depth" in figure.title for figure in first)


def test_the_losses_of_an_audit_are_no_training(run):
    losses = [Record(model="m", quantity="loss", metric="loss", variant=v, value=1.0) for v in ("trained", "untrained")]
    figures = draw(SECTIONS, pl.concat([run.records, as_frame("audit", losses)]))
    assert "audit" not in next(figure.title for figure in figures if figure.title.startswith("Training loss"))


def test_sites_of_different_widths_have_a_table_of_the_last_step(tmp_path):
    model = tiny_model()
    with Lens(model, ["resid.1", "model.layers.0.mlp.up_proj"], rank=4, every=1, run=tmp_path / "run") as lens:
        for step in range(3):
            model(**tiny_batch(step)).loss.backward()
            lens.step()
    page = write_report([open_run(tmp_path / "run")], tmp_path / "page.html", SECTIONS)
    assert set(page.tables[0].frame["site"]) == {"resid.1", "model.layers.0.mlp.up_proj"}


def test_a_run_without_records_is_refused(tmp_path):
    with pytest.raises(InputError, match="nothing was measured yet"):
        write_report([create_run(tmp_path / "run", {})], tmp_path / "x.html", SECTIONS)


def test_error_bars_reach_from_the_lower_to_the_upper_end_of_the_interval(run):
    records = run.records.filter(metric="share", site="resid.1", freq_bin="all", variant="semi_nmf", order=1.0)
    line = next(t for t in share_over_depth(run.records).plot.data if t.name.startswith("tangent proxy"))
    place = list(line.x).index("resid.1")
    last = records.filter(step=2, model="decoder").row(0, named=True)
    assert line.y[place] + line.error_y.array[place] == pytest.approx(last["ci_high"])
    assert line.y[place] - line.error_y.arrayminus[place] == pytest.approx(last["ci_low"])


def test_the_title_counts_sites_by_the_lower_end(tmp_path):
    about = {"model": "m", "quantity": "gradient", "metric": "share", "order": 1.0}
    records = [
        Record(
            **about,
            site=f"resid.{i}",
            depth=i / 2,
            variant=variant,
            detail=detail,
            value=value,
            ci_low=low,
            ci_high=value,
        )
        for i, low in enumerate((0.1, 0.2, 0.2))
        for variant, detail, value, low in (("semi_nmf", "proxy", 0.3, low), ("random", "", 0.125, 0.125))
    ]
    assert "at 2 of 3 sites" in share_over_depth(as_frame("r", records)).title


def test_a_title_with_the_numbers_of_many_networks_is_no_heading(tmp_path):
    numbers = "; ".join(f"network-{i} from 6.20 to 6.10" for i in range(20))

    def long_title(_):
        return Figure(f"Training loss: {numbers}", "Lines: losses.", go.Figure())

    run = create_run(tmp_path / "run", {})
    run.write("one", [Record(model="m", metric="loss", value=1.0)])
    write_report(
        [run], tmp_path / "report.html", [Section("A question?", "a command", figures=(long_title,))], title="a study"
    )
    text = (tmp_path / "report.html").read_text()
    assert "<h1>a study</h1>" in text
    assert re.search(r"<h2[^>]*>Training loss</h2>", text)
    assert re.search(rf"<figcaption[^>]*>Lines: losses\. In numbers: {re.escape(numbers)}\.</figcaption>", text)


def test_figures_of_functions_with_one_name_are_two_figures(tmp_path):
    def same(_):
        return Figure("A title", "A caption", go.Figure(layout={"height": 300}))

    run = create_run(tmp_path / "run", {})
    run.write("one", [Record(model="m", metric="loss", value=1.0)])
    sections = [Section("One?", "a command", figures=(same,)), Section("Other?", "a command", figures=(same,))]
    text = write_report([run], tmp_path / "report.html", sections).path.read_text()
    assert re.findall(r'<div class="plot" id="([^"]+)"', text) == ["figure-same", "figure-same-2"]


def test_a_folder_is_not_a_report(run, tmp_path):
    with pytest.raises(InputError, match=r"must be a file, but .* is a folder"):
        write_report([run], tmp_path, SECTIONS)


def test_a_models_name_is_escaped_in_the_figure_of_a_profile(profiled):
    evil = profiled.records.with_columns(model=pl.lit("<img src=x>"))
    assert {trace.name for trace in profile_over_depth(evil).plot.data} == {"&lt;img src=x&gt;"}
