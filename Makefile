# Every target sets up what it needs: a virtual environment, torch first, then the package.
PYTHON ?= python3
VENV ?= .venv
OUT ?= build/demo
BIN := $(VENV)/bin
READY := $(VENV)/.ready
# One more than there are CPUs: many tests wait for a process or a limit of the sandbox.
PROCESSES ?= $(shell $(PYTHON) -c "import os; print(1 + (os.cpu_count() or 1))")
PYTEST := $(BIN)/python -m pytest --numprocesses $(PROCESSES) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

export HF_HUB_DISABLE_TELEMETRY := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Where it is set, every process that a test starts would compile everything again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test test-slow test-all lint types check docs lock clean

help: ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

demo: $(READY) ## sample traces -> rows -> a trained tiny adapter, under OUT (build/demo)
	$(BIN)/python benchmarks/demo.py --out $(OUT)

test: $(READY) ## run the tests, except those marked slow
	$(PYTEST) -m "not slow"

test-slow: $(READY) ## run the tests marked slow: kills, installations, whole trainings
	$(PYTEST) -m slow

test-all: test test-slow ## run every test (benchmarks are separate, see benchmarks)

lint: $(READY) ## formatting and style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY) ## mypy, strict
	$(BIN)/mypy

check: lint types test ## all of the above

docs: $(READY) ## write the generated pages and build the site into build/site
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group docs
	$(BIN)/python docs/generate.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lock: $(READY) ## write jobs/requirements.txt: what a job installs, on Linux with CUDA
	$(BIN)/uv pip compile pyproject.toml --extra train --extra verify --constraint constraints.txt \
	    --python-platform x86_64-unknown-linux-gnu --python-version 3.11 --upgrade --quiet \
	    --no-annotate --custom-compile-command "make lock" --output-file jobs/requirements.txt

clean: ## remove what was built, keep the environment
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or later is needed, this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade "pip>=25.1"
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[train,ray,verify,fast]" --group dev
	touch $(READY)
