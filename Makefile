# Each target builds what it needs; nothing has to be done before.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: quickstart test check gpu bench docs clean

quickstart: $(VENV)/.quickstart  ## methods against drift on real digits: a table and a plot
	$(BIN)/kedge run quickstart --force --out runs/quickstart --target 0.9 \
	  --methods "fedavg, feddyn, scaffold, fedbug+fedavg, fedbug+feddyn"

test: $(VENV)/.dev  ## everything CI runs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal --cov --cov-report=term-missing

check: $(VENV)/.dev  ## the fast part, while developing
	$(BIN)/ruff check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal -m "not slow"

gpu: $(VENV)/.dev  ## what only a GPU can show: its tests, then the figures of docs/performance.md
	OMP_NUM_THREADS=1 TORCHINDUCTOR_COMPILE_THREADS=1 $(BIN)/pytest -m gpu -n 8 --dist worksteal
	$(BIN)/kedge bench packing --device cuda --repeats 9
	$(BIN)/kedge bench freezing --device cuda --repeats 3 --precisions tf32,bf16
	$(BIN)/kedge bench networks --device cuda --repeats 3

bench: $(VENV)/.quickstart  ## samples/s of the engines on this machine
	$(BIN)/kedge bench

docs: $(VENV)/.quickstart  ## the pages of docs/methods and the table in README.md, from texts and code
	$(BIN)/python docs/methods/generate.py
	$(BIN)/python -m docs.readme

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

clean:
	rm -rf $(VENV) runs build dist .pytest_cache .mypy_cache .ruff_cache .coverage*
