"""What a user is told of a model whose blocks are not found: what it has, and how to name its residual stream."""

from __future__ import annotations

from torch import nn

from tangentlens.capture.stacks import entries, module_lists, runs

# How many lists and embeddings are named.
_MOST = 6


def candidates(model: nn.Module) -> str:
    """Return which lists of modules and which embeddings a model has, and an example of `sites` made of them."""
    lists = {path or "the model itself": entries(module) for path, module in module_lists(model).items()}
    shown = [f"{path} ({len(found)} of {_classes(found)})" for path, found in lists.items()]
    tables = [
        f"{path} ({module.num_embeddings} x {module.embedding_dim})"
        for path, module in model.named_modules()
        if isinstance(module, nn.Embedding)
    ]
    return (
        f"lists of modules: {_some(shown)}; embeddings: {_some(tables)}; to name the stream yourself, pass "
        f"sites={_example(model)}, where a path means the module's output and ':input' after it what enters the module"
    )


def _classes(modules: list[nn.Module]) -> str:
    return " or ".join(sorted({type(module).__name__ for module in modules}))


def _some(names: list[str]) -> str:
    return ", ".join(names[:_MOST]) + (f" and {len(names) - _MOST} more" if len(names) > _MOST else "") or "none"


def _example(model: nn.Module) -> str:
    """Return how the stream might be named: by what enters the first part of each block, if the longest list has them.

    Outputs are no example: whole blocks, whose outputs are the stream, would have been found.
    """
    lists = module_lists(model)
    path = max(lists, key=lambda one: len(entries(lists[one])), default=None)
    if path is None:
        return "{'resid.0': 'path.of.embedding', 'resid.1': 'path.of.first.block', ...}"
    paths = {module: name for name, module in model.named_modules()}
    firsts = [f"'resid.{i}': '{paths[_first(block)]}:input'" for i, block in enumerate(entries(lists[path])[:2])]
    return f"{{{', '.join(firsts)}, ...}}"


def _first(module: nn.Module) -> nn.Module:
    """Return the first module that runs: lists do not, only what they hold."""
    inside = list(module.children())
    return module if runs(module) or not inside else _first(inside[0])
