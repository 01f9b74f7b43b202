import polars as pl
import pytest
import torch
from transformers import AutoModel, AutoModelForCausalLM, BertConfig, BertModel

from tangentlens import InputError, Lens, Subspace, open_run, share
from tangentlens.capture.backward import gradients
from tangentlens.capture.sites import find_sites
from tangentlens.corpora.windows import Text, windows
from tangentlens.models.load import load_language_model
from tangentlens.models.small import weight_hash
from tangentlens.report.page import write_report
from tangentlens.runs.records import KEY
from tangentlens.studies import SECTIONS
from tangentlens.studies.audit import NULLS, AuditPlan, run_audit
from tangentlens.studies.train import run_train
from tiny import TINY, save_tiny, tiny_batch, tiny_model

SMALL = {"rank": 4, "tokens": 640, "length": 16}


def quiet(*_):
    pass


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return run_train(TINY, tmp_path_factory.mktemp("audited") / "study", quiet)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("audited") / "decoder")


@pytest.fixture(scope="module")
def plan(study):
    return AuditPlan(str(study.path), rank=4, tokens=640)


@pytest.fixture(scope="module")
def whole(plan, tmp_path_factory):
    return run_audit(plan, tmp_path_factory.mktemp("audited") / "whole", quiet)


def test_a_study_is_audited_beside_its_nulls_and_its_earlier_proxies(whole):
    pages = whole.manifest["audits"]
    assert set(pages) == {"decoder at resid.1", "encoder at resid.1"}
    for page in pages.values():
        names = [check["name"] for check in page["checks"]]
        of_nulls = [f"{what} {null}" for null in NULLS for what in ("against", "active concepts of")]
        assert names[-5:] == [*of_nulls, "fitted elsewhere"]
        told = next(check["found"] for check in page["checks"] if check["name"] == "fitted elsewhere")
        assert all(f"step {step} 0." in told for step in TINY.schedule())
    records = whole.records
    assert not records.select(KEY).is_duplicated().any()
    assert set(records["step"]) == {TINY.steps}
    assert {"share", "token_share", "log_ratio", "p_value", "audit/verdict", "audit/charts"} <= set(records["metric"])
    losses = records.filter(metric="loss", model="decoder")
    assert set(losses["variant"]) == {"trained", "untrained", "shuffled labels"}


def test_the_report_has_every_number_of_the_audit(whole, tmp_path):
    page = write_report([whole], tmp_path / "page.html", SECTIONS)
    tables = {table.title: table.frame for table in page.tables}
    numbers = tables["decoder at resid.1: every number of the audit"]
    records = whole.records.filter(pl.col("metric").str.starts_with("audit/"), model="decoder", site="resid.1")
    assert numbers.height == records.height - 1, "all but the verdict"
    assert {"local tangents", "charts", "stability"} <= set(numbers["check"])
    assert any("Audit at resid.1: the gradients are" in finding.text for finding in page.findings)


def test_it_goes_on_where_it_stopped(plan, whole, tmp_path):
    """After one model and the losses of the other."""
    stopped = tmp_path / "stopped"

    def stop(progress):
        if progress.task == "encoder" and progress.note == "resid.1":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_audit(plan, stopped, stop)
    kept = {part: part.stat().st_mtime_ns for part in (stopped / "records").iterdir()}
    assert kept
    again = run_audit(plan, stopped, quiet)
    assert all(part.stat().st_mtime_ns == when for part, when in kept.items())
    key = ["model", "site", "metric", "variant", "order", "freq_bin"]
    drop = again.records.drop("run").sort(key), whole.records.drop("run").sort(key)
    assert drop[0].equals(drop[1])


def test_a_models_share_is_that_of_gradients_taken_by_hand(decoder, tmp_path):
    run = run_audit(AuditPlan(str(decoder), sites=("resid.2",), **SMALL), tmp_path / "audit", quiet)
    model = AutoModelForCausalLM.from_pretrained(decoder).eval()
    # Any subspace of the first half's activations would do; the leading one is easy to find by hand.
    batches = _batches(decoder)
    kept = []
    hidden = {}
    model.model.layers[1].register_forward_hook(lambda module, args, out: hidden.__setitem__("x", out))
    for tokens in batches.split(16):
        loss = model(input_ids=tokens, labels=tokens).loss
        x = hidden["x"] if isinstance(hidden["x"], torch.Tensor) else hidden["x"][0]
        kept.append((x.detach(), torch.autograd.grad(loss, x)[0]))
    x, g = (torch.cat([pair[i] for pair in kept]) for i in (0, 1))
    half = len(x) // 2
    fit = x[:half].flatten(0, 1).double()
    leading = torch.linalg.svd(fit - fit.mean(dim=0), full_matrices=False).Vh[:4]
    expected = share(g[half:].flatten(0, 1), Subspace.span(leading))
    found = run.records.filter(metric="share", variant="pca", order=1.0, freq_bin="all")["value"].item()
    assert found == pytest.approx(expected, rel=1e-4)


def _batches(folder):
    loaded = load_language_model(str(folder))
    source = windows(Text(), loaded.encode, 16, 0)
    return torch.stack([next(source) for _ in range(40)])


def test_a_missing_head_is_refused_or_trained_and_nothing_else_is(tmp_path):
    folder = save_tiny(tmp_path / "encoder", specials=True, kind="encoder")
    shape = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    body = BertModel(BertConfig(vocab_size=400, max_position_embeddings=64, **shape))
    body.save_pretrained(folder)
    assert len(load_language_model(str(folder)).not_loaded) > 0
    with pytest.raises(InputError, match="fit_head=200 trains these alone"):
        run_audit(AuditPlan(str(folder), **SMALL), tmp_path / "refused", quiet)
    before = weight_hash(body)
    losses = []

    def listen(progress):
        if progress.note.startswith("head, loss"):
            losses.append(float(progress.note.rsplit(" ", 1)[1]))

    run = run_audit(AuditPlan(str(folder), fit_head=30, **SMALL), tmp_path / "fitted", listen)
    assert not (tmp_path / "refused").exists()
    assert len(losses) == 30
    assert sum(losses[-5:]) < sum(losses[:5])
    assert weight_hash(AutoModel.from_pretrained(folder)) == before
    again = run_audit(AuditPlan(str(folder), fit_head=30, **SMALL), tmp_path / "again", quiet)
    assert again.manifest["audits"] == run.manifest["audits"]


def test_gradients_leave_the_weights_as_they_are():
    model = tiny_model().eval()
    before = weight_hash(model)
    found, loss = gradients(model, [tiny_batch(0), tiny_batch(1)], find_sites(model, "resid"), "causal")
    with torch.no_grad():
        assert loss == pytest.approx(sum(float(model(**tiny_batch(seed)).loss) for seed in (0, 1)) / 2)
    assert weight_hash(model) == before
    assert all(parameter.grad is None for parameter in model.parameters())
    assert {len(rows.gradients) for rows in found.values()} == {2 * 8 * 12}
    assert found["resid.1"].sequences.unique(return_counts=True)[1].tolist() == [12] * 16


def test_what_cannot_be_audited_says_why(tmp_path, study, decoder):
    model = tiny_model()
    with Lens(model, "resid.1", rank=4, every=1, run=tmp_path / "lens") as lens:
        model(**tiny_batch()).loss.backward()
        lens.step()
    with pytest.raises(InputError, match="must be a run that holds its model"):
        run_audit(AuditPlan(str(tmp_path / "lens")), tmp_path / "x", quiet)
    with pytest.raises(InputError, match="MODEL must be a directory that exists or a hub id"):
        run_audit(AuditPlan(str(tmp_path / "none")), tmp_path / "x", quiet)
    short = tmp_path / "short.txt"
    short.write_text("too short a text")
    with pytest.raises(InputError, match="at least 4 windows of 16 tokens, but gives"):
        run_audit(AuditPlan(str(decoder), text=str(short), **SMALL), tmp_path / "x", quiet)
    assert open_run(study.path).records.filter(pl.col("metric").str.starts_with("audit")).is_empty()
