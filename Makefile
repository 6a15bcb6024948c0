# Every command of this repository. Needs make and Python 3.11 or newer; the rest goes into $(VENV).

PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
# Where extra words for pytest go: make test ARGS="-k partition". N is the number of test processes.
ARGS ?=
N    ?= auto

SOURCES := taskmq tests bench $(wildcard examples)

.DEFAULT_GOAL := help
.PHONY: help demo test test-redis-cluster redis-cluster-up redis-cluster-down pytest check format bench changelog clean

help:  ## what there is
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-18s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

demo: $(VENV)/ready  ## a small shop that publishes and works off tasks, on SQLite
	$(BIN)/python -m examples.demo.demo

test: check pytest  ## everything that must hold before a commit: check, then the test suite

pytest: $(VENV)/ready  ## the test suite alone; ARGS="-k word" selects, N=0 runs in one process
	$(BIN)/pytest -n $(N) $(ARGS)

test-redis-cluster: $(VENV)/ready  ## the tests of a cluster alone, on three masters of their own
	$(BIN)/pytest -n $(N) tests/test_redis_cluster.py tests/integration/test_redis_cluster_moves.py $(ARGS)

redis-cluster-up: $(VENV)/ready  ## three masters on ports 7380 to 7382, to try things by hand
	@$(BIN)/python -m taskmq.testing.redis_cluster up

redis-cluster-down: $(VENV)/ready  ## end them
	@$(BIN)/python -m taskmq.testing.redis_cluster down

check: $(VENV)/ready  ## lint, format, types and the import contract, without running a test
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/ready  ## rewrite the sources in the one format, and fix what can be fixed safely
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

# Long: the rows of SQL servers are made with a million tasks. One figure alone: .venv/bin/python -m bench.urgent. By hand, because they
# make environments for other libraries or need a checkout: bench.redis_publish, bench.redis_worker, bench.redis_source,
# bench.sql_worker; or a debugger's tool, valgrind: bench.redis_instructions.
REDIS := redis_store redis_memory redis_queues redis_partitions redis_processes redis_start redis_hold redis_cluster
SQL := sql_claims sql_rates sql_publish sql_partitions sql_steady sql_start sql_limits sql_capabilities sql_history
bench: $(VENV)/ready  ## the figures of docs/benchmarks.md, measured on this machine
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[bench]'
	@for name in imports claim_scale partition_scale enqueue_huey group_commit worker_noop worker_huey gates sqlite_processes pools idle start rss urgent; do \
		echo "== bench.$$name"; $(BIN)/python -m bench.$$name || exit 1; done
	@for name in $(SQL); do echo "== bench.$$name"; $(BIN)/python -m bench.$$name || exit 1; done
	@for name in $(REDIS) "worker_noop redis" "urgent redis" "server sqlite" "server postgresql"; do \
		echo "== bench.$$name"; $(BIN)/python -m bench.$$name || exit 1; done

changelog: $(VENV)/ready  ## move the fragments of changes/ into CHANGELOG.md; for releases
	$(BIN)/towncrier build --yes

clean:  ## remove the virtual environment and every cache
	rm -rf $(VENV) .peers .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Anew whenever the dependencies change. A half-made environment has no "ready" and is completed by the next make.
$(VENV)/ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "taskmq needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) -V 2>&1). Say: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -c 'import ensurepip' 2>/dev/null \
		|| { echo "Python's venv module is missing. On Debian: apt-get install python3-venv"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@
