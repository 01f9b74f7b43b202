"""The package as a user gets it: what wheel and sdist hold, what runs once installed, what is said without an extra."""

import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tangentlens"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What begins with PYTHON would lead back to the tree that the tests run in.
ENV = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {"OMP_NUM_THREADS": "1"}


def ran(*command, **settings):
    """What a command prints, which must succeed."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, env=ENV, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build(folder, *what):
    """Build the package from this tree with what is installed here, and return the files."""
    ran(sys.executable, "-m", "build", "--no-isolation", *what, "--outdir", folder, ROOT)
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The sdist, and the wheel that is built from it."""
    wheel, sdist = build(tmp_path_factory.mktemp("built"))
    return {"wheel": wheel, "sdist": sdist}


def names(file):
    if file.suffix == ".whl":
        return set(zipfile.ZipFile(file).namelist())
    with tarfile.open(file) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def shipped():
    """The files of the package in this tree, code and data."""
    files = (path for path in SOURCE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(SOURCE.parent)) for path in files}


def test_the_wheel_holds_the_package_and_nothing_else(built):
    inside = {name for name in names(built["wheel"]) if ".dist-info/" not in name}
    assert inside == shipped()
    assert {Path(name).suffix for name in inside} == {".py", ".typed", ".js", ".jinja"}


def test_the_sdist_holds_what_builds_tests_and_explains_the_package(built):
    inside = names(built["sdist"])
    assert {f"src/{name}" for name in shipped()} <= inside
    assert {"README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "pyproject.toml", "constraints.txt"} <= inside
    assert {name.partition("/")[0] for name in inside if "/" in name} == {"src", "tests", "docs", "benchmarks"}
    assert {"tests/test_package.py", "docs/stability.md"} <= inside


def test_the_same_tree_gives_the_same_wheel(built, tmp_path, monkeypatch):
    """From the tree itself and from the sdist, at two times: one wheel."""
    monkeypatch.setitem(ENV, "SOURCE_DATE_EPOCH", "1700000000")
    wheels = [
        file
        for name, what in (("first", ["--wheel"]), ("second", []))
        for file in build(tmp_path / name, *what)
        if file.suffix == ".whl"
    ]
    assert len({hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels}) == 1
    assert names(wheels[0]) == names(built["wheel"])


def candidate(python):
    """An interpreter of this version that has the dependencies, or the reason why there is none."""
    if python == "this":
        return sys.executable, None
    found = os.environ.get(f"{python.upper().replace('.', '_')}_WITH_DEPENDENCIES") or shutil.which(python)
    if found is None:
        return None, f"{python} is not on the path"
    tried = subprocess.run([found, "-c", "import torch, transformers, polars"], capture_output=True, text=True)
    said = (tried.stderr.strip().splitlines() or [""])[-1]
    return (found, None) if tried.returncode == 0 else (None, f"{python} is on the path but cannot be used: {said}")


# Links the files of packages, and of all that they need in turn, into a folder.
LINK = """
import importlib.metadata
import os
import sys

from packaging.requirements import Requirement

target, *wanted = sys.argv[1:]
os.mkdir(target)
wanted, seen = [Requirement(name) for name in wanted], set()
while wanted:
    one = wanted.pop()
    if str(one) in seen:
        continue
    seen.add(str(one))
    found = importlib.metadata.distribution(one.name)
    needs = [Requirement(line) for line in found.requires or []]
    extras = one.extras or {""}
    wanted += [need for need in needs if not need.marker or any(need.marker.evaluate({"extra": e}) for e in extras)]
    for name in {file.parts[0] for file in found.files} - {"..", "__pycache__"}:
        if not os.path.lexists(os.path.join(target, name)):
            os.symlink(found.locate_file(name), os.path.join(target, name))
"""


def environment(folder, python, *packages):
    """A new environment that has these packages of `python` with what they need, and no others; its interpreter."""
    ran(python, "-m", "venv", "--without-pip", folder)
    inner = folder / "bin" / "python"
    ran(python, "-c", LINK, folder / "packages", *packages)
    own = Path(ran(inner, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (own / "packages.pth").write_text(f"{folder / 'packages'}\n")
    done = subprocess.run([inner, "-c", "import numpy, tangentlens"], capture_output=True, text=True, env=ENV)
    assert "No module named 'tangentlens'" in done.stderr
    return inner


def install(python, file):
    """Install a wheel or an sdist, without any index and without building elsewhere."""
    alone = ["--no-index", "--no-deps", "--no-build-isolation", "--no-compile", "--quiet"]
    ran(sys.executable, "-m", "pip", "--python", python, "install", *alone, file)
    return python


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The interpreter of an environment with the wheel and its dependencies, but none of the extras."""
    folder = tmp_path_factory.mktemp("installed") / "environment"
    return install(environment(folder, sys.executable, *PROJECT["dependencies"]), built["wheel"])


USE = """
import json
from pathlib import Path

import torch

import tangentlens as tl
from tangentlens.models.small import small_model

model = small_model("decoder", vocabulary=64, layers=2, width=32, length=16, mask=1, seed=0)
with tl.Lens(model, rank=4, every=1, run="run") as lens:
    for step in range(3):
        tokens = torch.randint(2, 64, (8, 12), generator=torch.Generator().manual_seed(step))
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        lens.step(loss)
tl.show(tl.open_run("run"))
print(json.dumps([tl.__file__, len(tl.open_run("run").records), Path("run/report.html").read_text().count("Plotly")]))
"""


def check_installed(python, folder):
    """Use the package in an environment as a user does, from another folder than the tree."""
    command = python.parent / "tangentlens"
    assert ran(command, "--version", cwd=folder) == f"tangentlens {PROJECT['version']}\n"
    assert "python -m tangentlens [OPTIONS] COMMAND" in ran(python, "-m", "tangentlens", "--help", cwd=folder)
    file, n_records, n_plots = json.loads(ran(python, "-W", "error", "-c", USE, cwd=folder).splitlines()[-1])
    assert Path(file).is_relative_to(python.parents[1])
    assert n_records > 50
    assert n_plots > 1


def test_the_wheel_is_installed_measures_and_reports(installed, tmp_path):
    check_installed(installed, tmp_path)


@pytest.mark.parametrize("python", ["python3.12", "python3.13"])
def test_the_wheel_works_with_newer_pythons(built, python, tmp_path):
    found, reason = candidate(python)
    if reason:
        pytest.skip(reason)
    inner = environment(tmp_path / "environment", found, *PROJECT["dependencies"])
    check_installed(install(inner, built["wheel"]), tmp_path)


def test_the_sdist_is_installed(built, tmp_path):
    needs = [*PROJECT["dependencies"], "hatchling"]
    inner = install(environment(tmp_path / "environment", sys.executable, *needs), built["sdist"])
    told = ran(inner, "-c", "import tangentlens; print(tangentlens.__file__)", cwd=tmp_path)
    package = Path(told.strip()).parent
    assert package.is_relative_to(tmp_path)
    assert {str(path.relative_to(package.parent)) for path in package.rglob("*") if path.is_file()} >= shipped()


# One feature of each extra, with the sentence that says what to install.
WITHOUT = """
import importlib
import json
from pathlib import Path

from tangentlens.engine import OnRay
from tangentlens.errors import MissingExtra
from tangentlens.models.loading import Loading
from tangentlens.report.export import export_figures
from tangentlens.runs.records import Record
from tangentlens.runs.run import create_run
from tangentlens.studies import SECTIONS


def said(feature, *arguments):
    try:
        feature(*arguments)
    except MissingExtra as error:
        return str(error)


run = create_run("run", {})
for step in range(3):
    run.write(str(step), [Record(model="m", step=step, metric="loss", quantity="loss", value=1.0)])
print(json.dumps({
    "ray": [said(OnRay().run, [], print)],
    "lightning": [said(importlib.import_module, "tangentlens.integrations.lightning")],
    "trainer": [
        said(importlib.import_module, "tangentlens.integrations.transformers"),
        said(lambda: Loading(device_map="auto")),
    ],
    "figures": [said(export_figures, [run], Path("figures"), SECTIONS)],
}))
"""


def test_without_an_extra_the_error_names_it(installed, tmp_path):
    told = json.loads(ran(installed, "-c", WITHOUT, cwd=tmp_path).splitlines()[-1])
    # The other two are for those who work on tangentlens itself.
    assert told.keys() == PROJECT["optional-dependencies"].keys() - {"docs", "dev"}
    for extra, sentences in told.items():
        for sentence in sentences:
            assert "not installed" in sentence
            assert f"pip install 'tangentlens[{extra}]'" in sentence


def imported():
    """The packages that the code imports, anywhere."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (name.name.partition(".")[0] for name in node.names)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                yield node.module.partition(".")[0]


def test_whatever_is_imported_is_declared():
    lines = [*PROJECT["dependencies"], *(line for extra in PROJECT["optional-dependencies"].values() for line in extra)]
    declared = {re.match(r"[\w-]+", line)[0].lower().replace("-", "_") for line in lines}
    others = set(imported()) - sys.stdlib_module_names - {"tangentlens"}
    assert others <= declared


def test_a_shell_completes_commands_and_options(installed):
    """What bash asks, as the script of `--show-completion` asks it."""
    command = installed.parent / "tangentlens"
    for words, expected in {"tangentlens vi": {"visibility", "view"}, "tangentlens view --p": {"--port"}}.items():
        bash = {"_TANGENTLENS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        done = subprocess.run([command], capture_output=True, text=True, env=ENV | bash)
        assert set(done.stdout.split()) == expected, done.stderr
        assert done.returncode == 0
