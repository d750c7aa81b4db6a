# Two commands are all a newcomer needs: `make demo` and `make test`. Both set everything up first.
PYTHON ?= python3.11
# An index of torch alone, for its CPU builds: those of the Python package index bring over 2.3 GB of CUDA libraries.
TORCH_INDEX ?=
BIN := .venv/bin
STAMP := .venv/.set-up
DEMO_STAMP := .venv/.demo
DOCS_STAMP := .venv/docs/.set-up
BY_FILE := --dist loadfile --no-loadscope-reorder

.PHONY: setup demo demo-map test lint unit python313 oldest docs slow weekly weekly-clean browser bench chaos deploy-check findings release clean

setup: $(STAMP)

PIP = $(BIN)/pip install --quiet --disable-pip-version-check

# What the demo takes, and nothing for tests. torch first and by itself: an index of its own has not the
# other packages, or not in these versions. What is imported is compiled then, and the rest not at all.
$(DEMO_STAMP): requirements.txt pyproject.toml
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is not on PATH: install Python 3.11, or make PYTHON=/path/to/it" >&2; exit 1; }
	$(PYTHON) -m venv .venv
	$(PIP) --no-compile torch==2.13.0 $(TORCH_INDEX:%=--index-url %)
	$(PIP) --no-compile --constraint requirements.txt setuptools
	$(PIP) --no-compile --constraint requirements.txt --no-build-isolation --editable ".[demo]"
	touch $(DEMO_STAMP)

# All that tests and checks take besides. The compiler's processes share the cores, which pip's own does not.
$(STAMP): $(DEMO_STAMP) requirements-ministack.txt requirements-sam.txt bench/pyproject.toml tests/asl/package-lock.json tests/browser/package-lock.json tests/python313/set_up.py
	$(PIP) --no-compile --no-deps -r requirements.txt
	$(PIP) --no-compile --no-deps --no-build-isolation --editable . --editable bench
	-$(BIN)/python -m compileall -q -j 0 .venv/lib >/dev/null
	$(PYTHON) -m venv .venv/ministack
	.venv/ministack/bin/pip install --quiet --disable-pip-version-check --no-deps -r requirements-ministack.txt
	rm -rf .venv/ministack-python3.13
	$(PIP) --no-deps --target .venv/ministack-python3.13 \
	  --python-version 3.13 --only-binary=:all: -r requirements-ministack.txt
	$(PYTHON) -m venv .venv/sam
	.venv/sam/bin/pip install --quiet --disable-pip-version-check --no-deps -r requirements-sam.txt
	@for part in asl browser; do \
	  { command -v npm >/dev/null && npm ci --prefix tests/$$part --silent --ignore-scripts --no-audit --no-fund; } \
	  || echo "tests/$$part: npm is not on PATH, or failed: the tests that need its packages will be skipped" >&2; \
	done
	@$(BIN)/python tests/python313/set_up.py .venv/python3.13
	touch $(STAMP)

demo: $(DEMO_STAMP)
	$(BIN)/serfer classify --demo examples/images/chelsea.png examples/images/coffee.png --compare

# A detector of text over a page of 10,000 pixels, exact and in windows of fixed overlaps; it takes minutes and 12 GB.
RAPIDOCR := .venv/rapidocr
PAGE ?= --rows 10016 --cols 5024

demo-map: setup $(RAPIDOCR)/.set-up
	mkdir -p build
	$(BIN)/serfer bench maps page $(RAPIDOCR)/rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx $(PAGE) --draw build/demo-map.png

$(RAPIDOCR)/.set-up: requirements-demo-map.txt | $(STAMP)
	rm -rf $(RAPIDOCR)
	$(PIP) --no-compile --no-deps --require-hashes --only-binary :all: --target $(RAPIDOCR) -r requirements-demo-map.txt
	touch $@

# Types are checked while tests wait for their processes.
test: setup
	@$(MAKE) --no-print-directory -j 2 lint unit

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# Many tests wait for processes of their own, so four runs share two cores well. A file's tests stay together, and files
# come in the order of tests/conftest.py: the long ones first.
unit: setup
	$(BIN)/python -m pytest -n 4 $(BY_FILE)

# What needs no torch, under Python 3.13: the plug-in skips the rest (tests/without_torch.py).
PYTHON313 := .venv/tests-python3.13
UNDER_313 := core storage drivers lambdas wiring client registry local/test_redis_server.py test_recorded_plans.py e2e/test_pipeline.py e2e/test_network_file.py

python313: $(PYTHON313)/.set-up
	test ! -x $(PYTHON313)/bin/python || $(PYTHON313)/bin/python -m pytest -p tests.without_torch -n 4 $(BY_FILE) $(UNDER_313:%=tests/%)

$(PYTHON313)/.set-up: $(STAMP)
	rm -rf $(PYTHON313)
	$(BIN)/python tests/python313/set_up.py .venv/python3.13 $(PYTHON313)
	test ! -x $(PYTHON313)/bin/python || touch $@

# What needs no torch, and all that reads hostile files, with the oldest versions that pyproject.toml allows: uv finds them.
# They may call what newer packages beside them deprecate.
OLDEST := .venv/oldest
UNDER_OLDEST := tests/core tests/storage tests/drivers tests/api tests/cli
TEST_TOOLS = $(shell grep -E '^(fsspec|hypothesis|psutil|pytest|pytest-timeout|pytest-xdist|redis|setuptools|tifffile|zarr)==' requirements.txt)
PYTEST_OLDEST = $(OLDEST)/bin/python -m pytest -p tests.without_torch -W default::DeprecationWarning -n 4 $(BY_FILE)

oldest: $(OLDEST)/.set-up
	$(PYTEST_OLDEST) $(UNDER_OLDEST)
	$(PYTEST_OLDEST) -m "hostile and not slow and not weekly and not browser and not deploy" $(UNDER_OLDEST:%=--ignore %) tests

$(OLDEST)/.set-up: $(STAMP)
	rm -rf $(OLDEST)
	$(PYTHON) -m venv --without-pip $(OLDEST)
	$(BIN)/python tests/uv.py pip install --quiet --python $(OLDEST)/bin/python --resolution lowest-direct \
	  $(TEST_TOOLS) --editable ".[client,local,map,deploy,pictures]"
	$(BIN)/python tests/uv.py pip install --quiet --python $(OLDEST)/bin/python --no-deps --editable bench
	touch $@

# The documentation as HTML, in docs/_build; any warning is an error. The Python API and the commands
# of bench are made of docstrings, by the product's environment; the rest needs nothing of it.
docs: $(DOCS_STAMP) setup
	mkdir -p docs/_build
	$(BIN)/python docs/generate.py --built docs/_build
	.venv/docs/bin/sphinx-build -b html -E -q -W --keep-going -d docs/_build/.doctrees docs docs/_build

$(DOCS_STAMP): requirements-docs.txt
	$(PYTHON) -m venv .venv/docs
	.venv/docs/bin/pip install --quiet --disable-pip-version-check --no-deps -r requirements-docs.txt
	touch $(DOCS_STAMP)

# What takes minutes: half of the zoo, and many random networks. The seed is fixed, so that a change
# fails by its own faults alone; `make weekly` draws others.
SEED = $(or $(TEST_SEED),20261127)

slow: setup
	TEST_SEED=$(SEED) $(BIN)/python -m pytest -m "slow and not weekly" --hypothesis-seed=$(SEED) --timeout 2400 -n 3 $(BY_FILE)

# What is exhaustive, in shards of an hour at most: hours. What passed is not run again at the same commit (tests/weekly.py).
# SHARD=NAME runs those with that in their name. Records of results whose files have changed since are listed first.
# Slurm comes from Debian's package, for root.
weekly: setup
	@command -v slurmctld >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq --yes --no-install-recommends slurm-wlm; } \
	|| echo "Slurm is not there, and only root can install it: its test will be skipped" >&2
	$(BIN)/serfer bench results --check
	$(BIN)/python tests/weekly.py $(SHARD)

weekly-clean:
	rm -rf .weekly

# The page in a real browser, which only Debian's own package brings.
browser: setup
	@command -v chromium >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -qq --yes chromium; } \
	|| { echo "chromium is not on PATH, and only root can install it here" >&2; exit 1; }
	$(BIN)/python -m pytest -m browser tests/browser

# What SAM deploys: real networks in every pair of choices, linted and built with no network, and what was built, run. And a
# wheel in an environment of its own, with the newest versions that it allows, where a package index can be reached.
deploy-check: setup
	$(BIN)/python -m pytest -m "deploy and not weekly" -n 3 --dist loadscope --no-loadscope-reorder tests/sam tests/test_packaging.py

bench: setup
	$(BIN)/serfer bench overhead --model alexnet --at-most 2.6

# Bursts while workers, stores and drivers die (docs/results/chaos.md): nothing may be lost, wrong or left behind.
chaos: setup
	$(BIN)/serfer bench chaos --queries 150

# What outside software does against a good guess: a minute each, packages from an index into a temp folder each time. CI does not call it.
findings:
	@failed=; for script in findings/*-*.sh; do echo "== $$script"; bash $$script || failed="$$failed $$script"; done; \
	test -z "$$failed" || { echo "changed or failed:$$failed" >&2; exit 1; }

# Wheels, sdists, checksums and a bill of materials of the commit, in dist/; nothing is uploaded.
release: setup
	$(BIN)/python tests/release.py

clean:
	rm -rf .venv build dist docs/_build *.egg-info .weekly .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
