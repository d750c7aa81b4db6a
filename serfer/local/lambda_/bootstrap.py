"""The counterpart of AWS's /var/runtime/bootstrap: the first code of a worker's process.

Run by path with nothing but the standard library in reach, and with the environment variables that Lambda defines:

    python -S -P bootstrap.py PARENT_PID DATA_LIMIT SLOWNESS LAYER...

`-S` keeps the host's site-packages out, `-P` this script's own directory. The handler takes SLOWNESS times as long as
it needs. LAYERs are what AWS has at /opt/python: where imports look after the function itself.
The interpreter may be another one than the service's.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import site
import sys
import time
from collections.abc import Callable
from typing import Any

PR_SET_PDEATHSIG = 1
OPEN_FILES = 1024  # Lambda's own limit
SLICE_S = 0.001  # of work at a stretch in a slow environment

Handler = Callable[[Any, Any], Any]


def die_with(parent: int) -> None:
    """Have the kernel kill this process when the thread that forked it ends, and end now if it already has."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(1)


def limit_resources(data: int) -> None:
    """Bound private memory to `data` bytes, open files to Lambda's number, and leave no core dumps."""
    for kind, limit in ((resource.RLIMIT_DATA, data), (resource.RLIMIT_NOFILE, OPEN_FILES), (resource.RLIMIT_CORE, 0)):
        allowed = resource.getrlimit(kind)[1]
        most = limit if allowed == resource.RLIM_INFINITY else min(limit, allowed)
        resource.setrlimit(kind, (most, most))


def slowed(handler: Handler, factor: float) -> Handler:
    """Return a handler that takes `factor` times as long, resting after every millisecond or so of its work."""

    def slow(event: Any, context: Any) -> Any:  # noqa: ANN401 - whatever the handler takes and returns
        worked_since = time.perf_counter()

        def rest(*_: object) -> None:
            nonlocal worked_since
            time.sleep((factor - 1) * (time.perf_counter() - worked_since))
            worked_since = time.perf_counter()

        def rest_and_go_on(*_: object) -> None:
            rest()
            signal.setitimer(signal.ITIMER_REAL, SLICE_S)

        signal.signal(signal.SIGALRM, rest_and_go_on)
        signal.setitimer(signal.ITIMER_REAL, SLICE_S)
        try:
            return handler(event, context)
        finally:
            signal.signal(signal.SIGALRM, signal.SIG_IGN)  # first: a signal on its way must set no timer
            signal.setitimer(signal.ITIMER_REAL, 0)
            rest()

    return slow


def slow_down(factor: float) -> None:
    """Patch the runtime client so that it stretches the handler that it loads."""
    from awslambdaric import bootstrap  # noqa: PLC0415 - limits come first

    find = bootstrap._get_handler  # noqa: SLF001 - the only place where it can be done
    bootstrap._get_handler = lambda *wanted: slowed(find(*wanted), factor)  # noqa: SLF001 - same


def main() -> None:
    die_with(int(sys.argv[1]))
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # to all processes of a service: what runs is answered first
    limit_resources(int(sys.argv[2]))
    site.setquit()  # exit() and quit() exist inside Lambda, and -S left them out
    from awslambdaric.__main__ import (  # noqa: PLC0415 - limits come first
        main as serve,
    )

    if (factor := float(sys.argv[3])) > 1:
        slow_down(factor)
    sys.path[:0] = [os.environ["LAMBDA_TASK_ROOT"], *sys.argv[4:]]
    handler = os.environ["_HANDLER"]
    sys.argv = ["bootstrap", handler]
    serve(sys.argv)


if __name__ == "__main__":
    main()
