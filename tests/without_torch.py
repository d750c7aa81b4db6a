"""A plug-in of pytest for an environment without torch (`make python313`): what needs a missing extra is skipped.

`make test` has every extra installed, so there nothing is skipped; what SerFer may need of each extra is said by
tests/test_extras.py.
"""

import importlib.util

import pytest

from serfer.extras import BASE, MODULES

MISSING = {"grimp", "playwright", "schemathesis", "tritonclient"} | {
    module for extra, modules in MODULES.items() if extra != BASE for module in modules
}
MISSING = {module for module in MISSING if importlib.util.find_spec(module) is None}


def _missing(error):
    while error is not None:
        if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in MISSING:
            return error
        error = error.__cause__ or error.__context__
    return None


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    words = str(report.longrepr)
    if report.failed and any(f"No module named '{module}" in words for module in MISSING):
        report.outcome, report.longrepr = "skipped", (str(collector.path), 0, f"Skipped: {words.splitlines()[-1]}")
    return report


def _skipping(item):  # noqa: ARG001 - what pytest passes to both hooks
    try:
        return (yield)
    except Exception as error:
        if (missing := _missing(error)) is None:
            raise
        pytest.skip(str(missing))


pytest_runtest_setup = pytest.hookimpl(wrapper=True)(_skipping)
pytest_runtest_call = pytest.hookimpl(wrapper=True)(_skipping)
