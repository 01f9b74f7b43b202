"""Do the tests notice a wrong program? Mutations by cosmic-ray, drawn at random, each against the tests of its room.

`python tests/mutants.py --sample 30 statistics geometry` works on a clone of the last commit, and prints the part of
the mutants that were killed and the difference of each that lived. Without rooms, all of them have their turn.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from cosmic_ray.work_db import use_db
from cosmic_ray.work_item import TestOutcome, WorkerOutcome, WorkResult

ROOT = Path(__file__).parents[1]
# Each room, the folder that is mutated, and what is run, besides the examples in its docstrings.
ROOMS = {
    **{
        room: (f"src/tangentlens/{room}", f"tests/{room}")
        for room in ("statistics", "geometry", "proxies", "alignment", "runs", "capture", "lens")
    },
    "claims": ("src/tangentlens/studies/claims", "tests/studies/test_claims.py tests/studies/test_phases.py"),
}
# Unions of types are no arithmetic, and a comparison of `x is None` with `<` is no mistake that anybody makes.
LEFT_OUT = (
    "core/ReplaceBinaryOperator_BitOr_.*",
    "core/ReplaceComparisonOperator_Is.*_(Lt|Gt|LtE|GtE)",
    "core/Variable.*",
)
SECONDS = 600


def main() -> None:
    """Mutate rooms and print what lived."""
    parse = argparse.ArgumentParser(description=__doc__)
    parse.add_argument("rooms", nargs="*", help=f"some of {', '.join(ROOMS)}; all by default")
    parse.add_argument("--sample", type=int, default=30, help="mutants of each room")
    parse.add_argument("--seed", type=int, default=0)
    given = parse.parse_args()
    killed = drawn = 0
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(tree)], check=True)
        for room in given.rooms or ROOMS:
            lived, n = mutate(room, tree, given.sample, given.seed)
            killed, drawn = killed + n - len(lived), drawn + n
            sys.stdout.write(f"{room}: {n - len(lived)} of {n} killed\n" + "".join(f"{diff}\n" for diff in lived))
            sys.stdout.flush()
    sys.stdout.write(f"{killed} of {drawn} killed: {killed / max(drawn, 1):.0%}\n")


def mutate(room: str, tree: Path, sample: int, seed: int) -> tuple[list[str], int]:
    """Return the differences of the mutants of a room that lived, and how many mutants there were."""
    source, tests = ROOMS[room]
    config, session = tree / f"{room}.toml", tree / f"{room}.sqlite"
    command = f"{sys.executable} -m pytest -x -q -p no:cacheprovider {tests} {source}"
    config.write_text(
        f"""[cosmic-ray]
module-path = "{source}"
timeout = {SECONDS}
excluded-modules = []
test-command = "{command}"
[cosmic-ray.distributor]
name = "local"
[cosmic-ray.filters.operators-filter]
exclude-operators = {list(LEFT_OUT)}
"""
    )
    # One thread: mutants of several rooms may then run side by side.
    environment = os.environ | {"PYTHONPATH": str(tree / "src"), "OMP_NUM_THREADS": "1"}

    def run(*words: str) -> None:
        programs = Path(sys.executable).parent
        subprocess.run([str(programs / words[0]), *words[1:]], cwd=tree, env=environment, check=True)

    # A mutant is killed by tests that pass without it.
    subprocess.run(command.split(), cwd=tree, env=environment, check=True, stdout=subprocess.DEVNULL)
    run("cosmic-ray", "init", config.name, session.name)
    run("cr-filter-operators", session.name, config.name)
    draw(session, sample, seed)
    run("cosmic-ray", "exec", config.name, session.name)
    with use_db(str(session)) as database:
        done = [result for _, result in database.results if result.worker_outcome != WorkerOutcome.SKIPPED]
    return [result.diff or "" for result in done if result.test_outcome == TestOutcome.SURVIVED], len(done)


def draw(session: Path, sample: int, seed: int) -> None:
    """Leave out all mutants but a random sample."""
    with use_db(str(session)) as database:
        waiting = sorted(database.pending_work_items, key=lambda item: str(item.mutations))
        chosen = random.Random(seed).sample(waiting, min(sample, len(waiting)))
        rest = {item.job_id for item in waiting} - {item.job_id for item in chosen}
        database.set_multiple_results(rest, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))


if __name__ == "__main__":
    main()
