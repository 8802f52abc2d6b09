# The two commands of this project: `make demo` runs the complete workflow at a small scale, `make test` runs the tests.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
CORES ?= all
RESULTS := results/smoke/report

.DEFAULT_GOAL := help
.PHONY: help install demo test test-fast lint docs coverage ui clean bench

help:  ## list the commands
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 16

# Most modules of the dependencies are never imported: compiling all would take two minutes more. What is imported is
# compiled once, also where a container's environment forbids it: else every start would do it again (7 CPU-s for Snakemake).
unexport PYTHONDONTWRITEBYTECODE
QUIETLY := --quiet --disable-pip-version-check --no-compile

install: $(VENV)/.ready  ## create the virtual environment with the locked dependencies

# Scripts of a virtual environment contain its path: an environment in a moved folder is created again.
ifneq "$(wildcard $(VENV)/.ready)" ""
ifneq "$(shell cat $(VENV)/.ready)" "$(CURDIR)"
.PHONY: $(VENV)/.ready
CLEAR := --clear
endif
endif

$(VENV)/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "$(PYTHON) is missing or older than 3.11; name a newer one: make PYTHON=python3.12 demo" >&2; exit 1; }
	@echo "[1/3] virtual environment $(VENV)"
	@$(PYTHON) -m venv $(CLEAR) $(VENV) || { \
	  echo "python cannot make a virtual environment; on Debian or Ubuntu: apt install python3-venv" >&2; \
	  rm -rf $(VENV); exit 1; }
	@echo "[2/3] PyTorch, then the locked dependencies (about 2 GB, a few minutes)"
	@$(BIN)/pip install $(QUIETLY) "$$(grep '^torch==' requirements.lock)"
	@$(BIN)/pip install $(QUIETLY) -r requirements.lock
	@echo "[3/3] this package"
	@$(BIN)/pip install $(QUIETLY) --no-deps -e .
	@echo "$(CURDIR)" > $@

demo: install  ## run the complete workflow at a small scale, on CPU
	@echo "Running configs/smoke.yaml: five attention variants, from text to tables, on CPU."
	@$(BIN)/snakemake --cores $(CORES) --logger status
	@echo
	@awk '/^\*\*/{n++} n<2' $(RESULTS)/compare.md
	@echo "Look at:  $(RESULTS)/report.html    everything on one page"
	@echo "          make ui                              the runs in MLflow"

# Test files are not split; long ones first (tests/conftest.py), on three workers, since some wait for Slurm.
WORKERS := -n 3 --dist loadgroup --no-loadscope-reorder

test: install  ## run all tests
	@$(BIN)/python -m pytest $(WORKERS)

test-fast: install  ## run the tests without Slurm and complete workflows
	@$(BIN)/python -m pytest $(WORKERS) -m "not slow and not slurm"

lint: install  ## check style, types, the workflow's format and rules
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/snakefmt --check Snakefile workflow
	@$(BIN)/python workflow/lint.py
	@echo "Lint passed."

docs: install  ## build the documentation into site/, for reading without a network
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "Open site/index.html"

coverage: install  ## run the tests and say which lines they reach (slower than make test)
	@$(BIN)/python -m pytest $(WORKERS) --cov --cov-report=term:skip-covered

# A server has a page of its own; for a database file one is started here.
PORT ?= 5000
STORE := $(or $(MLFLOW_TRACKING_URI),sqlite:///mlflow.db)
PAGE := $(if $(filter http%,$(STORE)),$(STORE),http://127.0.0.1:$(PORT))
ui: install  ## import the runs into MLflow and start its page (PORT=5000)
	@$(BIN)/python -m iha.tracking state --page $(PAGE)
	@$(if $(filter http%,$(STORE)),true,echo "Starting MLflow on $(PAGE) (a minute or two on a busy machine)"; \
	  MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false exec $(BIN)/mlflow ui --backend-store-uri $(STORE) --host 127.0.0.1 --port $(PORT))

bench: install  ## run the benchmarks (on a quiet machine; that of Slurm jobs needs Slurm and a network)
	@for b in benchmarks/*.py; do echo "== $$b"; $(BIN)/python $$b || exit 1; done

clean:  ## remove results, state and the tracking store (not the environment)
	rm -rf results state site mlflow.db mlartifacts .snakemake
