"""What the measurement cost, in sentences, from the manifests of runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tangentlens.runs.run import Run


def costs(runs: Iterable[Run]) -> Iterator[str]:
    """Yield what is known of the time that each run took: of the whole command, and of the due steps of each lens."""
    for run in runs:
        for name, known in run.manifest.get("cost", {}).items():
            seconds, due = known["seconds"], known.get("due_steps")
            if not due:
                yield f"{run.name}: `tangentlens {name}` took {duration(seconds)} in all."
                continue
            measuring = known["measuring_seconds"]
            yield (
                f"{run.name}, {name}: {due} due step{'s' * (due > 1)} took {duration(measuring)}, "
                f"{measuring / max(seconds, 1e-9):.0%} of the {duration(seconds)} from the opening of the lens to the "
                f"last of them; {duration(measuring / due)} each."
            )


def duration(seconds: float) -> str:
    """Return a time as people say it.

    >>> duration(0.25), duration(75), duration(7320)
    ('0.25 s', '1 min 15 s', '2 h 2 min')
    """
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
