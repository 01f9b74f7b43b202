"""Do the tests notice a wrong program? Mutations by cosmic-ray, drawn at random, each against the tests of its room.

`python tests/mutants.py --sample 30 statistics geometry` works on clones of the last commit, and prints the part of the
mutants that were killed and the difference of each that lived. Without rooms, all of them have their turn.

Tests run in forks of a process that has imported the libraries already. Those that mirror the mutated file come first,
because most mutants do not survive them.
"""

import argparse
import contextlib
import difflib
import importlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest
from cosmic_ray.commands import init
from cosmic_ray.modules import find_modules
from cosmic_ray.mutating import mutate_code
from cosmic_ray.plugins import get_operator
from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import MutationSpec

ROOT = Path(__file__).parents[1]
# Each room: the folder that is mutated, and where the tests are that mirror it.
ROOMS = {
    **{
        room: (f"src/tangentlens/{room}", f"tests/{room}")
        for room in ("statistics", "geometry", "proxies", "alignment", "runs", "capture", "lens")
    },
    "claims": ("src/tangentlens/studies/claims", "tests/studies"),
}
# Where the tests of a room are not all of a folder.
OF_ROOM = {"claims": tuple(f"tests/studies/test_{name}.py" for name in ("claims", "phases", "shapes"))}
# A room notices what changes the numbers of another, and how it is called.
KEPT = [
    "tests/test_signatures.py",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests").glob("*/test_kept_numbers.py")),
]
# Unions of types are no arithmetic, a comparison of `x is None` with `<` is no mistake that anybody makes, and
# cosmic-ray fails where one of several exceptions has the name of its module before it.
LEFT_OUT = re.compile(
    "core/(ReplaceBinaryOperator_BitOr_.*|ReplaceComparisonOperator_Is.*_(Lt|Gt|LtE|GtE)|Variable.*|ExceptionReplacer)"
)
# Large libraries of which no thread is running after the import.
LIBRARIES = (
    "torch",
    "scipy.stats",
    "scipy.spatial",
    "scipy.special",
    "transformers",
    "plotly.graph_objects",
    "hypothesis",
)
# After this time, tests are taken to run for ever.
SECONDS = 400


def main() -> None:
    """Mutate rooms and print what lived."""
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("rooms", nargs="*", help=f"some of {', '.join(ROOMS)}; all by default")
    parse.add_argument("--sample", type=int, default=30, help="mutants of each room")
    parse.add_argument("--seed", type=int, default=0)
    parse.add_argument("--jobs", type=int, default=os.cpu_count(), help="mutants that are tested at once")
    given = parse.parse_args()
    for name in LIBRARIES:
        importlib.import_module(name)
    killed = drawn = 0
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(given.jobs, get_context("fork")) as pool,
    ):
        for room in given.rooms or ROOMS:
            chosen = draw(room, given.sample, given.seed)
            unchanged = pool.submit(partial(survives, Path(folder), room, None))
            lived = [diff for diff in pool.map(partial(survives, Path(folder), room), chosen) if diff is not None]
            # A mutant is killed by tests that pass without it.
            if unchanged.result() is None:
                sys.exit(f"the tests of {room} fail without any mutation")
            killed, drawn = killed + len(chosen) - len(lived), drawn + len(chosen)
            sys.stdout.write(f"{room}: {len(chosen) - len(lived)} of {len(chosen)} killed\n" + "\n".join([*lived, ""]))
            sys.stdout.flush()
    sys.stdout.write(f"{killed} of {drawn} killed: {killed / max(drawn, 1):.0%}\n")


def draw(room: str, sample: int, seed: int) -> list[MutationSpec]:
    """Return a random sample of the mutations of a room."""
    source, _ = ROOMS[room]
    with contextlib.chdir(ROOT), use_db(":memory:") as database:
        init(sorted(find_modules([Path(source)])), database, {})
        every = [one for item in database.pending_work_items for one in item.mutations]
    possible = sorted((one for one in every if not LEFT_OUT.fullmatch(one.operator_name)), key=str)
    return random.Random(seed).sample(possible, min(sample, len(possible)))


def survives(folder: Path, room: str, mutation: MutationSpec | None) -> str | None:
    """Return the difference that a mutation makes if the tests pass with it, or None if they do not."""
    # One for each process of the pool.
    tree = folder / str(os.getpid())
    if not tree.exists():
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tree)], check=True)
    source, mirror = ROOMS[room]
    # Examples in docstrings come last: to collect them first would import modules beside their packages.
    all_tests = [*OF_ROOM.get(room, (mirror,)), *KEPT, source]
    if mutation is None:
        return "" if passes(tree, all_tests) else None
    path = tree / mutation.module_path
    before = path.read_text()
    operator = get_operator(mutation.operator_name)(**mutation.operator_args or {})
    after = mutate_code(before, operator, mutation.occurrence)
    beside = tree / mirror / path.relative_to(tree / source).with_name(f"test_{path.name}")
    first = [*([str(beside)] if beside.exists() else []), str(path)]
    path.write_text(after)
    try:
        if not passes(tree, first) or not passes(tree, all_tests):
            return None
    finally:
        path.write_text(before)
    lines = difflib.unified_diff(before.split("\n"), after.split("\n"), str(path.relative_to(tree)), lineterm="", n=2)
    return "\n".join(lines)


def passes(tree: Path, tests: list[str]) -> bool:
    """Return whether tests pass, run in a fork of this process."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    # Its own group, so that processes that a test has started end with it.
    os.setpgid(0, 0)
    signal.signal(signal.SIGALRM, lambda *_: os.killpg(0, signal.SIGKILL))
    signal.alarm(SECONDS)
    os.chdir(tree)
    sys.path[:0] = [str(tree / "src")]
    os.environ |= {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    sys.dont_write_bytecode = True
    kept = tempfile.mkdtemp()
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), 1)
        os.dup2(nothing.fileno(), 2)
    code = 1
    try:
        code = pytest.main(
            [
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                "-W",
                "ignore::pytest.PytestAssertRewriteWarning",
                f"--basetemp={kept}",
                *tests,
            ]
        )
    finally:
        shutil.rmtree(kept, ignore_errors=True)
        # No test was collected where a file has no example.
        os._exit(0 if code in (0, 5) else 1)


if __name__ == "__main__":
    main()
