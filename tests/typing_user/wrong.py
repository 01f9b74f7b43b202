"""Mistakes of a user, one a line, each of which a type checker must find. It is checked and never run."""

import tangentlens as tl

tl.anisotropyy([[1.0, 2.0]])  # no such name
tl.anisotropy([[1.0, 2.0]], centre=True)  # no such argument
tl.open_run(7)  # no path
text: str = tl.open_run("run").records  # a table is no text
tl.Interval(0.5, 0.4)  # one end is missing
