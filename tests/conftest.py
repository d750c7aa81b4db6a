import os
import signal

from hypothesis import is_hypothesis_test, settings

# What tests start writes into pipes as it does for users: what it does not flush, nobody sees.
os.environ.pop("PYTHONUNBUFFERED", None)

# Runs share the cores: torch's threads sleep while they wait for one another, and do not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# A shell's background job ignores interrupts, and so would the commands that tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine takes its time: how long an example takes says nothing about the code.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

_TIMES = "SERFER_TEST_EXAMPLES"  # so many times the examples, from the seed of the command line (make properties)


def pytest_collection_modifyitems(items):
    times = int(os.environ.get(_TIMES, "0"))
    if times < 1:
        return
    multiplied = set()  # items of one test function, which parameters and derived classes have, share its settings
    for item in items:
        function = getattr(item, "obj", None)
        function = getattr(function, "__func__", function)
        if is_hypothesis_test(function) and function not in multiplied:
            multiplied.add(function)
            own = getattr(function, "_hypothesis_internal_use_settings", None) or settings.default
            more = settings(own, max_examples=times * own.max_examples, derandomize=False, database=None)
            function._hypothesis_internal_use_settings = more
