"""One driver of a fleet, as its instances run it: `python -m serfer.api.entrypoints.daemon`, until SIGTERM.

It takes the settings that the application as a Lambda function takes (`serfer.settings.DriverSettings`), and those of
every driver. It is `serfer serve` without what only the command line needs.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import replace

from serfer.api.entrypoints.aws_driver import applications_of, models_of, opening_of
from serfer.api.entrypoints.opening import Address
from serfer.api.entrypoints.process import collect_rarely, log_progress, make_parser, run_logged
from serfer.api.entrypoints.serving import serve_models
from serfer.api.observability.logs import write
from serfer.fleet.open_pool import routing_of
from serfer.pipeline.event_loop import run
from serfer.settings import DriverSettings, load_settings


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve the models that the environment names, and return an exit code."""
    chosen = make_parser("serfer.api.entrypoints.daemon", __doc__.partition("\n")[0]).parse_args(arguments)
    return run_logged(chosen.log_level, lambda: _serve(Address(chosen.host, chosen.port)))


def _serve(address: Address) -> None:
    settings, driver = load_settings(), DriverSettings()
    applications, models = applications_of(driver, settings), models_of(driver)
    opening = replace(opening_of(driver), routing=routing_of(settings), applications=applications)

    def started(url: str) -> None:
        write(logging.INFO, "listening", {"url": url, "models": [*models], "driver": opening.choices.driver})
        if not settings.keys_file:
            write(logging.WARNING, "open", {"message": "anyone who reaches this address may ask: set SERFER_KEYS_FILE"})

    run(serve_models(models, opening, address, settings, on_started=started, progress=log_progress))


if __name__ == "__main__":
    collect_rarely()
    sys.exit(main())
