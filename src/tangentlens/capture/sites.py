"""Sites: portable names for points in a network, and which module's input or output each one is."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from tangentlens.capture.batch import unwrapped
from tangentlens.capture.candidates import candidates
from tangentlens.capture.names import depths, meant
from tangentlens.capture.stacks import Stack, find_stacks, runs
from tangentlens.errors import InputError
from tangentlens.runs.vocabulary import MEAN_SITE

# Names of sites, patterns of them, or what to call the inputs and outputs of which modules.
Wanted = str | Sequence[str] | Mapping[str, str] | Callable[[nn.Module], Mapping[str, str]]


@dataclass(frozen=True, eq=False)
class Site:
    """A point in the network: the input or the output of a module, in one of its calls in a forward pass.

    Attributes:
        name: The site's name, portable or a module path.
        module: The module whose input or output it is.
        side: Whether it is the input or the output.
        depth: The position along the blocks of the stack, from 0 to 1; None if it is not known.
        call: The number of the call, from 0.
        calls: The number of calls in a forward pass: more than 1 for a module that is shared between layers.
        stack: 'encoder' or 'decoder' in an encoder-decoder, else ''.
    """

    name: str
    module: nn.Module
    side: Literal["input", "output"]
    depth: float | None = None
    call: int = 0
    calls: int = 1
    stack: str = ""

    @property
    def place(self) -> str:
        """Return a description of the site: which side of what kind of module it is."""
        time = f", time {self.call + 1} of {self.calls}" if self.calls > 1 else ""
        return f"{self.side} of {type(self.module).__name__}{time}"

    def __repr__(self) -> str:
        return f"Site({self.name!r}, {self.place})"


def find_sites(model: nn.Module, wanted: Wanted = "resid") -> list[Site]:
    """Return the sites that `wanted` names, in the order of the network.

    Args:
        model: Any module.
        wanted: `embed`, `resid` (the whole residual stream), `resid.0` (before the first block) ... `resid.L` (after
            the last), `attn.i`, `mlp.i`, `cross.i`, `mixer.i` (what block i adds to the stream, where it has such a
            part), `final` (after the final norm), real module paths, globs over all of these, or several. In an
            encoder-decoder portable names begin with `encoder.` or `decoder.`, and `resid` is both streams. `:8`
            after a name that means many sites takes at most eight of them, evenly spread from the first to the last:
            `resid:8`. Or a mapping of names of your own choice to module paths, or a function that takes the model and
            returns one: `{"resid.0": "blocks.0:input", "resid.1": "blocks.0"}`. There a path means the module's output,
            and `:input` after it what enters the module.

    >>> blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
    >>> find_sites(nn.ModuleDict({"token": nn.Embedding(9, 4), "blocks": blocks}), "resid")
    [Site('resid.0', input of Linear), Site('resid.1', output of Linear), Site('resid.2', output of Linear)]
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"the model must be a torch.nn.Module, but is a {type(model).__name__}; load it first")
    model = unwrapped(model)
    stacks = find_stacks(model)
    portable = {site.name: site for site in _portable_sites(stacks)}
    inside = {module: stack.name for stack in stacks for module in stack.module.modules()}
    paths = {
        name: Site(name, module, "output", stack=inside.get(module, ""))
        for name, module in model.named_modules()
        if name
    }
    # A portable name means the same in every model, so it takes precedence over a module path of that name.
    known = portable | paths | portable
    wanted = wanted(model) if callable(wanted) else wanted
    if isinstance(wanted, Mapping):
        return _named_sites(wanted, paths)
    if not isinstance(wanted, str | Sequence) or not all(isinstance(pattern, str) for pattern in wanted):
        raise InputError(f"sites must be a name or a list of names, but {wanted!r} came; pass 'resid', for example")
    chosen: set[str] = set()
    for pattern in [wanted] if isinstance(wanted, str) else wanted:
        matches = meant(pattern, known, portable)
        if not matches:
            raise InputError(_unknown(pattern, list(known), list(portable), model))
        chosen |= set(matches)
    if not chosen:
        raise InputError("at least one site must be named, but none is; 'resid' is the whole residual stream")
    return [site for name, site in known.items() if name in chosen]


def watch(site: Site, see: Callable[[Tensor | None], None]) -> RemovableHandle:
    """Hook a site and return the handle of the hook.

    Args:
        site: The site.
        see: Called with the tensor (batch, length, width) itself that flows through the site, or None if none does.
    """

    def on_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        see(_hidden((*args, *kwargs.values())))

    def on_output(module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        values = output.values() if hasattr(output, "values") and not isinstance(output, Tensor) else output
        see(_hidden(list(values) if isinstance(values, Iterable) and not isinstance(values, Tensor) else [values]))

    # Otherwise a compiled block would compile its hooks as well.
    hook: Callable[..., None] = on_input if site.side == "input" else on_output
    if is_compiled(site.module):
        hook = torch.compiler.disable(hook)
    if site.side == "input":
        return site.module.register_forward_pre_hook(hook, with_kwargs=True)
    return site.module.register_forward_hook(hook)


def check_visible(model: nn.Module, sites: Sequence[Site]) -> None:
    """Raise if a site is inside a module that `torch.compile` has compiled, where hooks are silently ignored."""
    for path, outer in model.named_modules():
        if is_compiled(outer):
            inside = set(outer.modules()) - {outer}
            hidden = next((site for site in sites if site.module in inside), None)
            if hidden is not None:
                raise InputError(
                    f"a site must not be inside a compiled module, but {hidden.name} is inside {path or 'the model'}, "
                    "which is; compile its blocks instead, each on its own: `for block in blocks: block.compile()`"
                )


def is_compiled(module: nn.Module) -> bool:
    """Return whether `torch.compile` has wrapped the module, or its `compile` was called."""
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None


def check_carried(site: Site, hidden: Tensor | None, tokens: Tensor | None) -> Tensor:
    """Return the tensor that a site carries, or raise if it does not have one row for each of the tokens."""
    if _is_sequence_first(site.module):
        raise InputError(
            f"{site} must carry the batch first, then positions, but its module has batch_first=False; make it with "
            "batch_first=True, or choose another site"
        )
    of_tokens = () if tokens is None else (tokens.shape, (tokens.numel(),))
    if hidden is None or hidden.shape[:-1] not in of_tokens:
        raise InputError(
            f"{site} must carry a (batch, length, width) tensor for the tokens of the batch, but carries "
            f"{None if hidden is None else tuple(hidden.shape)}; choose another site, or name the stream yourself: "
            "sites={'resid.0': 'path.of.module'}"
        )
    return hidden


def _is_sequence_first(module: nn.Module) -> bool:
    """Return whether a PyTorch module expects positions before the batch.

    If batch and length are equal, the shape of the tensor does not show the mistake, so the module is asked.
    """
    return not all(getattr(part, "batch_first", True) for part in (module, getattr(module, "self_attn", module)))


def wrong_calls(site: Site) -> InputError:
    """Return the error for a site that runs more often or less often in a forward pass than expected."""
    often = "once" if site.calls == 1 else f"{site.calls} times"
    return InputError(
        f"{site} must run {often} in a forward pass, but runs more or less often, so that its layers cannot be told "
        "apart (is its module shared between layers?); choose other sites"
    )


def _hidden(values: Sequence[Any]) -> Tensor | None:
    """Return the first tensor (batch, length, width) among the values, else the first (batch x length, width)."""
    floating = [value for value in values if isinstance(value, Tensor) and value.is_floating_point()]
    return next((value for ndim in (3, 2) for value in floating if value.ndim == ndim), None)


def _named_sites(named: Mapping[Any, Any], paths: Mapping[str, Site]) -> list[Site]:
    """Return sites that have the user's own names, in the order in which they are given.

    Args:
        named: Module paths by name, `:input` after a path for what enters the module.
        paths: The outputs of all modules by path.
    """
    if not named:
        raise InputError("at least one site must be named, but none is; pass {'resid.0': 'path.of.module'}")
    for name, given in named.items():
        if not isinstance(name, str) or not isinstance(given, str) or ":" in name or name in ("", MEAN_SITE):
            raise InputError(
                f"sites must map names, without ':' and other than {MEAN_SITE!r}, to module paths, but {name!r}: "
                f"{given!r} came; pass {{'resid.0': 'path.of.module'}}, for example"
            )
    depth = depths(named)
    return [replace(_at_path(given, paths), name=name, depth=depth[name]) for name, given in named.items()]


def _at_path(given: str, paths: Mapping[str, Site]) -> Site:
    """Return the output of a module, or its input if `:input` comes after its path."""
    path, _, side = given.partition(":")
    if path not in paths or side not in ("", "input", "output"):
        raise InputError(
            f"sites must map names to paths of modules, with ':input' for what enters one, but {given!r} is none; "
            f"{_nearest(path, list(paths))}"
        )
    site = paths[path]
    if not runs(site.module):
        raise InputError(
            f"a site must be at a module that runs, but {path} is a {type(site.module).__name__}, which only holds "
            f"others; {_nearest(f'{path}.0', list(paths))}"
        )
    return replace(site, side="input") if side == "input" else site


def _nearest(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return f"the nearest are {', '.join(near)}" if near else "module paths work too"


def _unknown(pattern: str, known: list[str], portable: list[str], model: nn.Module) -> str:
    """Return the message for a pattern that matches no site: the nearest names, and all portable ones.

    Of a model without portable names, it says what the blocks may be instead.
    """
    # A family is shown as a range, from its first to its last member.
    last = {re.sub(r"\d+$", "", name): name for name in portable}
    shown = [name if start == name else f"{start}0 to {name}" for start, name in last.items()]
    has = ", ".join(shown) or f"no portable ones, as no list of blocks was recognised; {candidates(model)}"
    return f"a site must exist in the model, but {pattern!r} does not; {_nearest(pattern, known)}; this model has {has}"


def _portable_sites(stacks: Sequence[Stack]) -> Iterator[Site]:
    """Yield the portable sites in the order of the network; in an encoder-decoder, names begin with its half."""
    for stack in stacks:
        prefix = f"{stack.name}." if stack.name else ""
        site = partial(Site, stack=stack.name)
        if stack.embedding is not None:
            yield site(f"{prefix}embed", stack.embedding, "output", 0.0)
        last = len(stack.blocks)
        start = stack.blocks[0]
        yield site(f"{prefix}resid.0", start.first, "input", 0.0, start.call, start.calls)
        for i, block in enumerate(stack.blocks):
            for kind, module in block.added.items():
                yield site(f"{prefix}{kind}.{i}", module, "output", (i + 0.5) / last, block.call, block.calls)
            yield site(f"{prefix}resid.{i + 1}", block.last, "output", (i + 1) / last, block.call, block.calls)
        if stack.norm is not None:
            yield site(f"{prefix}final", stack.norm, "output", 1.0)
