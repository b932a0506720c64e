# make demo · make test · make lint · make bench · make docs; each installs what it needs into .venv
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt
SOURCES := pyproject.toml constraints.txt

.PHONY: demo test test-slow lint format bench docs clean

demo: $(VENV)/.core
	$(BIN)/xmckit run quickstart

test: $(VENV)/.test
	$(BIN)/python -m pytest -n auto --dist loadfile

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
	$(BIN)/python -m benchmarks.speed.measure

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/site/mkdocs.yml
	@echo "open build/docs/index.html"

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

$(VENV)/.docs: $(VENV)/.core
	$(PIP) --editable ".[docs]"
	@touch $@

$(VENV)/.lint: $(VENV)/.test
	$(PIP) --editable ".[test,lint]"
	@touch $@
