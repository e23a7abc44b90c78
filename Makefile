# Two headline commands: `make demo` and `make test`. Both work from a fresh clone and are quick the second time.

PYTHON ?= python3
# the torch to install; for the small CPU build on Linux,
# TORCH='torch torchvision --index-url https://download.pytorch.org/whl/cpu': each build of torch has its own torchvision
TORCH ?= torch
VENV := .venv
BIN := $(VENV)/bin
PEERS := $(VENV)/peers
# one torch thread per process: small networks gain nothing from more
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
# what is compiled is kept, where containers forbid it, too: tests start many processes
COMPILED := PYTHONDONTWRITEBYTECODE=
# one more than most machines have cores: many tests wait, for a browser, a server or a new process
WORKERS ?= 3
# what depends on the releases of modAL and scikit-learn
MODAL_TESTS := tests/compat tests/learners/test_active.py tests/strategies/test_uncertainty.py

.PHONY: demo label test test-modal test-new-modal test-old-sklearn test-new-modal-old-sklearn lint format docs bench clean
.DEFAULT_GOAL := test

demo: $(VENV)/.installed
	$(BIN)/skal demo

label: $(VENV)/.installed-label
	$(BIN)/skal label --demo

# The whole suite on the newest modAL that installs beside skorch, then the modAL tests alone on the other release and
# on an older scikit-learn.
test: $(VENV)/.installed-dev $(PEERS)/.installed
	$(BIN)/python -m pip check
	$(ONE_THREAD) $(COMPILED) $(BIN)/python -m pytest -n $(WORKERS) -q
	$(MAKE) --no-print-directory test-modal

# beside one another, since each begins with a start
test-modal: $(VENV)/.installed-dev $(PEERS)/.installed
	$(MAKE) --no-print-directory -j 3 test-new-modal test-old-sklearn test-new-modal-old-sklearn

RUN_MODAL_TESTS = $(BIN)/python -m pytest -q -p no:cacheprovider $(MODAL_TESTS)

test-new-modal:
	$(ONE_THREAD) $(COMPILED) PYTHONPATH=$(PEERS)/modal-0.4.2.1 SKAL_TEST_MODAL=0.4.2.1 $(RUN_MODAL_TESTS)

test-old-sklearn:
	$(ONE_THREAD) $(COMPILED) PYTHONPATH=$(PEERS)/scikit-learn-1.6 SKAL_TEST_SKLEARN=1.6 $(RUN_MODAL_TESTS)

test-new-modal-old-sklearn:
	$(ONE_THREAD) $(COMPILED) PYTHONPATH=$(PEERS)/modal-0.4.2.1:$(PEERS)/scikit-learn-1.6 \
		SKAL_TEST_MODAL=0.4.2.1 SKAL_TEST_SKLEARN=1.6 $(RUN_MODAL_TESTS)

lint: $(VENV)/.installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# from nothing each time: pages of names that no longer exist would stay, and tutorials would not notice a change in skal
docs: $(VENV)/.installed-docs
	rm -rf docs/api/generated docs/auto_tutorials docs/_build/html
	$(ONE_THREAD) $(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html

bench: $(VENV)/.installed-bench
	$(BIN)/python -m benchmarks

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and \
		"skal needs Python 3.10 or newer. Try: make PYTHON=python3.11")'
	$(PYTHON) -m venv $(VENV)

# torch goes first: a CPU build then satisfies every other package's requirement
$(VENV)/.installed: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --constraint constraints.txt $(TORCH)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

$(VENV)/.installed-docs: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[docs]'
	touch $@

$(VENV)/.installed-label: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[label]'
	touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	touch $@

# packages that cannot be installed beside the others: each in a folder of its own, for PYTHONPATH
$(PEERS)/.installed: $(VENV)/.installed-dev Makefile
	rm -rf $(PEERS)
	$(BIN)/python -m pip install --quiet --no-deps --target $(PEERS)/modal-0.4.2.1 modAL-python==0.4.2.1
	$(BIN)/python -m pip install --quiet --no-deps --target $(PEERS)/scikit-learn-1.6 scikit-learn==1.6.1
	touch $@

clean:
	rm -rf $(VENV) build dist *.egg-info docs/_build docs/api/generated docs/auto_tutorials skal-demo skal-label-demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
