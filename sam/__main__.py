"""What the Makefile's targets run: `python -m sam check BUILD ENV`, and `rollback` and `teardown` with the same."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from sam.deployment import load_deployment
from sam.samconfig import StackSettings, stack_of
from sam.stacks import check_update, find_stack, roll_back
from sam.teardown import tear_down
from serfer.core.errors import SerferError, UnavailableError


def check(build: Path, environment: str) -> None:
    """Refuse an update that would delete the plan that an environment's stack serves, or its store."""
    found, session = _stack(build, environment)
    check_update(find_stack(session.client("cloudformation"), found.stack), load_deployment(build))


def rollback(build: Path, environment: str) -> None:
    """Let an environment's drivers use the plan before."""
    found, session = _stack(build, environment)
    _say(f"{found.stack} serves the plan {roll_back(found.stack, session, _say)}")


def teardown(build: Path, environment: str) -> None:
    """Delete an environment's stack, and say how it goes."""
    found, session = _stack(build, environment)
    tear_down(found.stack, session, _say)
    _say(f"{found.stack} is gone, and nothing of it bills")


def _stack(build: Path, environment: str) -> tuple[StackSettings, Any]:
    """Return an environment's stack, and a session of boto3 for its region."""
    found = stack_of(build, environment)
    return found, boto3.session.Session(region_name=found.region)


_COMMANDS = {"check": check, "rollback": rollback, "teardown": teardown}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of them; return an exit code."""
    parser = argparse.ArgumentParser(prog="python -m sam", description=(__doc__ or "").partition(":")[0])
    parser.add_argument("command", choices=_COMMANDS)
    parser.add_argument("build", type=Path)
    parser.add_argument("environment")
    given = parser.parse_args(arguments)
    try:
        _COMMANDS[given.command](given.build, given.environment)
    except SerferError as error:
        _say(str(error))
        return error.exit_code
    except (BotoCoreError, ClientError) as error:
        _say(str(error))
        return UnavailableError.exit_code
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"serfer: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
