"""One driver of a fleet, as its instances run it: `python -m serfer.api.entrypoints.daemon`, until SIGTERM.

It takes the environment variables that the application as a Lambda function takes (variables.py), and the settings of
every driver. Unlike `serfer serve` it needs nothing that only the command line needs, so that it runs from
the same packed dependencies as the function; all that it says is JSON, one object a line.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import replace

from serfer.api.entrypoints.serving import Address, serve_models
from serfer.api.entrypoints.variables import named_models, named_opening
from serfer.api.observability.logs import configure_logs, write
from serfer.core.errors import SerferError
from serfer.fleet.open_pool import routing_of
from serfer.settings import load_settings

_PORTS = range(65536)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the models that the environment names, and return an exit code."""
    chosen = _parser().parse_args(arguments)
    configure_logs(chosen.log_level, as_json=True)
    try:
        settings = load_settings()
        opening, models = replace(named_opening(os.environ), routing=routing_of(settings)), named_models(os.environ)

        def started(url: str) -> None:
            write(logging.INFO, "listening", {"url": url, "models": [*models], "driver": opening.driver})
            if not settings.keys_file:
                write(
                    logging.WARNING, "open", {"message": "whoever reaches this address may ask: set SERFER_KEYS_FILE"}
                )

        serve_models(
            models,
            opening,
            Address(chosen.host, chosen.port),
            settings,
            on_started=started,
            progress=lambda text: write(logging.INFO, "starting", {"message": text}),
        )
    except SerferError as error:
        write(logging.ERROR, "failed", {"error": type(error).__name__, "reason": str(error).partition("\n")[0]})
        return error.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m serfer.api.entrypoints.daemon", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--host", default="0.0.0.0", help="the address to listen at")  # noqa: S104 - a balancer asks
    parser.add_argument("--port", type=int, default=8000, choices=_PORTS, metavar="PORT", help="0 is any free one")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
