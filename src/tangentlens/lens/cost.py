"""What measuring costs: the part of a training's time that a lens takes, for the manifest of its run."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from tangentlens.runs.run import Run


class Cost:
    """Adds up the time since a lens was opened, and the part of it that due steps take.

    It is in the manifest and not in the records: two trainings with the same numbers have the same records.
    """

    def __init__(self) -> None:
        self._counted = 0.0

    def begin(self) -> None:
        """Begin to count."""
        self._counted = time.perf_counter()

    @contextmanager
    def of_due_step(self, run: Run | None, model: str) -> Iterator[None]:
        """Count what is done inside as measuring, and add it to what the manifest has of the training.

        Args:
            run: The run; None on ranks that write none.
            model: The name of the model.
        """
        start = time.perf_counter()
        yield
        now = time.perf_counter()
        if run is not None:
            known = run.manifest.get("cost", {}).get(model, {})
            found = {"seconds": now - self._counted, "measuring_seconds": now - start, "due_steps": 1}
            run.describe("cost", {model: {name: round(known.get(name, 0) + one, 3) for name, one in found.items()}})
        self._counted = now
