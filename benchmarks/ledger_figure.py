"""The figure of docs/ledger.md: effects of the claims about ratios, with intervals and margins.

`ledger_figure.py OUT.html RUN...`: runs, or folders of studies.
"""

import sys

from tangentlens.report.reading import read_runs
from tangentlens.runs.run import runs_in
from tangentlens.studies.claims.section import ledger_figure

if __name__ == "__main__":
    out, *paths = sys.argv[1:]
    figure = ledger_figure(read_runs([run for path in paths for run in runs_in(path)]))
    figure.plot.update_layout(width=1100, title={"text": figure.title, "x": 0.5}, margin={"t": 50})
    figure.plot.write_html(out, config={"displayModeBar": False})
