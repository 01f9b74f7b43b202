"""What type checkers say of a user's programs: nothing of one that is right, and every mistake of one that is wrong."""

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tangentlens

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
# The line of each mistake is the one that says what is wrong with it.
MISTAKES = {
    ("wrong.py", number)
    for number, line in enumerate((HERE / "wrong.py").read_text().splitlines(), start=1)
    if "  # " in line
}


def test_the_program_uses_every_public_name():
    tree = ast.parse((HERE / "user.py").read_text())
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tl"
    }
    assert used == set(tangentlens.__all__)


PROGRAMS = [HERE / "user.py", HERE / "wrong.py"]


def by_mypy(*settings):
    """The lines in which mypy finds a mistake."""
    command = [sys.executable, "-m", "mypy", *settings, *PROGRAMS]
    told = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=ROOT).stdout
    return {(Path(name).name, int(line)) for name, line in re.findall(r"^(.+?):(\d+): error:", told, re.MULTILINE)}


def test_mypy_finds_the_mistakes_and_nothing_else():
    """With the settings (strict), files and cache of `make check`: else PyTorch's own types take a minute."""
    assert by_mypy("src") == MISTAKES


@pytest.mark.calibration
def test_mypy_without_any_settings_finds_the_same(tmp_path):
    (tmp_path / "mypy.ini").write_text("[mypy]\n")
    assert by_mypy("--strict", "--config-file", tmp_path / "mypy.ini", "--cache-dir", tmp_path / "cache") == MISTAKES


def test_pyright_finds_the_mistakes_and_nothing_else(tmp_path):
    """By basedpyright, which is pyright with all that it needs in packages of Python; pyright itself downloads Node."""
    pytest.importorskip("basedpyright")
    settings = {"include": [str(file) for file in PROGRAMS], "typeCheckingMode": "strict"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", sys.executable, "-p", tmp_path]
    told = json.loads(subprocess.run([*map(str, command)], capture_output=True, text=True).stdout)
    found = {(Path(one["file"]).name, one["range"]["start"]["line"] + 1) for one in told["generalDiagnostics"]}
    assert found == MISTAKES
    assert told["summary"]["filesAnalyzed"] == 2
