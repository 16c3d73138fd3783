# Everything a newcomer needs: `make demo` and `make test` set up their own environment in .venv/.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.PHONY: help demo test check bench docs lint format types clean

help:
	@echo "make demo    set up and run the demo: three sites and a center on a real web log, about a minute"
	@echo "make test    set up and run the tests"
	@echo "make check   what CI runs: lint, types, tests"
	@echo "make bench   the throughput benchmark (others: $(BIN)/catchment bench)"
	@echo "make docs    run every example of the documentation"

# The environment is made anew when pyproject.toml changes; otherwise this takes no time.
$(VENV)/.ready: pyproject.toml tools/setup.sh
	@PYTHON="$(PYTHON)" sh tools/setup.sh "$(VENV)"
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	@PYTHON="$(PYTHON)" sh tools/setup.sh "$(VENV)" dev
	@touch $@

demo: $(VENV)/.ready
	@$(BIN)/catchment demo

test: $(VENV)/.ready-dev
	@$(BIN)/pytest

check: lint types test

lint: $(VENV)/.ready-dev
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(VENV)/.ready-dev
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

types: $(VENV)/.ready-dev
	@$(BIN)/mypy

bench: $(VENV)/.ready
	@$(BIN)/catchment bench throughput

docs: $(VENV)/.ready-dev
	@$(BIN)/pytest tests/test_docs.py

clean:
	rm -rf $(VENV) demo .pytest_cache .mypy_cache .ruff_cache .hypothesis
