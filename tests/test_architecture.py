"""The rooms of the house: data flows one way, and the layout says where things go."""

import ast
import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tangentlens
import tangentlens.studies

ROOT = Path(tangentlens.__file__).parent

# A room imports only from rooms above it.
ROOMS = [
    "errors",
    "lazy",
    "notebook",
    "statistics",
    "geometry",
    "proxies",
    "alignment",
    "runs",
    "engine",
    "corpora",
    "models",
    "capture",
    "lens",
    "training",
    "integrations",
    "report",
    "studies",
    "doctor",
    "cli",
    "__main__",
]
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


# The functions that may import from a room below: a run that is asked to show itself needs everything.
EXCEPT = {("runs/run.py", "show"): "tangentlens.studies.functions"}


def room(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path):
    tree = ast.parse(path.read_text())
    allowed = [
        node
        for function in ast.walk(tree)
        for node in ast.walk(function)
        if isinstance(function, ast.FunctionDef)
        and isinstance(node, ast.ImportFrom)
        and node.module == EXCEPT.get((str(path.relative_to(ROOT)), function.name))
    ]
    for node in ast.walk(tree):
        if node in allowed:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tangentlens."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (name.name.split(".")[1] for name in node.names if name.name.startswith("tangentlens."))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_room_imports_only_from_rooms_above_it(path):
    here = ROOMS.index(room(path))
    assert all(ROOMS.index(other) <= here for other in imports(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_files_are_short_and_say_what_they_are_for(path):
    assert len(path.read_text().splitlines()) < 400
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_nothing_is_pickled_and_no_remote_code_is_trusted():
    text = "".join(path.read_text() for path in FILES)
    for word in (
        r"import pickle|pickle\.(loads?|dumps?)",
        r"(?<!safetensors\.)torch\.(load|save)\(",
        "trust_remote_code=True",
        r"(?<![.\w])eval\(",
        "shell=True",
    ):
        assert not re.search(word, text)


def test_what_takes_long_to_import_is_imported_when_it_is_needed():
    parts = [f"scipy.{part}" for part in ("special", "optimize", "sparse", "stats")]
    slow = ["transformers", "plotly", "ray", "lightning", "pandas", *parts]
    script = f"import sys, tangentlens; print([name for name in {slow} if name in sys.modules])"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told.strip() == "[]"


def test_the_public_names_are_there():
    assert dir(tangentlens) == tangentlens.__all__
    for name in tangentlens.__all__:
        assert getattr(tangentlens, name).__doc__


def test_whatever_has_an_interval_has_all_four_names_of_it():
    results = [
        value
        for module in sys.modules.copy().values()
        if module.__name__.startswith("tangentlens.")
        for value in vars(module).values()
        if dataclasses.is_dataclass(value) and isinstance(value, type)
    ]
    named = {result: {field.name for field in dataclasses.fields(result)} for result in results}
    uncertain = {result.__name__ for result, names in named.items() if any(name.startswith("ci_") for name in names)}
    assert {"Interval", "IntrinsicDimension", "ManifoldEntropy", "Shape", "Record"} <= uncertain
    for result, names in named.items():
        if result.__name__ in uncertain:
            assert {"value", "ci_low", "ci_high", "ci_over"} <= names, result
        assert not names & {"low", "high", "lower", "upper"}, result
