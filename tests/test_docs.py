"""Every Python example in the docs runs, and every command they name exists."""

import re
import warnings
from pathlib import Path

import pytest
import torch
import typer.main

from loops import Sequences
from tangentlens.cli import app
from tiny import save_tiny, tiny_batch, tiny_model

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/**/*.md")])


def blocks(page, language):
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("webbrowser.open", lambda _: True)
    model = tiny_model()
    names = {
        "model": model,
        "optimizer": torch.optim.AdamW(model.parameters()),
        "loader": [tiny_batch(seed) for seed in range(3)],
        "save_model": save_tiny,
        "dataset": Sequences(),
    }
    with warnings.catch_warnings():
        if page.stem in ("training", "regularisers"):
            # Lightning warns of what it does itself.
            warnings.simplefilter("ignore")
        for block in blocks(page, "python"):
            exec(block, names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page):
    known = set(typer.main.get_command(app).commands)
    named = {
        name for block in blocks(page, "console") for name in re.findall(r"^tangentlens (\w+)", block, re.MULTILINE)
    }
    assert named <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), target


def test_every_command_has_its_page():
    assert {page.stem for page in ROOT.glob("docs/commands/*.md")} == set(typer.main.get_command(app).commands)
