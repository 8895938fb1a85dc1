# Everything a newcomer needs; the only requirements are python3, git and make.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test soak lint types bench frozen clean

help:  ## list what can be made
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY)  ## run the whole story on two real git repositories in a temporary folder
	@PYTHONPATH=examples $(BIN)/python -m agent_codex.demo

# Most of a test's time is the disk's: where memory holds files, it holds the tests' too.
test: $(READY)  ## run every test, with coverage
	@scratch=$${TMPDIR:-$$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 && $$4 > 4000000 { print "/dev/shm" }')}; \
		TMPDIR=$${scratch:-/tmp} $(BIN)/python -m pytest -n auto --dist loadgroup --cov --cov-report=term

soak: $(READY)  ## run conversations beside a plain model for 100,000 steps nobody thought of
	@$(BIN)/python -m pytest tests/conversations/test_model.py --hypothesis-profile=soak

lint: $(READY)  ## check style
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(READY)  ## check types
	@$(BIN)/mypy

bench: $(READY)  ## measure every operation beside its floor
	@PYTHONPATH=benchmarks:tests $(BIN)/python -m bench

frozen: $(READY)  ## write the frozen dump of the newest revision
	@PYTHONPATH=tests $(BIN)/python -m frozen

clean:  ## remove what was made here
	rm -rf $(VENV) dist .pytest_cache .mypy_cache .ruff_cache .coverage .coverage.*

# Debian splits venv from python3; virtualenv does the same where it is installed.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed: make PYTHON=python3.13 $(MAKECMDGOALS)"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || $(PYTHON) -m virtualenv $(VENV) || \
		{ rm -rf $(VENV); echo "python3 cannot make virtual environments here: install python3-venv"; exit 1; }
	@echo "installing into $(VENV) …"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . --group dev
	@touch $@
