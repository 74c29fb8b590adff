# `make demo` and `make test` create what they need in .venv; PYTHON picks the interpreter (3.11 to 3.13).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_TRACE := sample_traces/wide-nvlink-alltoall.sqlite

.PHONY: demo test lint types contracts unit clean help

help:  ## what can be made
	@grep -E '^[a-z]+:.*##' Makefile | sed 's/:.*##/\t/'

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

demo: $(VENV)/.installed  ## analyze a bundled real trace
	$(BIN)/three-walls analyze $(DEMO_TRACE) --out demo.three-walls
	@echo "Open demo.three-walls/report.html in a browser."

test: lint types contracts unit  ## everything CI runs

lint: $(VENV)/.installed  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed  ## static types
	$(BIN)/mypy

contracts: $(VENV)/.installed  ## data flows one way
	$(BIN)/lint-imports --no-cache

unit: $(VENV)/.installed  ## tests, rule cases, labelled real traces
	$(BIN)/pytest -n auto

clean:  ## remove what make created
	rm -rf $(VENV) demo.three-walls .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
