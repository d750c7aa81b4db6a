"""Signals that come where they are least welcome."""

import gc
import signal
import sys


def signalled(call, number, at=0):
    """Call something, with a signal before its `at`-th line, also of what it calls; return how many lines it has run.

    Every call and return is a line. Handlers raise KeyboardInterrupt.
    """
    lines = 0

    def trace(_frame, _event, _value):
        nonlocal lines
        lines += 1
        if lines == at:
            signal.raise_signal(number)
        return trace

    def interrupt(*_):
        raise KeyboardInterrupt

    before = signal.signal(number, interrupt)
    gc.disable()  # Python ignores what is raised in a finalizer
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(None)
        gc.enable()
        signal.signal(number, before)
    return lines
