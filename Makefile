# Two commands for a newcomer: `make demo` and `make test`. Both set up what they need, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check bench clean
.DELETE_ON_ERROR:

demo: $(READY)  ## train two small models with the lens on, and write a report
	$(BIN)/tangentlens demo

test: $(READY)  ## run every test and every documented example
	$(BIN)/pytest -q -n auto

check: $(READY)  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)  ## measured ratios, printed
	for file in benchmarks/*.py; do $(BIN)/python $$file || exit 1; done

clean:
	rm -rf $(VENV)

# The stamp is written last: an interrupted set-up starts over.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tangentlens needs Python 3.11 or newer, but $(PYTHON) is `$(PYTHON) --version`; name another: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@
