"""Which revisions of a model are wanted: a list, a range, a pattern, or all that the hub lists."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from tangentlens.errors import InputError
from tangentlens.models.source import hub_answers

# Every revision whose name has a step.
ALL = "all"
_RANGE = re.compile(r"(?P<first>[^:]*\d[^:]*?)\.\.(?P<last>[^:]*\d[^:]*?)(?::(?P<every>\d+))?")
_STEP = re.compile(r"(?:step|checkpoint)[-_]?(\d+)", re.IGNORECASE)
_TOKENS = re.compile(r"tokens[-_]?(\d+)([KMBT]?)", re.IGNORECASE)
_SIZES = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}


def step_of(name: str) -> int | None:
    """Return the training step that the name of a revision or of a folder says; None if it says none.

    >>> [step_of(name) for name in ("step1000", "checkpoint-200", "stage1-step300-tokens1B", "epoch3", "main")]
    [1000, 200, 300, 3, None]
    """
    said = _STEP.search(name)
    numbers = [said.group(1)] if said else re.findall(r"\d+", name)
    return int(numbers[-1]) if numbers else None


def tokens_of(name: str) -> int:
    """Return the number of training tokens that a name says; 0 if it says none.

    >>> tokens_of("stage1-step300-tokens2B")
    2000000000
    """
    said = _TOKENS.search(name)
    return int(said.group(1)) * _SIZES[said.group(2).upper()] if said else 0


def wanted_revisions(asked: str, listed: Callable[[], Sequence[str]]) -> list[str]:
    """Return the revisions that are asked for, each once.

    Args:
        asked: Parts separated by commas: a name; a range `step1000..step9000:1000`, without its last part of what is
            listed; a pattern such as `step*`; or `all`, every listed revision whose name has a step.
        listed: Returns the names of all revisions; called only if they are needed.

    >>> wanted_revisions("step0,step1000..step3000:1000", list)
    ['step0', 'step1000', 'step2000', 'step3000']
    """
    found: dict[str, None] = {}
    for part in (part.strip() for part in asked.split(",") if part.strip()):
        names = _of_part(part, listed)
        if not names:
            raise InputError(
                f"revisions must ask for revisions that exist, but {part!r} gives none; there are "
                f"{_some(listed()) or 'none'}"
            )
        found |= dict.fromkeys(names)
    if not found:
        raise InputError(f"revisions must name revisions, but is {asked!r}; {ALL!r} takes all that have a step")
    return list(found)


def _of_part(part: str, listed: Callable[[], Sequence[str]]) -> list[str]:
    """Return the revisions that one part of what is asked stands for."""
    ends = _RANGE.fullmatch(part)
    if ends:
        return _of_range(part, ends.group("first"), ends.group("last"), ends.group("every"), listed)
    if part == ALL:
        return [name for name in listed() if step_of(name) is not None]
    if any(sign in part for sign in "*?["):
        return [name for name in listed() if fnmatchcase(name, part)]
    return [part]


def _of_range(part: str, first: str, last: str, every: str | None, listed: Callable[[], Sequence[str]]) -> list[str]:
    """Return the revisions from the first to the last: at every so many steps, or those that are listed."""
    low, high = step_of(first), step_of(last)
    form = re.sub(r"\d+", "{}", first)
    if low is None or high is None or low > high or (every is not None and int(every) == 0):
        raise InputError(
            f"a range of revisions must go up, as step1000..step9000:1000 does, but is {part!r}; swap its ends, or "
            "name revisions one by one"
        )
    if every is not None:
        if form != re.sub(r"\d+", "{}", last) or form.count("{}") != 1:
            raise InputError(
                f"a range must differ in one number only, but {first!r} and {last!r} do not; use a pattern such as "
                f"{re.sub(r'[0-9]+', '*', first)!r}"
            )
        return [form.format(step) for step in range(low, high + 1, int(every))]
    return [name for name in listed() if _is_between(name, low, high, form)]


def _is_between(name: str, low: int, high: int, form: str) -> bool:
    step = step_of(name)
    return step is not None and low <= step <= high and re.sub(r"\d+", "{}", name) == form


def hub_revisions(hub_id: str) -> list[str]:
    """Return the branches and tags of a model on the hub; without the hub, those that were downloaded.

    Args:
        hub_id: The model's id on the hub.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    if hub_answers():
        try:
            refs = HfApi(endpoint=constants.ENDPOINT).list_repo_refs(hub_id)
        except HfHubHTTPError as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(
                f"MODEL must be a model on the hub for its revisions to be listed, but {hub_id!r} is not, or is not "
                f"open to you: {reason}"
            ) from error
        return [ref.name for ref in (*refs.branches, *refs.tags)]
    refs_folder = Path(constants.HF_HUB_CACHE) / f"models--{hub_id.replace('/', '--')}" / "refs"
    names = sorted(str(path.relative_to(refs_folder)) for path in refs_folder.rglob("*") if path.is_file())
    if not names:
        raise InputError(
            f"the hub must answer for the revisions of {hub_id} to be listed, but cannot be reached, and none was "
            "downloaded before; name revisions as a list or as a range with its distance, or a folder of checkpoints"
        )
    return names


def _some(names: Iterable[str]) -> str:
    """Return a few names, and how many more there are."""
    names = list(names)
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
