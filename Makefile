# Two commands are all a newcomer needs: `make demo` and `make test`. Both set everything up first.
PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/.set-up

.PHONY: setup demo test lint unit slow bench chaos clean

setup: $(STAMP)

# torch first and by itself: any looser request for it would bring a build with gigabytes of CUDA libraries.
$(STAMP): requirements.txt requirements-ministack.txt pyproject.toml tests/asl/package-lock.json
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on PATH: install Python 3.11, or make PYTHON=/path/to/it" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(PYTHON) -m venv .venv/ministack
	.venv/ministack/bin/pip install --quiet --disable-pip-version-check --no-deps -r requirements-ministack.txt
	@{ command -v npm >/dev/null && npm ci --prefix tests/asl --silent --ignore-scripts --no-audit --no-fund; } \
	|| echo "asl-validator is not installed (npm is not on PATH, or failed): the test that asks it will be skipped" >&2
	touch $(STAMP)

demo: setup
	$(BIN)/serfer classify examples/images/chelsea.png examples/images/coffee.png --compare

test: setup lint unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Most tests wait for processes of their own, so three runs share two cores well; a file's tests stay together.
unit: setup
	$(BIN)/python -m pytest -n 3 --dist loadfile

# What takes minutes: every network of the zoo, and thousands of random ones.
slow: setup
	$(BIN)/python -m pytest -m slow

bench: setup
	$(BIN)/serfer bench overhead --model alexnet --at-most 3

# Bursts while workers, stores and drivers die (docs/chaos.md): nothing may be lost, wrong or left behind.
chaos: setup
	$(BIN)/serfer bench chaos

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
