import asyncio
import functools
import gc
import inspect
import logging
import os
import signal
import sys
from pathlib import Path

import botocore.session
import httpx
import pytest
from hypothesis import is_hypothesis_test, settings

from tests import left_behind

# What tests start writes into pipes as it does for users: what it does not flush, nobody sees.
os.environ.pop("PYTHONUNBUFFERED", None)

# Where nothing may be cached, each process compiles the project again, and each pytest rewrites all assertions again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What collection makes stays to the end: the collector need not look at its millions of objects, then or in tests.
gc.disable()

# Processes carry the mark of the tests that have started them.
os.environ[left_behind.MARK] = str(os.getpid())

# Runs share the cores: torch's threads sleep while they wait for one another, and do not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# Most tests of AWS's services make sessions: what a loader has read of botocore's data serves them all.
botocore.session.create_loader = functools.cache(botocore.session.create_loader)

# Each client of httpx reads all certificates, be its URLs of plain HTTP: what one has read serves them all.
httpx._transports.default.create_ssl_context = functools.cache(httpx.create_ssl_context)

# A shell's background job ignores interrupts, and so would the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine takes its time: how long an example takes says nothing about the code.
_USUAL_EXAMPLES = settings.default.max_examples
settings.register_profile("commit", deadline=None, max_examples=12)  # `make weekly` finds what is rarer
_LEAST_EXAMPLES = 3
settings.load_profile("commit")

_HERE = Path(__file__).parent
_SEED = "TEST_SEED"  # of tests that draw cases; `make weekly` sets it to the day's
os.environ.setdefault(_SEED, "20261127")

_TIMES = "TEST_EXAMPLES"  # so many times the examples, from the seed of the command line (make weekly)
_LEAKS = "TEST_LEAKS"  # collect garbage after each file, so that what a file left open is reported there


@pytest.fixture(autouse=True)
def own_log_handlers():
    """Take away the log handlers that a test has installed, such as a command's, whose streams end with the test.

    A line that such a handler cannot write is reported with a traceback, whose parser (Python 3.11's) is not safe
    beside an import in another thread.
    """
    before = logging.root.handlers[:]
    yield
    installed = [each for each in logging.root.handlers if type(each) is logging.StreamHandler and each not in before]
    for handler in installed:
        logging.root.removeHandler(handler)


@pytest.fixture(autouse=True)
def own_signal_handlers():
    """Restore the handlers that a command has set which a test ran in this process.

    A command ignores interrupts when it ends, and the processes of later tests would inherit that.
    """
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        if signal.getsignal(number) is not handler:
            signal.signal(number, handler)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine function in an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    wanted = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in wanted}))
    return True


class _Unexpected(logging.Handler):
    """Fails the test in which the planner survives a bug of its own."""

    def emit(self, record):
        raise AssertionError(record.getMessage())


@pytest.fixture(autouse=True, scope="session")
def no_bug_of_the_planner_is_survived_in_silence():
    logging.getLogger("serfer.splitter.planning.optional").addHandler(_Unexpected(logging.ERROR))


def pytest_report_header():
    return f"{_SEED}={os.environ[_SEED]}"


_kept = left_behind.NOTHING  # what fixtures of the whole session have started


def _outlive(what):
    global _kept  # noqa: PLW0603 - a hook has no other place
    _kept |= what


class _SessionFixtures:
    """Learns what fixtures of the session start: it stays to the end."""

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef):
        if fixturedef.scope != "session":
            return (yield)
        before = left_behind.present()
        try:
            return (yield)
        finally:
            _outlive(left_behind.present() - before)


def pytest_configure(config):
    config.pluginmanager.register(_SessionFixtures())  # of a conftest's own, hooks see no fixtures of the session


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind(request):
    """Let each file end with the processes, listening sockets and open pipelines that it began with, or the session's.

    As yet in `make test` alone: the targets of minutes have not all been seen to end so.
    """
    yield
    if _LEAKS in os.environ:
        gc.collect()  # what was not closed is reported here, not in a later file
    left = left_behind.complaint(_kept)
    if left:
        _outlive(left_behind.present())  # the next file is not told of it
    assert not left or "not slow" not in request.config.option.markexpr, f"this file has left behind: {left}"


def pytest_collection_finish():
    # Each export of a module parses the sources of torch's 500 ONNX operators again, 0.6 s of a processor, reads their
    # signatures, and looks up the dispatcher's: all exports share the results of the first.
    if {"onnxscript", "torch"} <= sys.modules.keys():
        from onnxscript._framework_apis import torch_2_5  # noqa: PLC0415 - slow to import, where nothing is exported
        from torch._export import utils  # noqa: PLC0415 - same
        from torch.onnx._internal.exporter import _schemas  # noqa: PLC0415 - same

        for module, name in (
            (torch_2_5, "get_torchlib_ops"),
            (_schemas, "op_signature_from_function"),
            (utils, "_materialize_cpp_cia_ops"),
        ):
            setattr(module, name, functools.cache(getattr(module, name)))
    _outlive(left_behind.present())
    gc.freeze()
    gc.enable()


_FIRST = ("e2e", "variants", "instance", "splitter", "bench", "study", "api")  # the files that take long, or wait


def pytest_collection_modifyitems(items):
    """Begin with the files that take longest, so that runs that share the work end together (--dist loadfile)."""
    set_examples(items)
    turns = {name: turn for turn, name in enumerate(_FIRST)}
    items.sort(key=lambda item: turns.get(item.path.relative_to(_HERE).parts[0], len(turns)))


def set_examples(items):
    """Let properties have as many times their own examples as the variable says; without it, a third of them.

    Those that are marked slow draw all that they ask for.
    """
    times = int(os.environ.get(_TIMES, "0"))
    seen = set()  # items of one test function, which parameters and derived classes have, share its settings
    for item in items:
        function = getattr(item, "obj", None)
        function = getattr(function, "__func__", function)
        if not is_hypothesis_test(function) or function in seen:
            continue
        seen.add(function)
        own = getattr(function, "_hypothesis_internal_use_settings", None) or settings.default
        if times:
            examples = _USUAL_EXAMPLES if own is settings.default else own.max_examples
            changed = settings(own, max_examples=times * examples, derandomize=False, database=None)
        elif own is settings.default or any(item.get_closest_marker(name) for name in ("slow", "weekly")):
            continue
        else:
            changed = settings(own, max_examples=min(own.max_examples, max(_LEAST_EXAMPLES, own.max_examples // 3)))
        function._hypothesis_internal_use_settings = changed
