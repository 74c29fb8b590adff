# `make demo` and `make test` create what they need in .venv; PYTHON picks the interpreter.
PYTHON ?= python3
# The interpreters for which constraints.txt and constraints-dev.txt hold a version of every package, with its hashes. Any
# other one gets the newest versions that pyproject.toml allows.
LOCKED := 3.11 3.12 3.13
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check --no-compile
VENV := .venv
BIN := $(VENV)/bin
DEMO_TRACE := sample_traces/wide-nvlink-alltoall.sqlite

# Megatron-Bridge itself, on a CPU: Python 3.12 and about 3 GB. --no-deps leaves out what only a GPU machine can build.
# pyenv's python3.12 runs only where pyenv has selected a 3.12; it is then taken from pyenv's own folder.
BRIDGE_PYTHON ?= $(or $(shell python3.12 -c 'import sys; print(sys.executable)' 2>/dev/null || \
	ls -d "$$(pyenv root)"/versions/3.12.*/bin/python 2>/dev/null | tail -1),python3.12)
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

# Containers often turn off bytecode. Every command then takes twice as long to start: it compiles all modules, and reads
# the tables as YAML.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test-bridge demo test attacks exhaustive accuracy fast format lint types contracts unit docs coverage clean help

help:  ## what can be made
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*##/\t/'

$(VENV)/.installed: pyproject.toml constraints-dev.txt
	$(call install,$(PYTHON),$(VENV))
	touch $@

# $(call install,INTERPRETER,VENV): a new environment with the project and its tools in it.
define install
$(1) -m venv $(2)
case " $(LOCKED) " in \
	*" $$($(1) -c 'import sys; print("%d.%d" % sys.version_info[:2])') "*) \
		$(2)/bin/python $(PIP_INSTALL) --require-hashes -r constraints-dev.txt && \
		$(2)/bin/python $(PIP_INSTALL) --no-deps --no-build-isolation -e . ;; \
	*) $(2)/bin/python $(PIP_INSTALL) -e '.[dev]' ;; \
esac
endef

demo: $(VENV)/.installed  ## analyze a bundled real trace
	$(BIN)/three-walls analyze $(DEMO_TRACE) --out demo.three-walls
	@echo "Open demo.three-walls/report.html in a browser."

test: $(VENV)/.installed  ## all but attacks, base traces and exhaustive tests: about four minutes on two cores
	$(MAKE) --no-print-directory --jobs=2 lint types contracts unit

# A worker per core and one more, because tests of jobs sleep: a tenth less of the time on two cores. Polars takes a tenth
# less with one thread. The other targets leave polars as many as there are.
PYTEST := POLARS_MAX_THREADS=1 $(BIN)/pytest -n $(shell expr $$(nproc) + 1) --dist loadgroup

fast: $(VENV)/.installed  ## the part to run while you edit, under a minute on two cores: style, contracts, quick tests
	$(BIN)/ruff check .
	$(BIN)/lint-imports --no-cache
	$(PYTEST) -m "not slow and not exhaustive"

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
	@# In a new checkout all is compiled once, not by every worker.
	@[ -d tests/__pycache__ ] || $(BIN)/pytest --collect-only -qq >/dev/null || true
	$(PYTEST) -m "not attack and not base and not exhaustive"

exhaustive: $(VENV)/.installed  ## every release, page, seed and capture of which make test tries examples
	$(PYTEST) -m exhaustive

attacks: $(VENV)/.installed  ## hostile inputs: their tests, then 3,000 cases of the fuzzer; FUZZ='--seed 7 --minutes 60' takes more
	$(BIN)/pytest -n auto --dist loadgroup -m attack
	$(BIN)/python -m tests.fuzz --keep fuzz_failures $(FUZZ)

accuracy: $(VENV)/.installed  ## predicted against measured steps, and the labels of the base traces; THREE_WALLS_TRACES=FOLDER holds more base traces
	$(BIN)/python -m tools.accuracy
	$(BIN)/pytest -n auto --dist loadgroup -m base

.PHONY: bench bench-gate
bench: $(VENV)/.installed  ## CPU, wall and memory next to the floor, nsys-ai and nsys stats; BENCH='--steps 57 --long 800 --write'
	$(BIN)/python benchmarks/run.py --nsys "$(NSYS)" $(BENCH)

bench-gate: $(VENV)/.installed  ## fails where the program became slower than benchmarks/ratios.yaml allows, 20 s
	$(BIN)/python benchmarks/gate.py

coverage: $(VENV)/.installed  ## tests, with the share of lines and branches that they run
	$(BIN)/pytest -n auto --dist loadgroup --cov=three_walls --cov-branch --cov-report=term:skip-covered

docs: $(VENV)/.installed  ## write docs/generated and build the site; a warning is an error
	$(BIN)/python -m tools.generate_docs
	$(BIN)/python -m tools.generate_report_docs
	$(BIN)/python -m tools.generate_rules_index
	$(BIN)/python -m tools.generate_bandwidth_page
	$(BIN)/python -m tools.generate_sample_report
	$(BIN)/python -m tools.generate_tutorial
	$(BIN)/mkdocs build --quiet --strict

$(BRIDGE_VENV)/.installed: Makefile
	$(BRIDGE_PYTHON) -m venv $(BRIDGE_VENV)
	$(BRIDGE_VENV)/bin/python $(PIP_INSTALL) $(BRIDGE_INDEX) $(BRIDGE_NEEDS)
	$(BRIDGE_VENV)/bin/python $(PIP_INSTALL) --target $(BRIDGE_VENV)/transformers \
		--upgrade $(BRIDGE_TRANSFORMERS)
	$(foreach release,$(BRIDGE_RELEASES),$(BRIDGE_VENV)/bin/python $(PIP_INSTALL) \
		--no-deps --upgrade --target $(BRIDGE_VENV)/$(release) \
		megatron-bridge==$(release) megatron-core==$(BRIDGE_CORE_$(release)) &&) true
	touch $@

BRIDGES := $(foreach release,$(BRIDGE_RELEASES),$(release)=$(CURDIR)/$(BRIDGE_VENV)/bin/python$(if \
	$(filter $(release),$(BRIDGE_NEWER)),:$(CURDIR)/$(BRIDGE_VENV)/transformers):$(CURDIR)/$(BRIDGE_VENV)/$(release))

test-bridge: $(VENV)/.installed $(BRIDGE_VENV)/.installed  ## our checker against four releases of Megatron-Bridge; the exchange of tokens on two processes
	THREE_WALLS_BRIDGES="$(BRIDGES)" $(BIN)/pytest -n 2 tests/bridge
	THREE_WALLS_TORCH=$(CURDIR)/$(BRIDGE_VENV)/bin/python $(BIN)/pytest tests/benchmarks/test_dispatch_bandwidth.py

.PHONY: add-bridge
# The folders of a release that BRIDGE_RELEASES does not name yet; every new one needs the newer transformers.
ADDED_PATH = $(if $(filter $(RELEASE),$(filter-out $(BRIDGE_NEWER),$(BRIDGE_RELEASES))),,$(BRIDGE_VENV)/transformers:)$(BRIDGE_VENV)/$(RELEASE)
ASK_BRIDGE = PYTHONPATH=$(ADDED_PATH) $(BRIDGE_VENV)/bin/python
add-bridge: $(VENV)/.installed $(BRIDGE_VENV)/.installed  ## write the tables of a Megatron-Bridge release: RELEASE=0.7.0 CORE=0.20.0
	$(BRIDGE_VENV)/bin/python $(PIP_INSTALL) --no-deps --upgrade --target $(BRIDGE_VENV)/$(RELEASE) \
		megatron-bridge==$(RELEASE) megatron-core==$(CORE)
	$(BIN)/python tools/bridge_schema.py $(RELEASE) $(CORE) $(BRIDGE_VENV)/$(RELEASE)
	test ! -e tables/generated/bridge/$(RELEASE).yaml || $(ASK_BRIDGE) tools/recipe_overlaps.py $(RELEASE)
	test ! -e tables/generated/bridge/$(RELEASE).yaml || $(ASK_BRIDGE) tools/bridge_type_mismatches.py $(RELEASE)
	git status --short tables/generated

NSYS ?= nsys
# nsys runs recipes with the python3 on PATH, which needs these packages; three-walls itself stays in its own environment.
NSYS_VENV := .venvs/nsys
NSYS_NEEDS := numpy pandas psutil pyarrow

.PHONY: test-nsys
test-nsys: $(VENV)/.installed  ## attach, reports and the recipe with a real Nsight Systems: NSYS=PATH; needs no GPU
	$(PYTHON) -m venv $(NSYS_VENV)
	$(NSYS_VENV)/bin/python $(PIP_INSTALL) $(NSYS_NEEDS)
	nsys=$$(command -v $(NSYS)); PATH="$(CURDIR)/$(NSYS_VENV)/bin:$$(dirname "$$nsys"):$$PATH" THREE_WALLS_NSYS="$$nsys" \
		$(BIN)/pytest -rs tests/nsys tests/capture/nsys_recipe

# The browser of `make test-browser`: any Chromium or Chrome.
CHROMIUM ?= $(or $(shell command -v chromium || command -v chromium-browser || command -v google-chrome),/usr/bin/chromium)
.PHONY: test-browser
test-browser: $(VENV)/.installed  ## report.html in a real browser; CHROMIUM=PATH picks it
	$(BIN)/python $(PIP_INSTALL) --no-build-isolation -e '.[browser]'
	THREE_WALLS_CHROMIUM="$(CHROMIUM)" $(BIN)/pytest tests/browser

.PHONY: test-cluster
test-cluster: $(VENV)/.installed  ## --scheduler with a Dask scheduler and two workers, as processes of this machine
	$(BIN)/python $(PIP_INSTALL) --no-build-isolation -e '.[cluster]'
	THREE_WALLS_CLUSTER=1 $(BIN)/pytest tests/step/survey/cluster

# Interpreters that `make test-pythons` tries; those that are not installed are named and left out.
PYTHONS ?= python3.11 python3.12 python3.13
# What it runs in each: the commands and the library. SMOKE_TESTS=tests runs everything.
SMOKE_TESTS ?= tests/test_cli.py tests/test_library.py

.PHONY: test-pythons smoke test-lowest lock sbom
test-pythons: constraints-dev.txt  ## a part of the tests with every supported interpreter that is installed
	@for python in $(PYTHONS); do \
		if ! $$python -c '' 2>/dev/null; then echo "$$python is not installed: not tested"; continue; fi; \
		echo "testing with $$($$python --version)"; \
		$(MAKE) --no-print-directory PYTHON=$$python VENV=.venvs/$$python smoke || exit 1; \
	done

smoke: $(VENV)/.installed
	$(BIN)/pytest -n auto --dist loadgroup -m "not attack" $(SMOKE_TESTS)
	$(BIN)/three-walls analyze $(DEMO_TRACE) --quiet --out $(VENV)/demo.three-walls

TOOLS := .venvs/tools
$(TOOLS)/.installed: Makefile
	$(PYTHON) -m venv $(TOOLS)
	$(TOOLS)/bin/python $(PIP_INSTALL) uv cyclonedx-bom
	touch $@

test-lowest: $(TOOLS)/.installed pyproject.toml  ## the tests with the lowest versions that pyproject.toml allows
	$(TOOLS)/bin/uv venv --quiet --clear --python $(PYTHON) .venvs/lowest
	$(TOOLS)/bin/uv pip install --quiet --python .venvs/lowest/bin/python --resolution lowest-direct -e '.[dev,fast]'
	.venvs/lowest/bin/python -m pytest -n auto --dist loadgroup

# Run it to take up newer versions; the tests then tell whether they fit.
COMPILE := $(TOOLS)/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-strip-extras
lock: $(TOOLS)/.installed  ## write constraints.txt (to run) and constraints-dev.txt (to develop), with hashes
	$(COMPILE) --upgrade --extra dev --extra fast --extra plotly pyproject.toml --output-file constraints-dev.txt
	$(COMPILE) --upgrade --constraint constraints-dev.txt pyproject.toml --output-file constraints.txt

sbom: $(TOOLS)/.installed  ## write dist/three-walls.cdx.json: the packages that a user installs, in CycloneDX
	mkdir -p dist
	$(TOOLS)/bin/cyclonedx-py requirements --pyproject pyproject.toml --output-reproducible \
		--output-file dist/three-walls.cdx.json constraints.txt

clean:  ## remove what make created
	rm -rf $(VENV) $(BRIDGE_VENV) .venvs demo.three-walls .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
