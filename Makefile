# Everything a contributor needs. Each target makes its own virtual environment.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= auto
STAMP := $(VENV)/.installed
DOCS_STAMP := $(VENV)/.installed-docs
ZOO_STAMP := $(VENV)/.installed-zoo

.PHONY: help demo test test-slow lint types docs bench clean
help:
	@echo "make demo       train a private model on bundled data and print its privacy statement"
	@echo "make test       lint, type-check and run the tests"
	@echo "make test-slow  the long statistical and crash tests"
	@echo "make docs       build the documentation, strictly"
	@echo "make bench      speed ratios against peers and plain libraries"
	@echo "make clean      remove everything these commands made"

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt pip
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,fast,federated]'
	@touch $@

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

# timm without its dependencies: a torchvision built for another torch breaks whoever looks for it.
$(ZOO_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[zoo]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps timm
	@touch $@

demo: $(STAMP)
	rm -rf demo-output
	mkdir -p demo-output
	$(BIN)/noisewise train adult --epsilon 1 --evaluate 0.1 --compare --out demo-output --report demo-output/run.html
	$(BIN)/noisewise verify demo-output/statement.json

lint: $(STAMP)
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy
	$(BIN)/python -m pytest -q -m slow tests/pages/test_tutorials_as_notebooks.py -k strictly

test: lint types
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test-slow: $(ZOO_STAMP)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -m slow

docs: $(DOCS_STAMP)
	$(BIN)/mkdocs build --strict

bench: $(STAMP)
	$(BIN)/python -m benchmarks

clean:
	rm -rf $(VENV) site dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
