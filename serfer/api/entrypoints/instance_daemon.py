"""One instance of a GPU pool, as its machines run it, until SIGTERM.

    python -m serfer.api.entrypoints.instance_daemon --plan DIR [--plan DIR ...]

It is `serfer instance` without what only the command line needs, so that it runs from the drivers' packed dependencies.
Beside its plan.json the first directory has a scenario.toml, whose largest batch is the largest one here; all that it
says is JSON, one object a line.
"""

from __future__ import annotations

import logging
import sys
import tomllib
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from serfer.api.entrypoints.instance import Idle, serve_instance
from serfer.api.entrypoints.opening import Address
from serfer.api.entrypoints.process import collect_rarely, log_progress, make_parser, run_logged
from serfer.api.observability.logs import write
from serfer.control.scenario import parse_scenario
from serfer.core.errors import InputError, UsageError
from serfer.fleet.provisioners.auto_scaling import release_this_instance
from serfer.instance.network import DEVICES, Hardware
from serfer.instance.opening import Instance, InstanceChoices, measure_networks
from serfer.pipeline.event_loop import run
from serfer.plan_directory import load_plan
from serfer.settings import load_settings

_SCENARIO = "scenario.toml"
_MOST_BYTES = 64 * 1024


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a plan's whole network, and return an exit code."""
    parser = make_parser("serfer.api.entrypoints.instance_daemon", __doc__.partition("\n")[0])
    parser.add_argument(
        "--plan",
        type=Path,
        required=True,
        action="append",
        metavar="DIR",
        help="a plan directory, with its weights; may be repeated, and the first one is the default",
    )
    parser.add_argument("--memory-mb", type=int, help="memory of all networks together")
    parser.add_argument("--device", default="auto", choices=DEVICES, help="what computes")
    parser.add_argument("--exit-when-idle-s", type=float, help="end after so many seconds without a request")
    parser.add_argument("--auto-scaling-release", action="store_true", help="leave the Auto Scaling group before that")
    chosen = parser.parse_args(arguments)
    return run_logged(chosen.log_level, lambda: _serve(chosen))


def _serve(chosen: Namespace) -> None:
    idle = None
    if chosen.exit_when_idle_s is not None:
        release = release_this_instance if chosen.auto_scaling_release else lambda: True
        idle = Idle(chosen.exit_when_idle_s, release)
    models = {load_plan(directory).model: directory for directory in chosen.plan}
    if len(models) < len(chosen.plan):
        raise UsageError("--plan: two plans are of one model, and a name means one network")
    choices = InstanceChoices(Hardware(chosen.device), _largest_batch(chosen.plan[0]), memory_mb=chosen.memory_mb)
    measured, address = measure_networks(models, choices, log_progress), Address(chosen.host, chosen.port)
    run(serve_instance(measured, address, load_settings(), idle=idle, on_started=_listening))


def _listening(url: str, ready: Instance) -> None:
    known = ready.default.measured
    about = {"url": url, "device": known.device, "max_batch": known.max_batch, "models": [*ready.pipelines]}
    write(logging.INFO, "listening", about)


def _largest_batch(directory: Path) -> int | None:
    path = directory / _SCENARIO
    if not path.is_file():
        return None
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES)
    try:
        return parse_scenario(tomllib.loads(data.decode("utf-8"))).instance.max_batch
    except ValueError as error:
        raise InputError(f"{path} is not TOML: {str(error)[:200]}") from error


if __name__ == "__main__":
    collect_rarely()
    sys.exit(main())
