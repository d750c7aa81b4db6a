"""What the Makefile's targets ask: `python -m sam previous BUILD`, `python -m sam teardown BUILD ENV`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from sam.deployment import load_deployment
from sam.samconfig import stack_of
from sam.teardown import tear_down
from serfer.core.errors import SerferError, UnavailableError, UsageError


def previous(build: Path) -> None:
    """Print the plan before; raises UsageError where there is none."""
    plans = load_deployment(build).plans
    if len(plans) == 1:
        raise UsageError(f"{build} holds one plan alone: there is none to go back to")
    sys.stdout.write(f"{plans[1]}\n")


def teardown(build: Path, environment: str) -> None:
    """Delete an environment's stack, and say how it goes."""
    import boto3  # noqa: PLC0415 - the others need none

    found = stack_of(build, environment)
    tear_down(found.stack, boto3.session.Session(region_name=found.region), _say)
    _say(f"{found.stack} is gone, and nothing of it bills")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of them; return an exit code."""
    parser = argparse.ArgumentParser(prog="python -m sam", description=(__doc__ or "").partition(":")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("previous", "teardown"):
        commands.add_parser(name).add_argument("build", type=Path)
    commands.choices["teardown"].add_argument("environment")
    given = parser.parse_args(arguments)
    try:
        if given.command == "previous":
            previous(given.build)
        else:
            teardown(given.build, given.environment)
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
