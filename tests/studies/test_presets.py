"""Presets: the table against published configurations, and runs in which some models cannot be had."""

import json
from dataclasses import replace

import pytest
import torch
import transformers

from tangentlens import InputError, open_run
from tangentlens.capture.stacks import find_stacks
from tangentlens.report.contents import find
from tangentlens.report.reading import read_runs
from tangentlens.studies import PROFILE, SECTIONS
from tangentlens.studies.profile import Profile, presets, run_profile, skipping
from tangentlens.studies.profile.expected import expected_seconds, forward_operations, memory_needed
from tangentlens.studies.profile.presets import PRESETS, Preset, PresetModel
from tiny import save_albert, save_tiny

PAPER = PRESETS["shape-of-learning"]
SMALL = {"batches": 2, "batch_tokens": 128, "length": 16}


def sized(vocabulary, width, layers, inner, heads, **more):
    return {
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "intermediate_size": inner,
        "num_attention_heads": heads,
    } | more


def opt(width, layers, heads):
    own = {"ffn_dim": 4 * width, "word_embed_proj_dim": width, "max_position_embeddings": 2048}
    return sized(50272, width, layers, 4 * width, heads) | own


def gpt(vocabulary, width, layers, heads, **more):
    return {"vocab_size": vocabulary, "n_embd": width, "n_layer": layers, "n_head": heads} | more


ROBERTA = {"max_position_embeddings": 514, "type_vocab_size": 1}
FALCON = {"multi_query": True, "parallel_attn": True, "bias": False, "alibi": False}
# The configurations that were published with the models, as far as they decide sizes.
PUBLISHED = {
    "BERT base": ("Bert", sized(30522, 768, 12, 3072, 12)),
    "BERT large": ("Bert", sized(30522, 1024, 24, 4096, 16)),
    "RoBERTa base": ("Roberta", sized(50265, 768, 12, 3072, 12, **ROBERTA)),
    "RoBERTa large": ("Roberta", sized(50265, 1024, 24, 4096, 16, **ROBERTA)),
    "ALBERT base": ("Albert", sized(30000, 768, 12, 3072, 12, embedding_size=128)),
    "ALBERT xxlarge": ("Albert", sized(30000, 4096, 12, 16384, 64, embedding_size=128)),
    "OPT 125M": ("OPT", opt(768, 12, 12)),
    "OPT 1.3B": ("OPT", opt(2048, 24, 32)),
    "OPT 6.7B": ("OPT", opt(4096, 32, 32)),
    "Llama-2 7B": ("Llama", sized(32000, 4096, 32, 11008, 32)),
    "GPT-2": ("GPT2", gpt(50257, 768, 12, 12)),
    "GPT-2 XL": ("GPT2", gpt(50257, 1600, 48, 25)),
    "GPT-J 6B": ("GPTJ", gpt(50400, 4096, 28, 16, rotary_dim=64)),
    "Falcon 7B": ("Falcon", sized(65024, 4544, 32, 18176, 71, **FALCON)),
    "Pythia 160M": ("GPTNeoX", sized(50304, 768, 12, 3072, 12)),
    "Pythia 410M": ("GPTNeoX", sized(50304, 1024, 24, 4096, 16)),
    "Pythia 1.4B": ("GPTNeoX", sized(50304, 2048, 24, 8192, 16)),
    "Pythia 6.9B": ("GPTNeoX", sized(50432, 4096, 32, 16384, 32)),
    "EuroBERT 210M": ("EuroBert", sized(128256, 768, 12, 3072, 12, num_key_value_heads=12)),
    "EuroBERT 610M": ("EuroBert", sized(128256, 1152, 26, 4096, 18, num_key_value_heads=6)),
    "SmolLM2 135M": ("Llama", sized(49152, 576, 30, 1536, 9, num_key_value_heads=3)),
    "SmolLM2 360M": ("Llama", sized(49152, 960, 32, 2560, 15, num_key_value_heads=5)),
    "SmolLM2 1.7B": ("Llama", sized(49152, 2048, 24, 8192, 32)),
}


@pytest.mark.parametrize("model", PAPER.models, ids=lambda model: model.name)
def test_sizes_are_those_of_the_published_configuration(model):
    """Counted on a model without memory: all parameters, and those of matrices each time that a block runs."""
    family, settings = PUBLISHED[model.name]
    with torch.device("meta"):
        made = getattr(transformers, f"{family}Model")(getattr(transformers, f"{family}Config")(**settings))
    blocks = find_stacks(made)[0].blocks
    assert sum(weight.numel() for weight in made.parameters()) == model.parameters
    multiplied = sum(weight.numel() for block in blocks for weight in block.last.parameters() if weight.ndim == 2)
    assert multiplied == model.multiplied
    assert (made.config.hidden_size, len(blocks)) == (model.width, model.layers)


def test_revisions_are_whole_commits_or_names():
    assert len({model.name for model in PAPER.models}) == len(PAPER.models)
    for model in PAPER.models:
        named = model.revision == "main" or model.revision.startswith("step")
        assert named or (len(model.revision) == 40 and int(model.revision, 16) > 0)
    families = ["BERT", "RoBERTa", "ALBERT", "OPT", "Llama-2", "GPT-2", "GPT-J", "Falcon"]
    for family in [*families, "Pythia", "EuroBERT", "SmolLM2"]:
        assert any(model.name.startswith(family) for model in PAPER.models)
    assert [model.name for model in PAPER.models if model.gated] == ["Llama-2 7B"]


def test_expected_costs_grow_with_what_is_done():
    model, plan = PAPER.models[0], Profile(preset="shape-of-learning")
    assert forward_operations(model, plan) == 2 * 84_934_656 * 20_480
    assert expected_seconds(model, replace(plan, batches=10)) == pytest.approx(2 * expected_seconds(model, plan))
    assert expected_seconds(replace(model, layers=25), plan) > 1.3 * expected_seconds(model, plan)
    assert memory_needed(model, plan) - memory_needed(model, replace(plan, dtype="float16")) == 2 * model.parameters


def toy(name, spec, parameters=1000, **more):
    return PresetModel(name, str(spec), "main", parameters, parameters, 32, 3, **more)


def make_folder(path):
    path.mkdir()
    return path


@pytest.fixture
def preset(tmp_path, monkeypatch):
    """A preset of directories: ALBERT, a decoder, and two that are not there."""
    monkeypatch.setattr(PresetModel, "spec", property(lambda self: self.hub_id))
    models = (
        toy("ALBERT", save_albert(tmp_path / "albert"), 1000),
        toy("lost", tmp_path / "lost", 2000),
        toy("decoder", save_tiny(tmp_path / "decoder"), 3000),
        toy("locked", make_folder(tmp_path / "locked"), 4000, gated=True),
    )
    monkeypatch.setitem(presets.PRESETS, "toys", Preset("toys", "Toys.", models))
    return tmp_path


def test_what_cannot_be_had_is_skipped_by_name(preset):
    told = []
    run = run_profile(Profile(preset="toys", **SMALL), preset / "run", told.append)
    assert set(run.manifest["models"]) == {"ALBERT", "decoder"}
    assert set(run.manifest["skipped"]) == {"lost", "locked"}
    assert "there is no directory" in run.manifest["skipped"]["lost"]
    gated = f"it is gated, and access must be granted on the hub first; {preset / 'locked'} cannot be loaded: "
    assert run.manifest["skipped"]["locked"].startswith(gated)
    records = run.records
    assert records.filter(metric="unmeasured")["model"].sort().to_list() == ["locked", "lost"]
    assert records.filter(metric="anisotropy", model="ALBERT")["site"].n_unique() == 4
    notes = {progress.task: progress.note for progress in told if progress.note.startswith("skipped: ")}
    assert notes.keys() == {"lost", "locked"}
    findings = {found.model: found.text for found in find(SECTIONS, read_runs([run])) if "could not" in found.text}
    assert findings.keys() == {"lost", "locked"}
    assert findings["lost"].startswith("This model could not be measured. First reason: MODEL must be")


def test_a_skipped_model_is_tried_again_and_a_measured_one_is_not(preset, monkeypatch):
    plan = Profile(preset="toys", **SMALL)
    run = run_profile(plan, preset / "run")
    before = run.records.filter(model="ALBERT")
    save_tiny(preset / "lost")
    (preset / "decoder" / "model.safetensors").unlink()
    again = []
    run_profile(plan, preset / "run", again.append)
    assert {progress.task for progress in again} == {"toys", "lost", "locked"}
    assert set(run.manifest["skipped"]) == {"locked"}
    assert run.records.filter(metric="unmeasured")["model"].to_list() == ["locked"]
    assert run.records.filter(metric="anisotropy", model="lost", site="resid.0").height == 1
    assert run.records.filter(model="ALBERT").equals(before)


def test_an_interrupted_preset_continues(preset):
    plan = Profile(preset="toys", **SMALL)

    def stop(progress):
        if progress.task == "decoder" and progress.done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_profile(plan, preset / "run", stop)
    assert set(open_run(preset / "run").manifest["skipped"]) == {"lost"}
    again = []
    run = run_profile(plan, preset / "run", again.append)
    assert "ALBERT" not in {progress.task for progress in again}
    whole = run_profile(plan, preset / "whole")
    key = ["model", "site", "metric", "variant", "rows"]
    assert run.records.drop("run").sort(key).equals(whole.records.drop("run").sort(key))


def test_a_model_that_does_not_fit_is_not_loaded(preset, monkeypatch):
    monkeypatch.setattr(skipping, "free_memory", lambda device: memory_needed(presets.PRESETS["toys"].models[0], plan))
    plan = Profile(preset="toys", dtype="float32", **SMALL)
    run = run_profile(plan, preset / "run")
    assert set(run.manifest["models"]) == {"ALBERT"}
    assert "GiB of memory, and" in run.manifest["skipped"]["decoder"]


def test_if_none_can_be_had_that_is_an_error_and_the_folder_stays_free(preset, monkeypatch):
    monkeypatch.setattr(skipping, "free_memory", lambda device: 0)
    with pytest.raises(InputError, match="toys must have a model that can be had here, but none of 4 can; ALBERT: it"):
        run_profile(Profile(preset="toys", dtype="float32", **SMALL), preset / "run")
    monkeypatch.undo()
    run_profile(Profile(models=(str(preset / "albert"),), **SMALL), preset / "run")


def test_a_model_that_the_user_names_must_be_had_before_anything_is_measured(preset):
    models = (str(preset / "albert"), str(preset / "none"))
    for plan in (Profile(models=models, **SMALL), Profile(models=models[1:], preset="toys", **SMALL)):
        with pytest.raises(InputError, match="there is no directory"):
            run_profile(plan, preset / "run")
        assert not (preset / "run").exists()


def test_models_of_ones_own_join_a_preset(preset):
    own = save_tiny(preset / "own" / "decoder")
    run = run_profile(Profile(models=(str(own),), preset="toys", up_to=2.5e-6, **SMALL), preset / "run")
    assert set(run.manifest["models"]) == {"decoder", "ALBERT"}
    assert set(run.manifest["skipped"]) == {"lost"}
    both = run_profile(Profile(models=(str(own),), preset="toys", **SMALL), preset / "both")
    assert set(both.manifest["models"]) == {str(own), "decoder", "ALBERT"}


def test_bad_presets_say_what_to_do():
    with pytest.raises(InputError, match="a preset must be one of shape-of-learning, but is 'shape-of-learnin'"):
        Profile(preset="shape-of-learnin")
    with pytest.raises(
        InputError, match=r"up_to must leave a model, but is 0\.001 billion parameters; choose at least"
    ):
        Profile(preset="shape-of-learning", up_to=0.001)
    with pytest.raises(InputError, match="up_to must come with a preset"):
        Profile(models=("a",), up_to=1.0)
    with pytest.raises(InputError, match="a model or a preset must be named"):
        Profile()


def test_default_folders_are_named_after_what_is_looked_at():
    assert PROFILE.folder(Profile(models=("a/b", "c"))).name == "profile-b-c"
    plan = Profile(models=("a/b",), preset="shape-of-learning", up_to=1.5)
    assert PROFILE.folder(plan).name == "profile-shape-of-learning-up-to-1.5-b"


def test_a_run_from_before_there_were_presets_continues(tmp_path):
    plan = Profile(models=(str(save_tiny(tmp_path / "tiny")),), **SMALL)
    run = run_profile(plan, tmp_path / "run")
    manifest = json.loads((run.path / "manifest.json").read_text())
    manifest["config"] = {key: value for key, value in manifest["config"].items() if key not in ("preset", "up_to")}
    (run.path / "manifest.json").write_text(json.dumps(manifest))
    done = []
    run_profile(plan, tmp_path / "run", done.append)
    assert not done
