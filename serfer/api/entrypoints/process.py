"""Shared by processes of services: how often they look for garbage.

Those that run from packed dependencies also share their options, and that all their output is JSON lines. They import
nothing that only the command line needs.
"""

from __future__ import annotations

import argparse
import gc
import logging
from collections.abc import Callable

from serfer.api.observability.logs import configure_logs, write
from serfer.core.errors import SerferError
from serfer.settings import unknown_settings

_GARBAGE = 2_000  # objects


def make_parser(module: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--host", default="0.0.0.0", help="the address to listen at")  # noqa: S104 - balancers ask
    parser.add_argument(
        "--port", type=int, default=8000, choices=range(65536), metavar="PORT", help="0 is any free one"
    )
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return parser


def collect_rarely() -> None:
    """Have Python look for cyclic garbage rarely, and not among what is imported by now.

    By default Python 3.11 and 3.12 look for some after 700 objects more than were freed (later versions after 2,000),
    which queries in flight come to by themselves, though they leave none: ten times for a hundred queries, and once in
    a thousand at all 130,000 objects of a service, which then stands still for 65 ms. A query that is stopped at its
    deadline does leave some, with its images, so that much more would not be rare but late.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(max(_GARBAGE, gc.get_threshold()[0]))


def run_logged(log_level: str, serve: Callable[[], None]) -> int:
    """Serve until the end, and return an exit code; what is wrong is a line of the log."""
    configure_logs(log_level, as_json=True, in_background=True)
    if line := unknown_settings():
        write(logging.WARNING, "settings", {"message": line})
    try:
        serve()
    except SerferError as error:
        write(logging.ERROR, "failed", {"error": type(error).__name__, "reason": str(error).partition("\n")[0]})
        return error.exit_code
    return 0


def log_progress(text: str) -> None:
    write(logging.INFO, "starting", {"message": text})
