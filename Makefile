# Everything runs in .venv, made on first use; later runs reinstall only when the two files below change.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.installed-for-this-checkout

.PHONY: test lint demo bench clean

test: lint
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n auto

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: $(READY)
	$(BIN)/notela demo

bench: $(READY)
	$(BIN)/python benchmarks/run.py

clean:
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .hypothesis dist

# imagecorruptions-imaug, which tests compare with, asks for opencv-python: that needs libGL and would lie over the headless
# one. So it comes without its dependencies, which [dev] lists.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "notela needs Python 3.11 or newer; this is " + sys.version.split()[0] + ": make PYTHON=python3.11 ...")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps imagecorruptions-imaug
	touch $@
