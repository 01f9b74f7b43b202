"""Arguments and defaults of every public name, and options of every command, do not change unnoticed."""

import inspect
import re

import typer

import tangentlens as tl
from kept import as_kept
from tangentlens.cli import app


def arguments(function):
    """The arguments of a function with their defaults, without types."""
    given = inspect.signature(function)
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in given.parameters.values()]
    told = str(given.replace(parameters=plain, return_annotation=inspect.Signature.empty))
    return re.sub(r" at 0x[0-9a-f]+", "", told)


def described(name, thing):
    """Lines that say how to call a public thing and its methods."""
    if inspect.isclass(thing) and not issubclass(thing, Exception):
        yield f"{name}{arguments(thing)}"
        for method, found in sorted(vars(thing).items()):
            if inspect.isfunction(found) and not method.startswith("_"):
                yield f"{name}.{method}{arguments(found)}"
    elif inspect.isfunction(thing):
        yield f"{name}{arguments(thing)}"


def options():
    """Lines that say which options each command has, with their defaults."""
    for name, command in sorted(typer.main.get_command(app).commands.items()):
        for one in command.params:
            yield f"tangentlens {name} {'/'.join(one.opts)} {one.default!r}"


def test_arguments_options_and_defaults_are_those_that_were_kept():
    """`KEEP=1` keeps the new ones; docs/stability.md says what a change of them comes with."""
    lines = [line for name in sorted(tl.__all__) for line in described(name, getattr(tl, name))]
    told = "\n".join([*lines, *options(), ""])
    assert told.splitlines() == as_kept("signatures.txt", told).splitlines()
