# toril's everyday commands. `make demo` and `make test` are the two that matter; both prepare what they need.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
# Everything that set-up installs, Node included, is found before what the machine has.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
PYTHON := $(VENV)/bin/python
PYTEST := $(PYTHON) -m pytest

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: setup python-setup
setup:  ## prepare everything for tests and benchmarks (incremental)
	@scripts/set-up python debian node

python-setup:
	@scripts/set-up python

.PHONY: demo demo-setup
demo-setup:
	@scripts/set-up demo

demo: demo-setup  ## see jobs being added and processed on an embedded server
	@$(PYTHON) -m toril.cli demo

.PHONY: test
test: setup  ## run every test on real servers and enforce coverage
	@scripts/test-with-coverage

.PHONY: check
check: lint  ## lint and the quick tests, for every save
	@$(PYTEST) -q --numprocesses 2 tests/unit

.PHONY: lint
lint: python-setup  ## style, types, import contracts, size report (under a minute)
	@scripts/lint

.PHONY: format
format: python-setup  ## lay out the code and fix what can be fixed safely
	@$(VENV)/bin/ruff check --quiet --fix-only .
	@$(VENV)/bin/ruff format --quiet .

.PHONY: bench bench-full
bench: setup  ## measure against the rivals, quickly
	@$(PYTHON) -m benchmarks

bench-full: setup  ## measure everything, at length
	@$(PYTHON) -m benchmarks --full

.PHONY: interop
interop: setup  ## play the same sequences on Node's BullMQ and on toril, and compare
	@$(PYTEST) -q tests/interop
	@$(PYTHON) -m tests.interop

.PHONY: faults soak true-values
faults: setup  ## inject the faults that happen in production, and count what was lost
	@$(PYTEST) tests/faults

soak: setup  ## run under load and faults for an hour
	@$(PYTHON) -m tests.faults.soak

true-values: setup  ## kill workers and block loops with the locks that users have (three minutes)
	@$(PYTHON) -m tests.faults.true_values

.PHONY: screenshots
screenshots: setup  ## take the pictures of the documentation again
	@$(PYTHON) scripts/take-screenshots

.PHONY: docs
docs: setup  ## run every example of the documentation
	@$(PYTEST) tests/docs

.PHONY: clean
clean:  ## remove what set-up, builds and tests made
	@rm -rf $(VENV) build dist htmlcov .coverage .coverage.* .cache .toril .hypothesis .import_linter_cache \
	  .mypy_cache .pytest_cache .ruff_cache tests/interop/node/node_modules src/toril/commands/official/*.lua
	@find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
