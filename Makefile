# `make demo` and `make test` create what they need in .venv; PYTHON picks the interpreter (3.11 to 3.13).
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO_TRACE := sample_traces/wide-nvlink-alltoall.sqlite

# Megatron-Bridge itself, on a CPU: Python 3.12 and about 3 GB. --no-deps leaves out what only a GPU machine can build.
BRIDGE_PYTHON ?= python3.12
BRIDGE_VENV := .venv-bridge
# PyTorch's build for CPUs is a tenth of the size: BRIDGE_INDEX='--extra-index-url https://download.pytorch.org/whl/cpu'.
BRIDGE_INDEX ?=
BRIDGE_NEEDS := torch 'transformers<5' 'huggingface-hub<1' omegaconf 'hydra-core>1.3,<=1.3.2' numpy pyyaml rich tqdm \
	regex six typing-extensions packaging einops datasets triton pillow
# Every release, with its Megatron Core, has a folder of its own. The newer ones need a newer transformers than the venv has.
BRIDGE_RELEASES := 0.3.1 0.4.2 0.5.1 0.6.2
BRIDGE_CORE_0.3.1 := 0.16.1
BRIDGE_CORE_0.4.2 := 0.17.1
BRIDGE_CORE_0.5.1 := 0.18.2
BRIDGE_CORE_0.6.2 := 0.19.2
BRIDGE_NEWER := 0.5.1 0.6.2
BRIDGE_TRANSFORMERS := 'transformers>=5.8.1,<5.9'

.PHONY: test-bridge demo test fuzz fast format lint types contracts unit docs coverage clean help

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/\t/'

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

demo: $(VENV)/.installed  ## analyze a bundled real trace
	$(BIN)/three-walls analyze $(DEMO_TRACE) --out demo.three-walls
	@echo "Open demo.three-walls/report.html in a browser."

test: lint types contracts unit  ## everything CI runs, under 6 minutes on two cores

fast: $(VENV)/.installed  ## the part to run while you edit, under a minute: style, contracts, quick tests
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/pytest -n auto --dist loadgroup -m "not slow"

format: $(VENV)/.installed  ## write the code in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: $(VENV)/.installed  ## style
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.installed  ## static types
	$(BIN)/mypy

contracts: $(VENV)/.installed  ## data flows one way
	$(BIN)/lint-imports --no-cache

unit: $(VENV)/.installed  ## tests, rule cases, labelled real traces
	$(BIN)/pytest -n auto --dist loadgroup

fuzz: $(VENV)/.installed  ## attack the command line with 3,000 cases, under 2 minutes; FUZZ='--seed 7 --minutes 60' takes more
	$(BIN)/python -m tests.fuzz --keep fuzz_failures $(FUZZ)

coverage: $(VENV)/.installed  ## tests, with the share of lines and branches that they run
	$(BIN)/pytest -n auto --dist loadgroup --cov=three_walls --cov-branch --cov-report=term:skip-covered

docs: $(VENV)/.installed  ## write docs/generated and build the site; a warning is an error
	$(BIN)/python -m tools.generate_docs
	$(BIN)/python -m tools.generate_report_docs
	$(BIN)/python -m tools.generate_rules_index
	$(BIN)/python -m tools.guide_coverage
	$(BIN)/mkdocs build --quiet --strict

$(BRIDGE_VENV)/.installed: Makefile
	$(BRIDGE_PYTHON) -m venv $(BRIDGE_VENV)
	$(BRIDGE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check $(BRIDGE_INDEX) $(BRIDGE_NEEDS)
	$(BRIDGE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --target $(BRIDGE_VENV)/transformers \
		--upgrade $(BRIDGE_TRANSFORMERS)
	$(foreach release,$(BRIDGE_RELEASES),$(BRIDGE_VENV)/bin/python -m pip install --quiet --disable-pip-version-check \
		--no-deps --upgrade --target $(BRIDGE_VENV)/$(release) \
		megatron-bridge==$(release) megatron-core==$(BRIDGE_CORE_$(release)) &&) true
	touch $@

BRIDGES := $(foreach release,$(BRIDGE_RELEASES),$(release)=$(CURDIR)/$(BRIDGE_VENV)/bin/python$(if \
	$(filter $(release),$(BRIDGE_NEWER)),:$(CURDIR)/$(BRIDGE_VENV)/transformers):$(CURDIR)/$(BRIDGE_VENV)/$(release))

test-bridge: $(VENV)/.installed $(BRIDGE_VENV)/.installed  ## our checker against four releases of Megatron-Bridge
	THREE_WALLS_BRIDGES="$(BRIDGES)" $(BIN)/pytest -n 2 tests/bridge

clean:  ## remove what make created
	rm -rf $(VENV) $(BRIDGE_VENV) demo.three-walls .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
