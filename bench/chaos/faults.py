"""Faults of a testbed while its queries run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from serfer_bench.chaos.clients import Clients, TwoDrivers
from serfer_bench.chaos.testbed import Testbed

Fault = Callable[[Testbed, Clients], str]
"""Acts while queries run, and returns a remark on what it did."""
_BETWEEN_KILLS, _AT_A_TIME = 0.1, 3
_RESTARTS = (0.25, 0.5)
_DEATH = 1 / 3
_PATIENCE_S = 5.0


def kill_workers(testbed: Testbed, clients: Clients) -> str:
    killed = 0
    due = 0.0
    while clients.wait(due):
        killed += testbed.kill_workers(_AT_A_TIME)
        due = clients.share_ended + _BETWEEN_KILLS
    return f"{killed} workers killed"


def restart_store(testbed: Testbed, clients: Clients) -> str:
    restarts = 0
    for share in _RESTARTS:
        if clients.wait(share):
            testbed.restart_store()
            restarts += 1
    return f"the store restarted {restarts} times"


def kill_driver(pair: TwoDrivers) -> Fault:
    def inject(_testbed: Testbed, clients: Clients) -> str:
        clients.wait(_DEATH)
        return pair.kill_first(_PATIENCE_S)

    return inject


class FaultInjection:
    """Runs a fault in a thread while queries run; an error in it is raised at the end."""

    def __init__(self, fault: Fault | None, testbed: Testbed, clients: Clients) -> None:
        self.remark = ""
        self._fault, self._testbed, self._clients = fault, testbed, clients
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="serfer-bench-chaos")

    def _run(self) -> None:
        try:
            self.remark = self._fault(self._testbed, self._clients) if self._fault else ""
        except Exception as error:  # noqa: BLE001 - whatever it is, __exit__ raises it
            self._error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._clients.stop()
        self._thread.join()
        if self._error is not None:
            raise self._error
