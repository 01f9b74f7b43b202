"""What a lens warns of in a training. Warnings point at the line of the training loop that calls `lens.step()`."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence

# From here to the caller of `lens.step()`.
_TO_THE_LOOP = 3


def warn_of_no_pass() -> None:
    """Warn that a step ends in which the model did not run."""
    warnings.warn(
        "lens.step() was called although the model has not run since the last call, and every call counts as a step; "
        "call it once after each optimizer step",
        stacklevel=_TO_THE_LOOP,
    )


def warn_of_unmeasured(passes: int) -> None:
    """Warn that a lens is closed before a due step was measured."""
    warnings.warn(
        f"{passes} backward passes came since the last lens.step() and were not measured; call lens.step() once after "
        "each optimizer step",
        stacklevel=4,
    )


def warn_of_no_gradient(sites: Sequence[str]) -> None:
    """Warn of sites without a gradient in the first step, because the first due one, where they matter, may be far."""
    if sites:
        warnings.warn(
            f"no gradient came through {', '.join(sites)} in the first step; on a due step that is an error: check "
            "that the site is not frozen and that the model is not called through torch.compile(model)",
            stacklevel=_TO_THE_LOOP,
        )


def warn_of_troubles(step: int, troubles: Mapping[str, str], before: Collection[str]) -> None:
    """Warn of what could not be measured at sites, except for those that could not be measured the last time either."""
    new = [site for site in troubles if site not in before]
    if new:
        warnings.warn(f"step {step} was not measured at {', '.join(new)}: {troubles[new[0]]}", stacklevel=_TO_THE_LOOP)
