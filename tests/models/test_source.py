import re
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from tangentlens import InputError
from tangentlens.models.load import load_model
from tangentlens.models.small import weight_hash
from tiny import save_tiny


@pytest.fixture
def pickled(tmp_path):
    """A folder with a Trainer's other pickles, and the weights in one."""
    folder = save_tiny(tmp_path / "tiny")
    whole = weight_hash(load_model(str(folder)).model)
    torch.save(AutoModelForCausalLM.from_pretrained(folder).state_dict(), folder / "pytorch_model.bin")
    torch.save({}, folder / "optimizer.pt")
    (folder / "model.safetensors").unlink()
    return folder, whole


def test_pickled_weights_are_not_read_and_the_command_that_converts_them_works(pickled):
    folder, whole = pickled
    with pytest.raises(InputError, match=r"holds pytorch_model\.bin, a pickle") as told:
        load_model(str(folder))
    snippet = re.search(r'python -c "(.*?)"', str(told.value)).group(1)
    exec(snippet)
    assert weight_hash(load_model(str(folder)).model) == whole


def test_a_gguf_file_is_told_with_how_to_convert_it(tmp_path):
    folder = tmp_path / "llama"
    folder.mkdir()
    (folder / "llama.Q4_K_M.gguf").write_bytes(b"GGUF")
    for spec in (folder, folder / "llama.Q4_K_M.gguf"):
        with pytest.raises(InputError, match="is a GGUF file; convert it") as told:
            load_model(str(spec))
        snippet = re.search(r'python -c "(.*?)"', str(told.value)).group(1)
        compile(snippet, "told", "exec")
        assert f"'{folder}'" in snippet
        assert "'llama.Q4_K_M.gguf'" in snippet


def test_weights_in_safetensors_are_taken_beside_others(tmp_path):
    folder = save_tiny(tmp_path / "tiny")
    shutil.copy(folder / "config.json", folder / "old.gguf")
    torch.save({}, folder / "pytorch_model.bin")
    assert load_model(str(folder)).width == 32
