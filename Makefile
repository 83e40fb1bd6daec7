# Everything needs only git, make and Python >= 3.11; `make verify` and `make test` set up by themselves.
PYTHON ?= python3
BIN := .venv/bin
# Python runs as it does by default, writing bytecode: a test failed on that alone, unseen where it was switched off.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: verify test test-studies quick lint docs figures accept evidence evidence-list mutants compatibility clean

verify: .venv/installed
	$(BIN)/gradbounds verify

test: .venv/installed
	$(BIN)/python -m pytest -n auto --dist worksteal

# All tests of the studies; `make test` runs one of each.
test-studies: .venv/installed
	$(BIN)/python -m pytest -n auto --dist worksteal -m 'study or not study' studies

# For the inner loop: all of theory, and one test of every other file.
quick: .venv/installed
	$(BIN)/python -m pytest -n auto --dist worksteal -m quick

# The site, runs/site/index.html: pages, reference and gallery. Warnings are errors; nothing is fetched.
docs: .venv/docs-installed
	@# Scripts that did not change would not run again, though the library did.
	rm -rf runs/site docs/gallery examples/runs
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --builder html --conf-dir docs \
	    --doctree-dir runs/doctrees . runs/site
	@echo "The site is runs/site/index.html"

# The pictures of README and docs that take minutes, each under a name that no other run draws; docs/figures/manifest.toml
# has the commands of all.
figures: verify
	cp $(patsubst %,runs/verify/figures/%.png,gradient_against_width gradient_over_layers slack_of_the_proof) docs/figures
	$(BIN)/gradbounds sweep --tokens 1 --width 64 512 --depth 1 6 --vocab 2 --draws 4096 --out runs/norms
	$(BIN)/gradbounds figures runs/norms --out runs/norms/figures
	cp runs/norms/figures/concentration_of_norms.png docs/figures/norms_of_one_token.png
	$(BIN)/python -m bench growth checks/data/growth.json checks/data/growth-gains.json docs/figures/layer_growth.png

# Commits the verdicts of a run, or of a folder with verdicts.json, and renders the pages of results again.
accept: .venv/installed
	$(BIN)/python -m tools.accept $(RUN)

# What is too heavy for the suite; rewrites tests/evidence/*.json. PART=name runs one part. A run that was stopped goes
# on where it was, unless the sources changed or FRESH=1. DEVICE=cuda makes training and spectra run there.
# probe-classes has an environment of its own, with the packages of the extra `evidence`.
evidence: .venv/installed $(if $(filter probe-classes,$(PART)),.venv-evidence/installed)
	$(BIN)/python -m tests.evidence_parts $(PART) $(if $(FRESH),--fresh)

evidence-list: .venv/installed
	$(BIN)/python -m tests.evidence_parts --list

# One-line errors of tests/mutants.toml in copies of the tree: which test catches each; runs/mutants.json has the answers.
mutants: .venv/installed
	$(BIN)/python -m tests.mutants

# `make quick` with the oldest and the newest Python and libraries that pyproject.toml allows; downloads about 6 GB, as
# torch's builds for Linux bring GPU libraries. Rewrites tests/evidence/compatibility.json.
compatibility: .venv/installed
	$(BIN)/python -m tests.compatibility

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m tools.commit_subjects

.venv/installed: pyproject.toml constraints.txt
	@test ! -L .venv || { echo ".venv is a link to another checkout's, which installing would empty; remove the link first"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "gradbounds needs Python 3.11 or later, and $(PYTHON) is " + sys.version.split()[0] + "; try make PYTHON=python3.11")'
	@echo "Installing into .venv: one to four minutes, with torch the largest download"
	$(PYTHON) -m venv --clear .venv
	@# Bytecode of what is imported is written at its first import; all of torch and sympy would take 30 seconds more.
	$(BIN)/python -m pip install --no-compile --constraint constraints.txt --editable '.[dev]'
	@# backpack asks for torchvision without importing it; one of another build than torch's breaks transformers.
	@$(BIN)/python -c 'import torchvision' 2>/dev/null || $(BIN)/python -m pip uninstall --quiet --yes torchvision
	touch $@

.venv/docs-installed: .venv/installed
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[docs]'
	touch $@

.venv-evidence/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv-evidence
	.venv-evidence/bin/python -m pip install --quiet --constraint constraints.txt --editable '.[evidence]'
	@# timm needs torchvision, and one of another build than torch's does not load: the test then says so and is skipped.
	touch $@

clean:
	rm -rf .venv .venv-evidence .pytest_cache .mypy_cache .ruff_cache .hypothesis runs/verify runs/site runs/doctrees docs/gallery runs/evidence runs/compatibility
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
