"""Sites: portable names for points in a network, and which module's input or output each one is."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tangentlens.errors import InputError


@dataclass(frozen=True, eq=False)
class Site:
    """A point in the network: the input or the output of a module. `depth` runs from 0 to 1 along the blocks."""

    name: str
    module: nn.Module
    side: Literal["input", "output"]
    depth: float | None = None

    @property
    def place(self) -> str:
        """Which side of what kind of module it is."""
        return f"{self.side} of {type(self.module).__name__}"

    def __repr__(self) -> str:
        return f"Site({self.name!r}, {self.place})"


def find_sites(model: nn.Module, wanted: str | Sequence[str] = "resid") -> list[Site]:
    """The sites that `wanted` names, in the order of the network.

    Args:
        model: Any module.
        wanted: `embed`, `resid` (the whole residual stream), `resid.0` (before the first block) ... `resid.L` (after
            the last), `final` (after the final norm), real module paths, globs over both, or several of these.

    >>> blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
    >>> find_sites(nn.ModuleDict({"token": nn.Embedding(9, 4), "blocks": blocks}), "resid")
    [Site('resid.0', input of Linear), Site('resid.1', output of Linear), Site('resid.2', output of Linear)]
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"the model must be a torch.nn.Module, but is a {type(model).__name__}; load it first")
    portable = {site.name: site for site in _portable_sites(model)}
    paths = {name: Site(name, module, "output") for name, module in model.named_modules() if name}
    # A portable name means the same in every model, so it wins over a module that happens to have it.
    known = portable | paths | portable
    chosen: dict[str, Site] = {}
    for pattern in [wanted] if isinstance(wanted, str) else wanted:
        found = [name for name in known if _matches(name, pattern)]
        if not found:
            raise InputError(_unknown(pattern, list(known), list(portable)))
        chosen |= {name: known[name] for name in found}
    if not chosen:
        raise InputError("at least one site must be named, but none is; 'resid' is the whole residual stream")
    order = {name: place for place, name in enumerate(known)}
    return sorted(chosen.values(), key=lambda site: order[site.name])


def watch(site: Site, see: Callable[[Tensor | None], None]) -> RemovableHandle:
    """Let `see` have the very tensor (batch, length, width) that flows through a site, or None if none does."""

    def on_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        see(next((value for value in (*args, *kwargs.values()) if _is_hidden(value)), None))

    def on_output(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        values = output.values() if hasattr(output, "values") and not isinstance(output, Tensor) else output
        candidates = [values] if isinstance(values, Tensor) else list(values)
        see(next((value for value in candidates if _is_hidden(value)), None))

    if site.side == "input":
        return site.module.register_forward_pre_hook(on_input, with_kwargs=True)
    return site.module.register_forward_hook(on_output)


def check_carried(site: Site, hidden: Tensor | None, tokens: Tensor | None) -> Tensor:
    """The tensor that a site carries, if it has a row for each of the tokens."""
    if hidden is None or tokens is None or hidden.shape[:2] != tokens.shape:
        raise InputError(
            f"{site} must carry a (batch, length, width) tensor for the tokens of the batch, but carries "
            f"{None if hidden is None else tuple(hidden.shape)}; choose another site"
        )
    return hidden


def ran_twice(site: Site) -> InputError:
    """The error of a site that a forward pass comes through more than once."""
    return InputError(
        f"{site} must run once in a forward pass, but runs several times (shared layers?); choose other sites"
    )


def _is_hidden(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.ndim == 3


def _matches(name: str, pattern: str) -> bool:
    return fnmatchcase(name, pattern) or (pattern == "resid" and name.startswith("resid."))


def _unknown(pattern: str, known: list[str], portable: list[str]) -> str:
    near = difflib.get_close_matches(pattern, known, n=3, cutoff=0.4)
    hint = f"the nearest are {', '.join(near)}" if near else "module paths work too"
    shown = [name for name in portable if not re.fullmatch(r"resid\.\d+", name)]
    last = sum(name.startswith("resid.") for name in portable) - 1
    if last > 0:
        shown.insert(1, f"resid.0 to resid.{last}")
    has = ", ".join(shown) or "no portable ones"
    return f"a site must exist in the model, but {pattern!r} does not; {hint}; this model has {has}"


def _portable_sites(model: nn.Module) -> list[Site]:
    sites = []
    embedding = _embedding(model)
    if embedding is not None:
        sites.append(Site("embed", embedding, "output", 0.0))
    blocks = _blocks(model)
    if blocks is not None:
        sites.append(Site("resid.0", blocks[0], "input", 0.0))
        sites += [Site(f"resid.{i}", block, "output", i / len(blocks)) for i, block in enumerate(blocks, start=1)]
        norm = _final_norm(model, blocks)
        if norm is not None:
            sites.append(Site("final", norm, "output", 1.0))
    return sites


def _embedding(model: nn.Module) -> nn.Module | None:
    return next((module for module in model.modules() if isinstance(module, nn.Embedding)), None)


def _blocks(model: nn.Module) -> nn.ModuleList | nn.Sequential | None:
    """The longest list of modules of one class that is not inside another such list (as heads are inside a block)."""
    outermost: list[nn.ModuleList | nn.Sequential] = []
    inside: set[nn.Module] = set()
    for module in model.modules():
        if not isinstance(module, nn.ModuleList | nn.Sequential) or module in inside:
            continue
        if len({type(block) for block in module}) == 1:
            outermost.append(module)
            inside |= set(module.modules())
    return max(outermost, key=len, default=None)


def _final_norm(model: nn.Module, blocks: nn.Module) -> nn.Module | None:
    """The norm that stands beside the blocks and after them."""
    for parent in model.modules():
        children = list(parent.children())
        if any(child is blocks for child in children):
            later = children[next(i for i, child in enumerate(children) if child is blocks) + 1 :]
            return next((child for child in later if "norm" in type(child).__name__.lower()), None)
    return None
