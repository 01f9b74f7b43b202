import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

import tangentlens as tl
from tangentlens.corpora.text import builtin_text
from tangentlens.models.load import load_model
from tangentlens.studies.profile import Profile, run_profile
from tangentlens.studies.tangent import TestPlan, run_test
from tiny import save_tiny


class Plain(nn.Module):
    """A decoder as people write one: called with token ids, and without a configuration."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(50, 16)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True) for _ in range(3))
        self.head = nn.Linear(16, 50)

    def forward(self, x, targets=None):
        x = self.tokens(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


SMALL = {"batches": 2, "batch_tokens": 128, "length": 16}
FEW = {"tokens": 512, "length": 16, "rank": 4, "sites": "resid.1"}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(save_tiny(tmp_path_factory.mktemp("models") / "tiny", specials=True))


def numbers(run):
    return run.records.drop("run", "model", "revision")


def test_a_live_model_a_directory_and_the_command_give_the_same_numbers(tiny, tmp_path):
    expected = run_profile(Profile(models=(tiny,), **SMALL), tmp_path / "plan")
    named = tl.profile(tiny, out=tmp_path / "named", **SMALL)
    model, tokenizer = AutoModel.from_pretrained(tiny).train(), AutoTokenizer.from_pretrained(tiny)
    live = tl.profile(model, builtin_text(), tokenizer=tokenizer, name="mine", out=tmp_path / "live", **SMALL)
    assert numbers(named.run).equals(numbers(expected))
    assert numbers(live.run).equals(numbers(expected))
    assert live.run.records["model"].unique().to_list() == ["mine"]


def test_gradients_of_a_live_model_are_those_of_the_command_and_the_model_stays_as_it_was(tiny, tmp_path):
    expected = run_test(TestPlan(model=tiny, **FEW), tmp_path / "plan")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny).train(), AutoTokenizer.from_pretrained(tiny)
    model.lm_head.weight.grad = torch.ones_like(model.lm_head.weight)
    random = torch.random.get_rng_state()
    live = tl.model_test(model, tokenizer=tokenizer, out=tmp_path / "live", **FEW)
    assert numbers(live.run).equals(numbers(expected))
    assert all(module.training for module in model.modules())
    assert all(weight.requires_grad for weight in model.parameters())
    assert [name for name, weight in model.named_parameters() if weight.grad is not None] == [
        "model.embed_tokens.weight"
    ]
    assert bool((model.lm_head.weight.grad == 1).all())
    assert torch.equal(random, torch.random.get_rng_state())
    assert live.run.manifest["models"]["LlamaForCausalLM"]["kind"] == "decoder"


def test_an_audit_of_a_live_model(tiny, tmp_path):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny), AutoTokenizer.from_pretrained(tiny)
    result = tl.model_audit(model, tokenizer=tokenizer, out=tmp_path / "live", **FEW | {"tokens": 768})
    assert any("Audit at resid.1" in text for text in result.findings)


def test_sentences_about_nulls_say_whose_they_are(tiny, tmp_path):
    alone = tl.model_test(tiny, out=tmp_path / "alone", **FEW)
    assert not any(text.startswith("tiny: ") for text in alone.findings)
    beside = tl.model_test(tiny, out=tmp_path / "beside", nulls=True, **FEW)
    whose = {text.partition(": ")[0] for text in beside.findings}
    assert {"tiny (shuffled labels)", "tiny (untrained)"} < whose


def test_token_ids_stand_for_text_and_a_model_need_not_be_of_hugging_face(tmp_path):
    model = Plain()
    ids = torch.randint(0, 50, (4000,), generator=torch.Generator().manual_seed(0))
    result = tl.profile(model, ids, out=tmp_path / "run", **SMALL)
    assert result.table["site"].to_list() == ["resid.0", "resid.1", "resid.2", "resid.3"]
    rows = result.run.records.filter(metric="anisotropy", site="resid.1")
    assert rows["n"].to_list() == [256]
    assert result.run.manifest["data"]["bytes"] == len(" ".join(map(str, ids.tolist())))
    with pytest.raises(tl.InputError, match="was made from another text"):
        tl.profile(model, ids.flip(0), out=tmp_path / "run", **SMALL)
    named = {"resid.0": "tokens", "resid.1": "blocks.0", "resid.2": "blocks.2"}
    own = tl.profile(model, ids, out=tmp_path / "own", sites=named, **SMALL).run.records.filter(metric="anisotropy")
    assert own["value"].to_list()[:2] == result.run.records.filter(metric="anisotropy")["value"].to_list()[:2]
    again = tl.profile(model, ids, out=tmp_path / "run", **SMALL)
    assert again.run.records.equals(result.run.records)


def test_a_result_has_a_table_a_figure_and_its_run_and_shows_itself(tiny, tmp_path):
    result = tl.profile(tiny, out=tmp_path / "<run>", **SMALL)
    assert result.table["site"].to_list() == ["resid.0", "resid.1", "resid.2", "resid.3"]
    assert result.figure.data
    assert result.findings[0] in repr(result)
    shown = result._repr_html_()
    assert shown.count("Plotly.newPlot(") == len(result.figures)
    # They are as wide as the cell, and not cut.
    assert shown.count('"responsive": true') == len(result.figures)
    assert "resid.3" in shown
    assert "<run>" not in shown
    assert result.report().path == tmp_path / "<run>" / "report.html"


def test_what_does_not_go_together_is_refused(tiny, tmp_path):
    model = load_model(tiny).model
    with pytest.raises(tl.InputError, match="a module must come with its tokenizer"):
        tl.profile(model, "some text", out=tmp_path / "run")
    with pytest.raises(tl.InputError, match="token ids as text need a module"):
        tl.profile(tiny, [1, 2, 3], out=tmp_path / "run")
    with pytest.raises(tl.InputError, match="integers of at least 0"):
        tl.profile(model, torch.zeros(3), out=tmp_path / "run")
    with pytest.raises(tl.InputError, match=r"no torch\.nn\.Embedding"):
        tl.profile(torch.nn.Linear(2, 2), [1, 2], out=tmp_path / "run")
    with pytest.raises(tl.InputError, match="integers of at least 0"):
        tl.profile(model, ["a text"], out=tmp_path / "run")
    with pytest.raises(tl.InputError, match="must be a tokenizer, but is 'gpt2'"):
        tl.profile(model, "some text", tokenizer="gpt2", out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("function", [tl.profile, tl.model_test, tl.model_audit, tl.sweep])
def test_settings_that_do_not_exist_or_are_no_numbers_are_told(function, tiny, unchecked):
    with pytest.raises(tl.InputError, match=r"one of .*skip_first, .*but is 'lenght'; did you mean length\?"):
        function(tiny, lenght=3)
    with pytest.raises(tl.InputError, match="length must be a whole number of at least 2, but is '16'"):
        function(tiny, length="16")


def random_ids(below):
    return torch.randint(0, below, (4000,), generator=torch.Generator().manual_seed(0))


class Learned(nn.Module):
    """A decoder with learned positions, which is called by the names that Hugging Face has."""

    def __init__(self):
        super().__init__()
        self.body, self.places = Plain(), nn.Embedding(16, 16)

    def forward(self, input_ids, labels=None):
        self.places(torch.arange(input_ids.shape[1]))
        logits = self.body(input_ids)
        return logits if labels is None else SimpleNamespace(loss=nn.functional.cross_entropy(logits[0], labels[0]))


@pytest.mark.parametrize("function", [tl.model_test, tl.model_audit])
@pytest.mark.parametrize(
    ("make", "came"),
    [
        (lambda tiny: Plain(), "Plain must return an output with a `loss`.* but cannot be called so; load"),
        (lambda tiny: AutoModel.from_pretrained(tiny), "returns BaseModelOutputWithPast without one; load"),
    ],
)
def test_a_model_that_returns_no_loss_is_told(function, make, came, tiny, tmp_path):
    with pytest.raises(tl.InputError, match=came):
        function(make(tiny), random_ids(50), out=tmp_path / "run", **FEW)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(("function", "settings"), [(tl.profile, SMALL), (tl.model_test, FEW)])
def test_ids_beyond_the_vocabulary_and_windows_beyond_the_context_are_told(function, settings, tiny, tmp_path):
    known = AutoModelForCausalLM.from_pretrained(tiny)
    with pytest.raises(tl.InputError, match="must be below 400, the number of its embeddings, but the text has 4"):
        function(known, random_ids(500), out=tmp_path / "run", **settings)
    with pytest.raises(tl.InputError, match=r"here with ids up to 59, but raised: index out of range.*pass ids below"):
        function(Learned(), random_ids(60), out=tmp_path / "run", **settings)
    with pytest.raises(tl.InputError, match=r"windows of 32 tokens.*index out of range.*choose a smaller length"):
        function(Learned(), random_ids(50), out=tmp_path / "run", **settings | {"length": 32})
    assert not (tmp_path / "run").exists()
    assert function(Learned(), random_ids(50), out=tmp_path / "run", **settings).run.records.height


def test_a_model_of_hugging_face_sees_no_more_than_its_context_at_once(tiny, tmp_path):
    result = tl.profile(
        AutoModel.from_pretrained(tiny), random_ids(50), out=tmp_path / "run", **SMALL | {"length": 999}
    )
    assert result.run.manifest["models"]["LlamaModel"]["window"] == 64


def test_an_audit_needs_what_makes_an_untrained_twin(tmp_path):
    with pytest.raises(tl.InputError, match="must have a `config` from which its class makes an untrained twin"):
        tl.model_audit(Learned(), random_ids(50), out=tmp_path / "run", **FEW)


def test_a_file_is_named_by_a_path(tiny, tmp_path):
    (tmp_path / "my.txt").write_text(builtin_text()[:20000])
    result = tl.profile(tiny, tmp_path / "my.txt", out=tmp_path / "run", **SMALL)
    assert json.loads((result.run.path / "manifest.json").read_text())["config"]["text"] == str(tmp_path / "my.txt")
