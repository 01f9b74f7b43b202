"""Input that cannot be used, as the command line meets it: one line that says what to do; what was measured stays."""

import contextlib
import shutil

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, T5Config, T5ForConditionalGeneration

from tangentlens import open_run
from tangentlens.models import memory
from test_cli import fails, tangentlens
from tiny import save_tiny

COMMANDS = ("profile", "test", "audit", "visibility")
QUICK = {
    "profile": ("--batches", 2, "--batch-tokens", 256),
    "test": ("--tokens", 256, "--rank", 4),
    "audit": ("--tokens", 512, "--rank", 4),
    "visibility": ("--types", 128, "--anchors", 8, "--dimension", 1),
}


def quick(command, model, tmp_path, *more):
    return (command, model, "--out", tmp_path / "run", "--length", 16, "--sites", "resid.1", *QUICK[command], *more)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return save_tiny(tmp_path_factory.mktemp("bad") / "tiny")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_without_tokenizer_is_told_and_another_may_be_named(command, tiny, tmp_path):
    config = BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, vocab_size=400)
    BertForMaskedLM(config).save_pretrained(tmp_path / "bert")
    fails(1, *quick(command, tmp_path / "bert", tmp_path), says="there is no tokenizer here")
    assert not (tmp_path / "run").exists()
    larger = save_tiny(tmp_path / "larger", vocabulary=500)
    named = quick(command, tmp_path / "bert", tmp_path, "--tokenizer", larger)
    fails(1, *named, says="500 tokens, with ids up to 499, and the model has 400 embeddings")


def test_it_is_audited_with_a_tokenizer_from_elsewhere(tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "checkpoint-500", ignore=shutil.ignore_patterns("tokenizer*"))
    done = tangentlens(*quick("audit", tmp_path / "checkpoint-500", tmp_path, "--tokenizer", tiny, "--quiet"))
    assert done.returncode == 0, done.stderr
    assert open_run(tmp_path / "run").manifest["config"]["tokenizer"] == str(tiny)


@pytest.mark.parametrize("command", COMMANDS)
def test_other_formats_than_safetensors_are_told_with_a_command(command, tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save({}, tmp_path / "model" / "pytorch_model.bin")
    fails(1, *quick(command, tmp_path / "model", tmp_path), says="M.from_pretrained('")
    (tmp_path / "model" / "model.gguf").write_bytes(b"GGUF")
    for model in (tmp_path / "model", tmp_path / "model" / "model.gguf"):
        fails(1, *quick(command, model, tmp_path), says="gguf_file=")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_short_text_is_told_before_anything_is_measured(command, tiny, tmp_path):
    (tmp_path / "short.txt").write_text("a short text of a few words only, " * 2)
    says = "64 token types" if command == "visibility" else "the text must give at least"
    fails(1, *quick(command, tiny, tmp_path, "--text", tmp_path / "short.txt"), says=says)
    written = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert [path.name for path in written] in ([], ["manifest.json"])


@pytest.mark.parametrize("command", ["test", "audit"])
@pytest.mark.parametrize("rank", [17, 32])
def test_a_rank_that_the_width_cannot_hold(command, rank, tiny, tmp_path):
    says = f"half the width of every site, but is {rank}, and the stream of tiny is 32 wide"
    fails(1, *quick(command, tiny, tmp_path, "--rank", rank), says=says)
    assert not (tmp_path / "run").exists()


def test_a_rank_that_the_demo_cannot_hold(tmp_path):
    fails(1, "demo", "--rank", 128, "--out", tmp_path / "run", says="half the width, 64, but is 128")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("command", ["test", "audit"])
def test_an_encoder_decoder_is_refused_before_its_weights_are_read(command, tiny, tmp_path):
    shutil.copytree(tiny, tmp_path / "t5")
    (tmp_path / "t5" / "config.json").unlink()
    config = T5Config(d_model=32, num_layers=2, num_heads=2, d_kv=16, vocab_size=400)
    T5ForConditionalGeneration(config).save_pretrained(tmp_path / "t5")
    (tmp_path / "t5" / "model.safetensors").write_bytes(b"not weights")
    fails(1, *quick(command, tmp_path / "t5", tmp_path), says="must be an encoder or a decoder")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_model_that_does_not_fit(command, tiny, tmp_path, monkeypatch):
    (tmp_path / "meminfo").write_text("MemAvailable: 64 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    fails(1, *quick(command, tiny, tmp_path), says="GiB are free on cpu; use --dtype bfloat16")


def test_memory_that_runs_out_in_the_middle(tiny, tmp_path, monkeypatch):
    def watch(progress):
        if progress.done == 3:
            # Nobody has so much: the allocator itself raises.
            torch.empty(2**60)

    monkeypatch.setattr("tangentlens.cli.making.progress_bars", lambda *_: contextlib.nullcontext(watch))
    command = (*quick("profile", tiny, tmp_path), "--sites", "resid.1,resid.2")
    done = fails(1, *command, says="memory ran out")
    assert f"what was measured stays in {tmp_path / 'run'}" in done.stderr
    assert "--batch-tokens 2048" in done.stderr
    measured = [path for folder in ("records", "tensors") for path in (tmp_path / "run" / folder).iterdir()]
    assert measured
    monkeypatch.undo()
    before = {path: path.stat().st_mtime_ns for path in measured}
    assert tangentlens(*command, "--quiet").returncode == 0
    assert before == {path: path.stat().st_mtime_ns for path in before}
