"""One instance of a GPU pool, as its machines run it, until SIGTERM.

    python -m serfer.api.entrypoints.instance_daemon --plan DIR

It is `serfer instance` without what only the command line needs, so that it runs from the drivers' packed dependencies.
Beside its plan.json the directory has a scenario.toml, whose largest batch is the largest one here; all that it says is
JSON, one object a line.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from serfer.api.entrypoints.instance import Idle, serve_instance
from serfer.api.entrypoints.serving import Address
from serfer.api.observability.logs import configure_logs, write
from serfer.control.scenario import parse_scenario
from serfer.core.errors import InputError, SerferError
from serfer.fleet.provisioners.auto_scaling import release_this_instance
from serfer.instance.network import DEVICES, Hardware
from serfer.instance.opening import Instance, InstanceChoices
from serfer.plan_directory import load_plan
from serfer.settings import load_settings

_SCENARIO = "scenario.toml"
_MOST_BYTES = 64 * 1024
_PORTS = range(65536)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a plan's whole network, and return an exit code."""
    chosen = _parser().parse_args(arguments)
    configure_logs(chosen.log_level, as_json=True)
    try:
        idle = None
        if chosen.exit_when_idle_s is not None:
            release = release_this_instance if chosen.auto_scaling_release else lambda: True
            idle = Idle(chosen.exit_when_idle_s, release)
        serve_instance(
            load_plan(chosen.plan).model,
            chosen.plan,
            InstanceChoices(Hardware(chosen.device), _largest_batch(chosen.plan)),
            Address(chosen.host, chosen.port),
            load_settings(),
            idle=idle,
            on_started=_listening,
            progress=lambda text: write(logging.INFO, "starting", {"message": text}),
        )
    except SerferError as error:
        write(logging.ERROR, "failed", {"error": type(error).__name__, "reason": str(error).partition("\n")[0]})
        return error.exit_code
    return 0


def _listening(url: str, ready: Instance) -> None:
    network = ready.network
    write(logging.INFO, "listening", {"url": url, "device": network.device, "max_batch": network.most})


def _largest_batch(directory: Path) -> int | None:
    """Return how many images the scenario of a plan directory has at once; None where there is no scenario."""
    path = directory / _SCENARIO
    if not path.is_file():
        return None
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES)
    try:
        return parse_scenario(tomllib.loads(data.decode("utf-8"))).instance.max_batch
    except ValueError as error:
        raise InputError(f"{path} is not TOML: {str(error)[:200]}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m serfer.api.entrypoints.instance_daemon", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("--plan", type=Path, required=True, metavar="DIR", help="a plan directory, with its weights")
    parser.add_argument("--host", default="0.0.0.0", help="the address to listen at")  # noqa: S104 - drivers ask
    parser.add_argument("--port", type=int, default=8000, choices=_PORTS, metavar="PORT", help="0 is any free one")
    parser.add_argument("--device", default="auto", choices=DEVICES, help="what computes")
    parser.add_argument("--exit-when-idle-s", type=float, help="end after so many seconds without a request")
    parser.add_argument("--auto-scaling-release", action="store_true", help="leave the Auto Scaling group before that")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
