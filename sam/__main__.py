"""Commands of the Makefile: `python -m serfer.sam check BUILD ENV`; `rollback`, `teardown`, `smoke` take the same."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from serfer.core.errors import SerferError, UnavailableError
from serfer.sam.deployment import load_deployment
from serfer.sam.samconfig import StackSettings, stack_of
from serfer.sam.stacks import check_update, find_stack, roll_back
from serfer.sam.teardown import tear_down
from serfer.settings import load_settings

_INTERRUPTED = 130


def check(given: argparse.Namespace) -> None:
    """Refuse an update that would delete the plan that an environment's stack serves, or its store."""
    settings, session = _stack(given)
    stack = find_stack(session.client("cloudformation"), settings.stack)
    check_update(stack, load_deployment(given.build), replace=given.replace)


def rollback(given: argparse.Namespace) -> None:
    """Switch an environment's drivers back to the previous plan."""
    settings, session = _stack(given)
    _say(f"{settings.stack} serves the plan {roll_back(settings.stack, session, _say)}")


def teardown(given: argparse.Namespace) -> None:
    """Delete an environment's stack, or the one named, and say how it goes."""
    settings, session = _stack(given)
    stack = given.stack or settings.stack
    tear_down(stack, session, _say)
    _say(f"{stack} is gone, and nothing of it bills")


def measure(given: argparse.Namespace) -> None:
    """Deploy, ask, measure and delete, as `serfer.sam.smoke` says; SIGTERM ends it as Ctrl-C does."""
    from serfer.sam.smoke import Order, smoke  # noqa: PLC0415 - it imports what the other commands do not need

    settings, session = _stack(given)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.environ["AWS_DEFAULT_REGION"] = settings.region  # of the clients that know no samconfig.toml, and of SAM CLI
    smoke(Order(given.build, settings, given.max_usd, given.out.absolute()), load_settings(), session, _say)


def _stack(given: argparse.Namespace) -> tuple[StackSettings, Any]:
    """Return an environment's stack, and a session of boto3 for its region."""
    settings = stack_of(given.build, given.environment)
    return settings, boto3.session.Session(region_name=settings.region)


_COMMANDS = {"check": check, "rollback": rollback, "teardown": teardown, "smoke": measure}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of them; return an exit code."""
    given = _parser().parse_args(arguments)
    try:
        _COMMANDS[given.command](given)
    except SerferError as error:
        _say(str(error))
        return error.exit_code
    except (BotoCoreError, ClientError) as error:
        _say(str(error))
        return UnavailableError.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m serfer.sam", description=(__doc__ or "").partition(":")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in _COMMANDS:
        command = commands.add_parser(name)
        command.add_argument("build", type=Path)
        command.add_argument("environment")
    commands.choices["check"].add_argument("--replace", action="store_true", help="let it delete the served plan")
    commands.choices["teardown"].add_argument("--stack", help="another stack than the environment's")
    smoke_options = commands.choices["smoke"]
    smoke_options.add_argument("--max-usd", type=float, default=1.0, help="spend no more, by the price model")
    smoke_options.add_argument("--out", type=Path, default=Path("aws-measured.toml"), help="a file for SERFER_AWS_FILE")
    return parser


def _say(line: str) -> None:
    sys.stderr.write(f"serfer: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
