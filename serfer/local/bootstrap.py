"""What AWS keeps at /var/runtime/bootstrap: the first code of a worker's process.

Run by path with nothing but the standard library in reach: `python -S -P bootstrap.py PARENT_PID DATA_LIMIT`, with the
environment variables that Lambda defines. `-S` keeps the host's site-packages out, `-P` this script's own directory.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import site
import sys

PR_SET_PDEATHSIG = 1
OPEN_FILES = 1024  # Lambda's own limit


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


def main() -> None:
    """Serve the Runtime API until killed."""
    die_with(int(sys.argv[1]))
    limit_resources(int(sys.argv[2]))
    site.setquit()  # exit() and quit() exist inside Lambda, and -S left them out
    from awslambdaric.__main__ import (  # noqa: PLC0415 - limits come first
        main as serve,
    )

    sys.path.insert(0, os.environ["LAMBDA_TASK_ROOT"])
    handler = os.environ["_HANDLER"]
    sys.argv = ["bootstrap", handler]
    serve(sys.argv)


if __name__ == "__main__":
    main()
