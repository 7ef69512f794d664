# Both `make demo` and `make test` set everything up in .venv by themselves.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
SITE ?= site

.PHONY: demo test test-slow test-all lint types docs docs-serve bench clean help

help:
	@echo 'make demo      train privately on MovieLens-100K, and lists'
	@echo 'make test      the default test suite'
	@echo 'make test-slow the others: statistical, audits, end to end'
	@echo 'make test-all  both'
	@echo 'make lint      ruff; make types: basedpyright; make bench: kernels'
	@echo 'make docs      the documentation, in site/; make docs-serve shows it'

# The stamps are made again when a requirements file changes.
$(VENV)/.runtime: requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	  "Python 3.11 or newer is needed: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  -r requirements.txt
	touch $@

$(VENV)/.dev: requirements-dev.txt $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  -r requirements-dev.txt
	touch $@

demo: $(VENV)/.runtime
	$(BIN)/python -m launch.train --dataset=ml-100k --task=ranking --unit=user \
	  --epsilon=5 --delta=1e-5 --output=demo --overwrite
	$(BIN)/python -m launch.recommend --model=demo --users=1,2,3 --k=5
	@echo
	@echo 'as a page: python -m launch.account --certificate=demo --html=demo.html'

test: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 2 --dist=worksteal -m 'not slow'

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 2 --dist=worksteal -m slow

test-all: $(VENV)/.dev
	$(BIN)/python -m pytest -q -n 2 --dist=worksteal

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/basedpyright --pythonpath $(BIN)/python

# The notice is about the next version of MkDocs, which is not used here.
docs docs-serve: export NO_MKDOCS_2_WARNING = 1

docs: $(VENV)/.dev
	$(BIN)/python -m mkdocs build --strict --site-dir $(SITE)

docs-serve: $(VENV)/.dev
	$(BIN)/python -m mkdocs serve

bench: $(VENV)/.dev
	$(BIN)/python -m benchmarks.kernels

clean:
	rm -rf $(VENV) demo site
