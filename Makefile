# Everything needs only git, make and Python >= 3.11; `make verify` and `make test` set up by themselves.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: verify test lint figures evidence mutants clean

verify: .venv/installed
	$(BIN)/gradbounds verify

test: .venv/installed
	$(BIN)/python -m pytest -n auto

# The pictures that README and docs show.
figures: verify
	$(BIN)/gradbounds figures runs/verify --out docs/figures
	rm -f docs/figures/*.svg

# What is too heavy for the suite: kills, laws and chains in number; rewrites tests/evidence/*.json.
evidence: .venv/installed
	$(BIN)/python -m pytest -m evidence -n auto

# One-line errors of tests/mutants.toml in copies of the tree: which test catches each; runs/mutants.json has the answers.
mutants: .venv/installed
	$(BIN)/python -m tests.mutants

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

.venv/installed: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gradbounds needs Python 3.11 or later, and $(PYTHON) is " + sys.version.split()[0] + "; try make PYTHON=python3.11")'
	$(PYTHON) -m venv --clear .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis runs/verify
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
