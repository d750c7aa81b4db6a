"""What is done to a scene while its queries run."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Self

from bench.chaos.clients import Crowd, TwoDrivers
from bench.chaos.testbed import Scene

Disturbance = Callable[[Scene, Crowd], str]
_BETWEEN_KILLS, _AT_A_TIME = 0.1, 3
_RESTARTS = (0.25, 0.5)
_DEATH = 1 / 3
_PATIENCE_S = 5.0


def kill_workers(scene: Scene, crowd: Crowd) -> str:
    """Kill a few workers each time another tenth of the queries has ended; say how many."""
    killed = 0
    due = 0.0
    while crowd.wait(due):
        killed += scene.kill_workers(_AT_A_TIME)
        due = crowd.share_ended + _BETWEEN_KILLS
    return f"{killed} workers killed"


def restart_store(scene: Scene, crowd: Crowd) -> str:
    """Restart the store, empty, after a quarter of the queries and after a half; say how often."""
    restarts = 0
    for share in _RESTARTS:
        if crowd.wait(share):
            scene.restart_store()
            restarts += 1
    return f"the store restarted {restarts} times"


def lose_driver(pair: TwoDrivers) -> Disturbance:
    """Return what kills the first of two drivers after a third of the queries."""

    def disturb(_scene: Scene, crowd: Crowd) -> str:
        crowd.wait(_DEATH)
        return pair.lose_the_first(_PATIENCE_S)

    return disturb


class Disturbed:
    """Runs a disturbance in a thread while queries run; what goes wrong with it is raised at the end."""

    def __init__(self, disturb: Disturbance | None, scene: Scene, crowd: Crowd) -> None:
        self.remark = ""
        self._disturb, self._scene, self._crowd = disturb, scene, crowd
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="serfer-bench-chaos")

    def _run(self) -> None:
        try:
            self.remark = self._disturb(self._scene, self._crowd) if self._disturb else ""
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where it is seen
            self._error = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._crowd.go_home()
        self._thread.join()
        if self._error is not None:
            raise self._error
