# make test   the test suite            ARGS="-k queue -x" goes to pytest; JOBS=0 for one process; RIVET_SUITE=whole in
#             the environment has every fault done on every database
# make lint   everything static: format, rules, types, imports, migrations
# make bench  the benchmarks, some minutes   ARGS="A,B --runs 3 --databases sqlite"; docs/benchmarks.md says more
# make demo   a shop that sells, crashes and recovers; ARGS=--check runs it headless
#
# Everything runs in a virtual environment made here from pyproject.toml: python3 (3.11 or newer) and make are
# all a machine needs. PYTHON=… names another interpreter, VENV=… another folder. EXTRAS=mariadb adds extras of the
# package, by names with commas between; that one needs a compiler and MariaDB's headers.

VENV ?= .venv
# The first interpreter that is new enough. A name may exist and still not start (version managers), so each is run.
PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)

BIN := $(VENV)/bin
EXTRAS ?=
COMMA := ,
STAMP := $(VENV)/.installed$(addprefix -,$(EXTRAS))
ARGS ?=
# Processes that test side by side. Much of the suite waits for databases, browsers and other processes.
JOBS ?= 2

.PHONY: venv test lint format bench demo clean
.DEFAULT_GOAL := test

venv: $(STAMP)

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "No Python 3.11 or newer was found: install one, or name it with PYTHON=…" >&2; exit 1; }
	@"$(BIN)/python" -c 'import sys' 2>/dev/null || { echo "Setting up $(VENV) with $(PYTHON)"; \
		"$(PYTHON)" -m venv --clear "$(VENV)" || { echo "Could not make a virtual environment: this Python lacks venv (Debian: apt install python3-venv)" >&2; exit 1; }; }
	@"$(BIN)/python" -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager -e '.[dev$(addprefix $(COMMA),$(EXTRAS))]'
	@touch "$(STAMP)"

test: venv
	"$(BIN)/python" -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(ARGS)

lint: venv
	"$(BIN)/ruff" check .
	"$(BIN)/ruff" format --check .
	"$(BIN)/mypy"
	"$(BIN)/lint-imports"
	DJANGO_SETTINGS_MODULE=tests.settings "$(BIN)/python" -m django makemigrations --check --dry-run

format: venv
	"$(BIN)/ruff" check --fix .
	"$(BIN)/ruff" format .

bench: venv
	"$(BIN)/python" -m tests.benchmarks $(ARGS)

demo: venv
	@"$(BIN)/python" demo_project/demo.py $(ARGS)

clean:
	rm -rf .venv* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache
