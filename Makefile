# Two commands are all a newcomer needs: `make demo` and `make test`. Both set everything up first.
PYTHON ?= python3.11
BIN := .venv/bin
STAMP := .venv/.set-up

.PHONY: setup demo test lint unit slow fuzz browser bench chaos deploy-check deploy rollback destroy build-given clean

setup: $(STAMP)

# torch first and by itself: any looser request for it would bring a build with gigabytes of CUDA libraries.
$(STAMP): requirements.txt requirements-ministack.txt requirements-sam.txt pyproject.toml tests/asl/package-lock.json tests/browser/package-lock.json tests/python313/set_up.py
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on PATH: install Python 3.11, or make PYTHON=/path/to/it" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -r requirements.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	$(PYTHON) -m venv .venv/ministack
	.venv/ministack/bin/pip install --quiet --disable-pip-version-check --no-deps -r requirements-ministack.txt
	$(PYTHON) -m venv .venv/sam
	.venv/sam/bin/pip install --quiet --disable-pip-version-check --no-deps -r requirements-sam.txt
	@for part in asl browser; do \
	  { command -v npm >/dev/null && npm ci --prefix tests/$$part --silent --ignore-scripts --no-audit --no-fund; } \
	  || echo "tests/$$part: npm is not on PATH, or failed: the tests that need its packages will be skipped" >&2; \
	done
	@$(BIN)/python tests/python313/set_up.py .venv/python3.13
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
	$(BIN)/python -m pytest -m slow --timeout 2400 -n 2 --dist loadfile

# 200,000 damaged images of every format, always the same ones, through the service's decoders.
fuzz: setup
	$(BIN)/python -m pytest -m slow --timeout 2400 -q -s tests/api/test_fuzz_decoding.py

# The page in a real browser, which only Debian's own package brings.
browser: setup
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq --yes chromium; } \
	|| { echo "chromium is not on PATH, and only root can install it here" >&2; exit 1; }
	$(BIN)/python -m pytest -m browser tests/browser

# What SAM deploys: real networks in every combination, linted and built with no network, and what was built, run.
deploy-check: setup
	$(BIN)/python -m pytest -m deploy -n 2 --dist loadscope tests/sam

bench: setup
	$(BIN)/serfer bench overhead --model alexnet --at-most 3

# Bursts while workers, stores and drivers die (docs/chaos.md): nothing may be lost, wrong or left behind.
chaos: setup
	$(BIN)/serfer bench chaos

# A deployment that `serfer package` wrote: make deploy BUILD=build ENV=prod (docs/deploy.md).
ENV ?= dev
SAM := $(abspath .venv/sam/bin/sam)
SAM_IN_BUILD = cd "$(BUILD)" && SAM_CLI_TELEMETRY=0 $(SAM)

deploy: build-given setup
	$(SAM_IN_BUILD) build --config-env $(ENV)
	$(SAM_IN_BUILD) deploy --config-env $(ENV)

# Drivers go back to the plan before, whose functions are still there: nothing is built.
rollback: build-given setup
	previous=$$($(BIN)/python -m sam previous "$(BUILD)") && $(SAM_IN_BUILD) deploy --config-env $(ENV) --parameter-overrides Serving=$$previous

# The stack, all that its buckets hold, and what SAM CLI uploaded for it.
destroy: build-given setup
	$(BIN)/python -m sam teardown "$(BUILD)" $(ENV)

build-given:
	@test -f "$(BUILD)/deployment.json" || { echo "BUILD=DIR is missing, or DIR was not written by serfer package" >&2; exit 2; }

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
