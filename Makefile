# Everything a newcomer needs: `make demo` and `make test` set up their own environment in .venv/.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

# Tests without a JVM run in as many processes as there are cores; those with one run beside them, one at a time, because they
# mostly wait for a JVM to start or a process to end. What the former print is shown when the latter are through.
PURE  := $(BIN)/pytest -n auto
SPARK := $(BIN)/pytest

FAULTS ?= 200
SEED   ?= 1
SEEDS  ?= 10000

.PHONY: help demo quick test integration soak faults simulate check coverage bench bench-peers docs reference lint format types clean

help:
	@echo "make demo         set up and run the demo: three sites, a real web log, and what goes wrong on a WAN: two minutes"
	@echo "make quick        tests without a JVM and with few examples: after every change"
	@echo "make test         every claim once, on real Spark, sockets and processes: before a commit"
	@echo "make integration  tests with real brokers (MQTT, Kafka), PostgreSQL, Node and a browser, where they are installed"
	@echo "make soak         long campaigns: many kills, thousands of random examples"
	@echo "make faults       real processes under faults until there are results of FAULTS=200, drawn from SEED=1; resumable"
	@echo "make simulate     whole deployments simulated from SEEDS=10000 seeds: under faults, and late and shed; resumable"
	@echo "make check        lint, types and make test; CI runs this and make integration"
	@echo "make coverage     make test, and which lines it did not reach"
	@echo "make bench        the throughput benchmark (others: $(BIN)/catchment bench)"
	@echo "make bench-peers  environments for Flink, Pathway and Polars in .peers/, then catchment beside them"
	@echo "make reference    write the pages of the documentation that are made from the code"
	@echo "make docs         check every example, command and link of the documentation, and build it into site/"

# The environment is made anew when pyproject.toml changes; otherwise this takes no time.
$(VENV)/.ready: pyproject.toml tools/setup.sh
	@PYTHON="$(PYTHON)" sh tools/setup.sh "$(VENV)"
	@touch $@

$(VENV)/.ready-dev: $(VENV)/.ready
	@PYTHON="$(PYTHON)" sh tools/setup.sh "$(VENV)" dev
	@touch $@

demo: $(VENV)/.ready
	@$(BIN)/catchment demo --page 0

quick: $(VENV)/.ready-dev
	@$(PURE) --hypothesis-profile=quick -m "not spark and not e2e and not integration and not soak"

test: $(VENV)/.ready-dev
	@echo "tests without a JVM run meanwhile; they are shown at the end"
	@output=$$(mktemp); \
	$(PURE) -m "not spark and not e2e and not integration and not soak" > $$output 2>&1 & pure=$$!; \
	$(SPARK) -m "(spark or e2e) and not integration and not soak"; with_jvm=$$?; \
	wait $$pure; without=$$?; cat $$output; rm -f $$output; \
	exit $$((with_jvm | without))

integration: $(VENV)/.ready-dev
	@$(SPARK) -m "integration and not soak"

soak: $(VENV)/.ready-dev
	@$(PURE) --hypothesis-profile=soak -m "not spark and not e2e"
	@$(SPARK) --hypothesis-profile=soak -m "spark or e2e"

faults: $(VENV)/.ready-dev
	@$(BIN)/python -m tests.campaign --faults $(FAULTS) --seed $(SEED)

simulate: $(VENV)/.ready-dev
	@$(BIN)/python -m catchment.testing --seeds $(SEEDS) --results simulated/faults.jsonl
	@$(BIN)/python -m catchment.testing --late-and-shed --seeds $(SEEDS) --results simulated/late-and-shed.jsonl

coverage: $(VENV)/.ready-dev
	@$(PURE) -m "not spark and not e2e and not integration and not soak" --cov --cov-report=
	@$(SPARK) -m "(spark or e2e) and not integration and not soak" --cov --cov-append --cov-report=term

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

bench-peers: $(VENV)/.ready
	@PYTHON="$(PYTHON)" sh tools/peers.sh .peers
	@$(BIN)/catchment bench peers

reference: $(VENV)/.ready-dev
	@$(BIN)/python -m tools.reference

docs: $(VENV)/.ready-dev
	@$(BIN)/pytest tests/test_docs.py tests/test_reference.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build
	@! grep -rlE 'src="https?://' site --include='*.html' || { echo 'a page fetches something from elsewhere'; exit 1; }
	@echo "site/index.html; with search: $(BIN)/python -m http.server -d site"

clean:
	rm -rf $(VENV) demo site .pytest_cache .mypy_cache .ruff_cache .hypothesis
