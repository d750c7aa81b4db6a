"""Signals that come while a thread waits: none is lost, whatever their handlers raise."""

import signal
import sys

import pytest

from serfer.interrupts import signals_held


@pytest.mark.killed
def test_all_signals_reach_their_handlers_though_the_first_raises():
    came = []

    def interrupt(number, _frame):
        came.append(number)
        raise KeyboardInterrupt

    numbers = [signal.SIGINT, signal.SIGINT, signal.SIGTERM]
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(KeyboardInterrupt), signals_held() as let_through:  # noqa: PT012 - a block is what is tested
            for number in numbers:
                signal.raise_signal(number)
            let_through()
        assert {signal.getsignal(number) for number in before} == {interrupt}
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    assert came == numbers


def test_interpreter_that_may_handle_no_signals_holds_none():
    block = "from serfer.interrupts import signals_held\nwith signals_held() as let_through:\n    let_through()"
    code = f"import sys\nsys.path[:] = {sys.path}\n{block}"
    assert pytest.importorskip("_testcapi").run_in_subinterp(code) == 0
