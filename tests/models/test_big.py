"""Models that are large for the machine: one copy of the weights, or a refusal with the numbers."""

from pathlib import Path

import pytest
import safetensors.torch
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tangentlens import InputError
from tangentlens.models import loading, memory
from tangentlens.models.load import load_language_model, load_model
from tangentlens.models.loading import Loading
from tangentlens.models.small import weight_hash
from tiny import save_tiny

STATUS = Path("/proc/self/status")


def memory_of_this_process(field):
    return next(int(line.split()[1]) * 1024 for line in STATUS.read_text().splitlines() if line.startswith(field))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return str(save_tiny(tmp_path_factory.mktemp("big") / "tiny"))


@pytest.fixture
def little(tmp_path, monkeypatch):
    """A machine with 64 KiB of free memory; the tiny model has 207 KiB of weights."""
    (tmp_path / "meminfo").write_text("MemAvailable: 64 kB\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    return tmp_path


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from Linux' /proc")
def test_a_model_in_shards_is_in_memory_once_in_its_own_dtype(tmp_path):
    folder = save_tiny(tmp_path / "model")
    (folder / "model.safetensors").unlink()
    shape = {"hidden_size": 512, "intermediate_size": 2048, "num_attention_heads": 8, "num_hidden_layers": 8}
    with torch.device("meta"):
        large = LlamaForCausalLM(LlamaConfig(vocab_size=400, tie_word_embeddings=True, **shape)).bfloat16()
    large.to_empty(device="cpu").save_pretrained(folder, max_shard_size="20MB")
    del large
    assert len(list(folder.glob("*.safetensors"))) > 3
    # From here on, the peak is counted anew.
    Path("/proc/self/clear_refs").write_text("5")
    before = memory_of_this_process("VmRSS")
    model = load_model(str(folder), Loading(dtype="bfloat16")).model
    for weight in model.parameters():
        # A forward pass touches all of them.
        weight.view(torch.int16).max()
    size = sum(weight.nbytes for weight in model.parameters())
    assert size > 60e6
    # In float32 it was 3.
    assert 0.8 < (memory_of_this_process("VmHWM") - before) / size < 1.25


def test_the_dtype_is_that_of_the_checkpoint_except_for_gradients_and_on_the_cpu(tmp_path):
    folder = save_tiny(tmp_path / "tiny")
    LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    assert load_model(str(folder)).facts == {"kind": "decoder", "device": "cpu", "dtype": "float32"}
    assert load_model(str(folder), Loading(dtype="bfloat16")).facts["dtype"] == "bfloat16"
    assert load_language_model(str(folder)).facts["dtype"] == "float32"
    # Meta stands for any device that is not the CPU; such a model keeps the format of its checkpoint.
    assert [Loading(device).format for device in ("meta", "cpu")] == ["auto", "float32"]
    spread = load_model(str(folder), Loading(device_map="auto"))
    assert spread.facts["dtype"] == "bfloat16"


@pytest.mark.parametrize("load", [load_model, load_language_model])
def test_a_model_larger_than_memory_is_refused_before_any_weight_is_read(tiny, little, load):
    Path(tiny, "model.safetensors").rename(little / "away.safetensors")
    safetensors.torch.save_file({}, Path(tiny, "model.safetensors"))
    try:
        with pytest.raises(
            InputError, match=r"its 5\.3e-05 billion weights in float32 need 0\.0 GiB, and 0\.0 GiB are"
        ):
            load(tiny)
    finally:
        (little / "away.safetensors").rename(Path(tiny, "model.safetensors"))


def test_what_is_needed_depends_on_the_dtype_and_the_number_of_copies(tiny, little):
    (little / "meminfo").write_text("MemAvailable: 128 kB\n")
    load_model(tiny, Loading(dtype="bfloat16"))
    with pytest.raises(InputError, match="in float32 need"):
        load_model(tiny)
    with pytest.raises(InputError, match="in bfloat16, 2 times need"):
        load_language_model(tiny, Loading(dtype="bfloat16"), copies=2)


def test_a_device_map_runs_what_does_not_fit_from_disk(tiny, little):
    tokens = torch.arange(20)[None]
    spread = load_model(tiny, Loading(device_map="auto"))
    assert spread.where == "disk"
    assert spread.device == torch.device("cpu")
    (little / "meminfo").write_text("MemAvailable: 4000000 kB\n")
    whole = load_model(tiny)
    assert weight_hash(spread.model) == weight_hash(whole.model)
    with torch.no_grad():
        outputs = [model(input_ids=tokens).last_hidden_state for model in (spread.model, whole.model)]
    assert torch.equal(*outputs)
    assert all(weight.is_meta for weight in spread.model.parameters())


def test_a_device_map_takes_what_is_free_in_memory_first(tiny, little):
    (little / "meminfo").write_text("MemAvailable: 160 kB\n")
    assert load_model(tiny, Loading(device_map="auto")).where == "cpu and disk"


def test_a_device_map_needs_accelerate_and_no_device(monkeypatch):
    with pytest.raises(InputError, match="chooses the devices itself, but device is 'cpu'"):
        Loading(device="cpu", device_map="auto")
    with pytest.raises(InputError, match="device_map must be auto, but is 'cuda'"):
        Loading(device_map="cuda")
    monkeypatch.setattr(loading, "has_accelerate", lambda: False)
    with pytest.raises(InputError, match=r"accelerate .* is not installed; pip install"):
        Loading(device_map="auto")


def test_memory_that_ran_out_is_known_by_what_is_raised():
    with pytest.raises(RuntimeError) as raised:
        torch.empty(2**60)
    assert memory.is_out_of_memory(raised.value)
    assert memory.is_out_of_memory(MemoryError())
    assert memory.is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory"))
    assert not memory.is_out_of_memory(RuntimeError("shapes do not match"))
