# Two commands, from nothing but Python 3.11 or 3.12:
#   make smoke   set up .venv and rebuild every table and figure at smoke scale
#   make test    set up .venv and run every check: lint, types, unit, workflow and smoke tests
# One for the data of the small scale (data/README.md):
#   make data    set up .venv, fetch what is missing of them, and check that they are those of the published numbers
# And one for what is published:
#   make redraw  set up .venv, rebuild from published/SCALE what is made from its records, and compare (SCALE=small unless given)
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SCALE ?= small
STAMP := $(VENV)/.installed

.PHONY: smoke test setup data redraw
.DELETE_ON_ERROR:

setup: $(STAMP)

$(STAMP): pyproject.toml tools/setup.py
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python tools/setup.py
	touch $@

smoke: $(STAMP)
	$(BIN)/snakemake --config scale=smoke -- all

data: $(STAMP)
	$(BIN)/python tools/fetch_data.py

redraw: $(STAMP)
	$(BIN)/python tools/redraw.py $(SCALE)

test: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest
