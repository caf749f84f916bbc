# Everything is set up on the first use: python3 (3.11 or newer) and make are enough. The demo installs only what it needs.
#
#   make demo    compare the strategies on an unequal fleet, print a table, draw the curves
#   make test    run the tests; DATA=DIR names a directory of real data sets for those that need one
#   make quick   run the tests that start no process (no workers, Ray, browser or programs): about two minutes
#   make check   lint, format, imports, types, tests
#   make busy    run the tests with processes, Ray and a browser TIMES=10 times beside two busy loops
#   make bench   run the benchmarks and print their ratios
#   make docs    build the documentation into site/
#   make clean   remove what the others made, the environment excepted

PYTHON ?= python3
BIN := .venv/bin
DEMO := .venv/.demo
INSTALLED := .venv/.installed
COMPILED := .venv/.compiled
CODE := src tests reproductions benchmarks examples tools
INSTALLER ?= $(BIN)/pip install
# One thread for each test process: several of them share the cores. Tests that need a Ray cluster go to the same one.
# Tests start hundreds of processes: bytecode is kept even where the environment says otherwise.
PYTEST := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(BIN)/pytest

.DEFAULT_GOAL := demo
.PHONY: venv demo test quick types imports check busy bench docs clean

venv: $(INSTALLED)

# What the demo needs: the package and scikit-learn. Torch comes first and by its exact version: an open range would
# bring the newest build with gigabytes of CUDA. "Get started" on PyTorch's own site has the command for a build without.
$(DEMO): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Paceline needs Python 3.11 or newer, and $(PYTHON) is $$($(PYTHON) --version 2>&1); try make PYTHON=python3.11" >&2; exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv .venv
	$(INSTALLER) -c constraints.txt $$(grep '^torch==' constraints.txt)
	$(INSTALLER) -c constraints.txt -e '.[demo]'
	touch $@

# Everything else that the tests use, in the same environment.
$(INSTALLED): $(DEMO)
	$(INSTALLER) -c constraints.txt -e '.[demo,dev,ray,tensorboard,accelerate,lightning,torchdata,huggingface,mlflow,wandb,notebook,docs]'
	touch $@

# The bytecode of all that tests import is made by one process: several that start together would each make it.
$(COMPILED): $(INSTALLED)
	$(PYTEST) --collect-only --quiet >/dev/null || true
	touch $@

demo: $(DEMO)
	$(BIN)/paceline compare

test: $(COMPILED)
	$(if $(DATA),PACELINE_DATA='$(abspath $(DATA))') $(PYTEST) -n auto

quick: $(COMPILED)
	$(PYTEST) -n auto --quick

types: venv
	$(BIN)/mypy src tests reproductions

imports: venv
	$(BIN)/lint-imports

check: venv
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(MAKE) --jobs 2 test imports types

busy: venv
	cd tests && ../$(BIN)/python -m support.busy $(TIMES)

bench: venv
	@for script in $$(grep -l '__main__' benchmarks/*.py); do \
	  echo "== $$script"; PYTHONPATH=. $(BIN)/python $$script || exit 1; done

docs: venv
	$(BIN)/python tools/pages.py
	$(BIN)/zensical build --clean --strict

clean:
	rm -rf paceline-compare.png site .cache build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests reproductions benchmarks examples -name __pycache__ -type d -prune -exec rm -rf {} +
