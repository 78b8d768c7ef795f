# Every target installs what it needs first; `make test` on a fresh checkout is enough.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
BENCHMARKS := $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py))

# Tests that need a model, an engine, a browser or several processes have suites of their own.
UNMARKED := not real and not vllm and not browser and not distributed

.DEFAULT_GOAL := help
.PHONY: help setup check format test bench demo clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(STAMP) ## create .venv with the pinned development set

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

check: setup ## lint, formatting, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup ## apply formatting and the safe lint fixes
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

# One thread a worker: the workers already fill the cores, and torch would start as many again in each.
test: setup ## unit and integration tests; ARGS="-k tree -x" is passed on
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m "$(UNMARKED)" $(ARGS)

# Suites for the marked tests go here, one target each (test-real, test-vllm, ...), with what they install.

bench: setup ## every benchmark, results in build/bench/*.json; QUICK=1 for small sizes
	@test -n "$(BENCHMARKS)" || { echo "no benchmarks found in benchmarks/" >&2; exit 1; }
	@mkdir -p build/bench
	@set -e; for script in $(BENCHMARKS); do \
		echo "-- $$script"; \
		$(BIN)/python $$script $(if $(QUICK),--quick) --json build/bench/$$(basename $$script .py).json; \
	done

demo: setup ## analyze the embedded default
	$(BIN)/opd-align analyze

clean: ## remove what was built or cached (keeps .venv)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find opd_align tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
