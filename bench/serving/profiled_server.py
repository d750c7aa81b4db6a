"""`serfer` with the thread of its event loop profiled between SIGUSR1 and SIGUSR2, for `serfer bench service profile`.

Its first argument is a file, the others are serfer's. At its end it writes there, as JSON, the processor seconds of the
thread between the signals, and the calls: each function once, and once for each function that calls a built-in one.
"""

from __future__ import annotations

import cProfile
import json
import signal
import sys
import time
from pathlib import Path

from serfer.cli.main import main

_BUILT_IN = "~"


def calls(profile: cProfile.Profile) -> list[tuple[str, str, int, float]]:
    """Return file, name, calls and processor seconds of functions; a built-in one's file is its caller's."""
    profile.create_stats()
    found: list[tuple[str, str, int, float]] = []
    for (file, _, name), (_, count, own_s, _, callers) in profile.stats.items():
        if file == _BUILT_IN:
            found += [(caller[0], name, by[0], by[2]) for caller, by in callers.items()]
        else:
            found.append((file, name, count, own_s))
    return found


if __name__ == "__main__":
    profile, times = cProfile.Profile(time.thread_time), list[float]()

    def _begin(*_: object) -> None:
        times.append(time.thread_time())
        profile.enable()

    def _stop(*_: object) -> None:
        profile.disable()
        times.append(time.thread_time())

    signal.signal(signal.SIGUSR1, _begin)
    signal.signal(signal.SIGUSR2, _stop)
    file, sys.argv[1:] = Path(sys.argv[1]), sys.argv[2:]
    try:
        main()
    finally:
        if len(times) == 2:  # noqa: PLR2004 - where the service ended earlier, its own error is what is shown
            file.write_text(json.dumps({"seconds": times[1] - times[0], "calls": calls(profile)}), encoding="utf-8")
