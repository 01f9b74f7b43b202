"""Every tutorial runs from its first cell to its last, shows what its text speaks of, and is kept without outputs."""

import os
import re
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "tutorials"
TUTORIALS = sorted(FOLDER.glob("*.ipynb"))
# What each one must show, beside being without errors: patterns in the text of its outputs.
SHOWN = {
    "01-watch-a-training": (
        r"tangentlens/tangent_share_over_chance",
        r"class=\"dataframe\"",
        r"plotly-graph-div",
        r"over chance.*significantly",
        r"Anisotropy, mean over sites",
        r"Intrinsic dimension",
    ),
    "02-audit-a-model": (
        r"class=\"dataframe\"",
        r"plotly-graph-div",
        r"without_massive",
        r"small \(untrained\)",
        r"small \(shuffled labels\)",
        r"verdict: (tangent|normal|avoiding|variance|indifferent|unknown)",
        r"local tangents",
    ),
    "03-your-own-proxy-and-measure": (
        r"inside: true",
        r"takes .* of the gradient&#x27;s energy",
        r"significantly above",
        r"verdict: (tangent|normal|avoiding|variance|indifferent|unknown)",
        r"same_length_directions",
        r"resid\.0: spread of lengths",
    ),
}


class OwnKernels(AsyncKernelManager):
    """Kernels of the interpreter that runs the tests, whatever kernels the user has installed."""

    @property
    def kernel_spec(self):
        argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="this Python", language="python")


def executed(path, folder):
    """The notebook after all its cells have run in `folder`, without a network, in an IPython that is nobody's."""
    notebook = nbformat.read(path, as_version=4)
    private = {"TMPDIR": str(folder), "HOME": str(folder), "IPYTHONDIR": str(folder / "ipython"), "HF_HUB_OFFLINE": "1"}
    # A manager that the client makes itself is shut down by it, with its kernel.
    client = NotebookClient(
        notebook, kernel_manager_class=OwnKernels, timeout=300, resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env=os.environ | private)
    return notebook


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def text_of(output):
    """What an output says: its stream, or its HTML and text."""
    data = output.get("data", {})
    return "\n".join([output.get("text", ""), data.get("text/html", ""), data.get("text/plain", "")])


def number(pattern, text):
    return float(re.search(pattern, text)[1])


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_runs_and_shows_what_it_speaks_of(path, tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))  # not in the user's home
    shown = outputs(executed(path, tmp_path))
    text = "\n".join(map(text_of, shown))
    for pattern in SHOWN[path.stem]:
        assert re.search(pattern, text, re.DOTALL), pattern
    assert [output.text for output in shown if output.get("name") == "stderr"] == []
    if path.stem.startswith("03"):
        found_what_was_planted(text)


def found_what_was_planted(shown):
    """The known answers of the third tutorial: the test says yes, no and neither, as was planted."""
    for planted in ("inside", "outside", "all directions"):
        true = number(rf"{planted}: true ([\d.]+)", shown)
        assert number(rf"{planted}: true [\d.]+, found ([\d.e-]+)", shown) == pytest.approx(true, abs=0.02)
    assert number(r"inside: .* / chance ([\d.]+)", shown) > 4
    assert number(r"outside: .* / chance ([\d.]+)", shown) < 0.5
    assert number(r"all directions: .* / chance ([\d.]+)", shown) == pytest.approx(1, abs=0.1)
    assert number(r"proxy / pca: ([\d.]+)", shown) == pytest.approx(1, abs=0.02)
    assert number(r"on a sphere ([\d.e-]+)", shown) < 1e-6


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_tutorials_are_kept_without_outputs_and_traces_of_a_machine(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert outputs(notebook) == []
    assert {cell.execution_count for cell in notebook.cells if cell.cell_type == "code"} == {None}
    assert notebook.metadata.kernelspec.name == "python3"
    assert not re.search(r"/(home|root|work|tmp|Users|opt|mnt)/|[A-Z]:\\", path.read_text())


@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_links_of_tutorials_lead_somewhere(path):
    said = "\n".join(cell.source for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "markdown")
    targets = re.findall(r"\]\(([^)#]+)", said)
    assert targets
    assert [target for target in targets if not (FOLDER / target).exists()] == []


def test_every_tutorial_is_expected():
    assert [path.stem for path in TUTORIALS] == sorted(SHOWN)
