# Every target sets up what it needs by itself, once: .venv is made again only when pyproject.toml or constraints.txt change.
PYTHON ?= python3
# Half of the tests' time is waiting for processes, so there are two processes more than there are cores, five at most.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(os.cpu_count() or 1, 3) + 2)')

TRITON := 3.9.0
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := specsplit drafter verifier coordinator scripts benchmarks tests

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint types floors drift unit format bench lab fire targets oldest floor gpu gpu-wheels gpu-kernels chat peers protos clean

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-10s %s\n", $$1, $$2}'

setup: $(STAMP) ## .venv with everything in it

$(STAMP): pyproject.toml constraints.txt
	@echo "setup: $(VENV) with $$($(PYTHON) --version) (a few minutes the first time)"
	@$(PYTHON) -c 'import sys; sys.exit("setup: specsplit needs Python 3.11 or 3.12; say make PYTHON=python3.11") if sys.version_info[:2] not in ((3, 11), (3, 12)) else 0'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[engine,dev]"
	@# Without a GPU its signatures are what the tests need of it (18 MB), and not what it requires (gigabytes of CUDA).
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps flashinfer-python apache-tvm-ffi nvidia-ml-py
	@# Kernels are tested by triton's interpreter. A build of torch for CUDA has brought the triton that it goes with.
	@test "$$(uname -s)" != Linux || $(BIN)/python -c 'import importlib.util as u; exit(not u.find_spec("triton"))' || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps triton==$(TRITON)
	@touch $@
	@echo "setup: done"

demo: $(STAMP) ## three services on this machine, and a text that they write together
	@$(BIN)/specsplit demo

# Types and tests side by side: half of the tests' time is waiting.
test: lint floors drift ## everything that must hold before a change goes in, but for the tests that are slow (.ci/slow)
	@$(MAKE) --no-print-directory --jobs 2 types unit

lint: $(STAMP) ## ruff: rules and format
	@echo "lint: ruff"
	@$(BIN)/ruff check --quiet $(SOURCES)
	@$(BIN)/ruff format --check --quiet $(SOURCES) || { echo "lint: not formatted; run make format"; exit 1; }

types: $(STAMP) ## pyright
	@echo "types: pyright"
	@$(BIN)/pyright

floors: $(STAMP) ## import-linter: no module imports from a higher floor
	@echo "floors: import-linter"
	@$(BIN)/lint-imports --no-logo

drift: $(STAMP) ## is the generated code what the protos give?
	@echo "drift: specsplit/v1 against protos/specsplit/v1"
	@$(BIN)/python scripts/generate_protos.py --check

# Dozens of processes are started from nothing: none compiles what another one has.
unit: export PYTHONDONTWRITEBYTECODE =
unit: $(STAMP) ## pytest, in a few processes, without the tests that are slow
	@echo "unit: pytest"
	@$(BIN)/pytest -m "not slow" --numprocesses $(WORKERS) --dist loadscope --no-loadscope-reorder || $(BIN)/python -m scripts.repeat_failed

format: $(STAMP) ## let ruff put imports and layout right
	@$(BIN)/ruff check --quiet --fix $(SOURCES) || true
	@$(BIN)/ruff format --quiet $(SOURCES)

bench: $(STAMP) ## the benchmarks: a table, a JSON file and a plot each
	@$(BIN)/python -m benchmarks

lab: $(STAMP) ## policies in virtual time: the same digits every time, in a few minutes
	@$(BIN)/python -m benchmarks lab

fire: $(STAMP) ## real processes are killed, stopped, fed nonsense, kept busy: PARTS="chaos fuzz soak", MINUTES=10 each, SEED=
	@$(BIN)/python -m benchmarks fire $(PARTS) $(if $(MINUTES),--minutes $(MINUTES)) $(if $(SEED),--seed $(SEED))

targets: $(STAMP) ## which causal language models of transformers are served: tries them all, a minute, and prints docs/targets.md
	@$(BIN)/python -m scripts.targets

oldest: $(STAMP) ## all tests but the slow ones with the oldest torch, transformers and triton that are supported, in build/oldest (fetches up to 3 GB once): TESTS=paths
	@.ci/oldest $(TESTS)

floor: oldest ## the same as make oldest; make floors is about imports

gpu: ## with CUDA: tests and benchmarks in 9 minutes, by PYTHON as it stands and, with WHEELS=path, the packages that it lacks; DRY=1: without CUDA
	@$(PYTHON) -m scripts.gpu_site $(if $(DRY),--dry) $(if $(WHEELS),--wheels "$(WHEELS)") $(if $(COMMIT),--commit "$(COMMIT)")

gpu-wheels: $(STAMP) ## the packages that a machine with a GPU may lack, for make gpu, into build/wheels
	@$(BIN)/python -m scripts.gpu_wheels

gpu-kernels: $(STAMP) ## FlashInfer's kernels for make gpu, compiled here for ARCH (9.0a) by nvcc, into build/wheels
	@$(BIN)/python -m scripts.gpu_kernels $(ARCH)

chat: $(STAMP) ## a small chat model (fetched once, 92 MB) on this machine; talk with it: specsplit chat
	@$(BIN)/python -m scripts.chat_model
	@$(BIN)/specsplit up --model build/chat/target

peers: $(STAMP) ## vLLM, llama.cpp and transformers beside specsplit on this CPU: fetches 2 GB and compiles once, then measures (ROUNDS=3)
	@$(BIN)/python -m scripts.chat_model
	@$(BIN)/python -m benchmarks.peers.installing
	@$(BIN)/python -m benchmarks peers $(if $(ROUNDS),--rounds $(ROUNDS))

protos: $(STAMP) ## write specsplit/v1 from protos/specsplit/v1
	@$(BIN)/python scripts/generate_protos.py

clean: ## remove what the other targets made, models and .venv excepted
	@rm -rf dist build/protos-venv build/wheel build/wheels build/gpu build/fire .pytest_cache .ruff_cache .import_linter_cache .hypothesis
