"""`serfer` with its threads profiled between SIGUSR1 and SIGUSR2, for `serfer bench service profile`.

Its first argument is a file, the others are serfer's. At its end it writes there, as JSON, the processor seconds of the
event loop's thread between the signals, its calls, and those of the other threads: each function once, and once for
each function that calls a built-in one.
"""

from __future__ import annotations

import cProfile
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from serfer.cli.main import main
from serfer.local.supervisor import INHERITED, ServingState

_BUILT_IN = "~"


def calls(profile: cProfile.Profile) -> list[tuple[str, str, int, float]]:
    """Return file, name, calls and processor seconds of functions; a built-in one's file is its caller's."""
    profile.snapshot_stats()
    found: list[tuple[str, str, int, float]] = []
    for (file, _, name), (_, count, own_s, _, callers) in profile.stats.items():
        if file == _BUILT_IN:
            found += [(caller[0], name, by[0], by[2]) for caller, by in callers.items()]
        else:
            found.append((file, name, count, own_s))
    return found


if __name__ == "__main__":
    profile, others, times, found = (
        cProfile.Profile(time.thread_time),
        list[cProfile.Profile](),
        list[float](),
        dict[str, Any](),
    )

    def _begin(*_: object) -> None:
        for other in others:
            other.clear()
        times.append(time.thread_time())
        profile.enable()

    def _enable_in_thread(*_: object) -> None:
        others.append(cProfile.Profile(time.thread_time))
        others[-1].enable()

    def _stop(*_: object) -> None:
        profile.disable()
        times.append(time.thread_time())
        found.update(calls=calls(profile), others=[call for other in others for call in calls(other)])

    threading.setprofile(_enable_in_thread)  # called once in each thread that begins from now on

    signal.signal(signal.SIGUSR1, _begin)
    signal.signal(signal.SIGUSR2, _stop)
    file, sys.argv[1:] = Path(sys.argv[1]), sys.argv[2:]
    try:
        with ServingState.made() as state:  # as below a parent: it serves in this process itself
            os.environ[INHERITED] = str(state.descriptor)
            main(check=False)
    finally:
        if len(times) == 2:  # noqa: PLR2004 - where the service ended earlier, its own error is what is shown
            file.write_text(json.dumps({"seconds": times[1] - times[0], **found}), encoding="utf-8")
