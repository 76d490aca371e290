# Each target builds the environment that it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
PYTEST := OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help quickstart check test format hooks gpu bench docs clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

quickstart: $(VENV)/.quickstart  ## compare methods against drift on real digits: a table and a plot
	$(BIN)/kedge run quickstart --force --out runs/quickstart --target 0.9 \
	  --methods "fedavg, feddyn, scaffold, fedbug+fedavg, fedbug+feddyn"

check: $(VENV)/.dev  ## while you work: lint, types, fast tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -m "not slow and not thorough"

test: $(VENV)/.dev  ## before a commit: lint, types, fast tests with coverage, slow tests; CI runs this
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(PYTEST) -m "not slow" --cov --cov-report=term-missing
	$(PYTEST) -m slow

format: $(VENV)/.dev  ## format the code and repair what ruff can repair
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

hooks: $(VENV)/.hooks  ## check each commit of this clone with pre-commit

gpu: $(VENV)/.dev  ## on a machine with a GPU: its tests, then the tables of docs/performance.md
	OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 $(BIN)/pytest -m gpu -n 8 --dist worksteal
	$(BIN)/kedge bench packing --device cuda --repeats 9
	$(BIN)/kedge bench freezing --device cuda --repeats 3 --precisions tf32,bf16
	$(BIN)/kedge bench networks --device cuda --repeats 3

bench: $(VENV)/.quickstart  ## samples per second of the engines on this machine
	$(BIN)/kedge bench

docs: $(VENV)/.quickstart  ## write the pages of docs/methods and the README's table of methods
	$(BIN)/python docs/methods/generate.py
	$(BIN)/python -m docs.readme

clean:  ## remove the environment, runs and caches
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .coverage*

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "kedge needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.quickstart: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) --editable '.[plot]'
	touch $@

$(VENV)/.dev: $(VENV)/.python pyproject.toml constraints.txt
	$(PIP) --editable '.[dev]'
	touch $@ $(VENV)/.quickstart

$(VENV)/.hooks: $(VENV)/.dev .pre-commit-config.yaml
	$(PIP) pre-commit
	$(BIN)/pre-commit install
	touch $@
