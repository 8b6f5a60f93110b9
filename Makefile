# Commands for development. Each target installs what it needs first.

SHELL := /bin/bash
.DEFAULT_GOAL := help

VENV := .venv
# What set-up installs, including Node, has precedence over what the machine has.
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
PYTHON := $(VENV)/bin/python
PYTEST := $(PYTHON) -m pytest

.PHONY: help
help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: setup python-setup
setup:  ## install everything for tests and benchmarks (incremental)
	@scripts/set-up python debian node

python-setup:
	@scripts/set-up python

.PHONY: demo demo-setup
demo-setup:
	@scripts/set-up demo

demo: demo-setup  ## show everything in two minutes; ARGS=--quick leaves Spark out, ARGS=--keep keeps the dashboard
	@$(PYTHON) -m toril.cli demo $(ARGS)

.PHONY: test
test: setup  ## run all tests on real servers and check coverage
	@scripts/test-with-coverage

.PHONY: check
check: lint  ## run lint and the unit tests
	@$(PYTEST) -q --numprocesses 2 tests/unit

.PHONY: lint
lint: python-setup  ## check style, types, import contracts and names; report sizes
	@scripts/lint

.PHONY: audit
audit: python-setup  ## compare the pinned packages with known vulnerabilities (needs the network)
	@$(VENV)/bin/pip-audit --disable-pip --require-hashes --requirement requirements/dev.txt

.PHONY: format
format: python-setup  ## format the code and apply safe fixes
	@$(VENV)/bin/ruff check --quiet --fix-only .
	@$(VENV)/bin/ruff format --quiet .

.PHONY: bench bench-full
bench: setup  ## measure toril and its rivals in about ten minutes
	@$(PYTHON) -m benchmarks

bench-full: setup  ## measure all workloads and rivals (about 90 minutes)
	@$(PYTHON) -m benchmarks --full

.PHONY: interop
interop: setup  ## run the same sequences on Node's BullMQ and on toril, and compare
	@$(PYTEST) -q tests/interop
	@$(PYTHON) -m tests.interop

.PHONY: faults soak true-values
faults: setup  ## inject faults and check that no job is lost
	@$(PYTEST) tests/faults

soak: setup  ## run under load and faults for an hour
	@$(PYTHON) -m tests.faults.soak

true-values: setup  ## kill workers and block loops with the default locks (three minutes)
	@$(PYTHON) -m tests.faults.true_values

.PHONY: recipes
recipes: setup  ## run the recipes for Airflow, Dagster, dbt and Jupyter, each in its own environment
	@$(PYTHON) -m recipes.run

.PHONY: screenshots
screenshots: setup  ## make the images of the documentation
	@$(PYTHON) scripts/take-screenshots

.PHONY: docs
docs: setup  ## build the site (site/index.html) with warnings as errors, and run every example of the documentation
	@NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict
	@$(PYTEST) tests/docs

.PHONY: release-check
release-check: setup  ## build, check and try what a release would publish; publishes nothing
	@scripts/release-check

.PHONY: clean
clean:  ## remove the output of set-up, builds and tests
	@rm -rf $(VENV) build dist site htmlcov .coverage .coverage.* .cache .toril .hypothesis .import_linter_cache \
	  .mypy_cache .pytest_cache .ruff_cache tests/interop/node/node_modules src/toril/commands/official/*.lua src/toril/dashboard/static/*.min.js
	@find src tests benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
