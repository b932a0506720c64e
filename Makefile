# make demo · make test · make lint · make bench; each installs what it needs into .venv
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SOURCES := pyproject.toml constraints.txt

.PHONY: demo test test-slow lint format bench clean

demo: $(VENV)/.core
	$(BIN)/xmckit run quickstart

test: $(VENV)/.test
	$(BIN)/python -m pytest

test-slow: $(VENV)/.test
	$(BIN)/python -m pytest -m slow

lint: $(VENV)/.lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/.test
	$(BIN)/python benchmarks/speed.py

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: $(VENV)/bin/python $(SOURCES)
	$(PIP) --editable .
	@touch $@

$(VENV)/.test: $(VENV)/.core
	$(PIP) --editable ".[test]"
	@touch $@

$(VENV)/.lint: $(VENV)/.test
	$(PIP) --editable ".[test,lint]"
	@touch $@
