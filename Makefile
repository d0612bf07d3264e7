# Two commands, from nothing but Python 3.11 or 3.12:
#   make smoke   set up .venv and rebuild every table and figure at smoke scale
#   make test    set up .venv and run every check: lint, types, unit, workflow and smoke tests
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: smoke test setup
.DELETE_ON_ERROR:

setup: $(STAMP)

$(STAMP): pyproject.toml tools/setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python tools/setup.py
	touch $@

smoke: $(STAMP)
	$(BIN)/snakemake --config scale=smoke -- all

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest
