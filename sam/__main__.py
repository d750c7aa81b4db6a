"""What the Makefile's targets run: `python -m sam previous BUILD`, `teardown BUILD ENV`, `smoke BUILD ENV`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from botocore.exceptions import BotoCoreError, ClientError

from sam.deployment import load_deployment
from sam.samconfig import stack_of
from sam.teardown import tear_down
from serfer.core.errors import SerferError, UnavailableError, UsageError
from serfer.settings import load_settings

_INTERRUPTED = 130


def previous(build: Path) -> None:
    """Print the plan before; raises UsageError where there is none."""
    plans = load_deployment(build).plans
    if len(plans) == 1:
        raise UsageError(f"{build} holds one plan alone: there is none to go back to")
    sys.stdout.write(f"{plans[1]}\n")


def teardown(build: Path, environment: str, stack: str | None) -> None:
    """Delete an environment's stack, or another one in its region, and say how it goes."""
    import boto3  # noqa: PLC0415 - not every command needs it

    deployed, region = stack_of(build, environment)
    stack = stack or deployed
    tear_down(stack, boto3.session.Session(region_name=region), _say)
    _say(f"{stack} is gone, and nothing of it bills")


def measure(given: argparse.Namespace) -> None:
    """Deploy, ask, measure and delete, as `sam.smoke` says; SIGTERM ends it as Ctrl-C does."""
    import boto3  # noqa: PLC0415 - not every command needs it

    from sam.smoke import Order, smoke  # noqa: PLC0415 - same

    signal.signal(signal.SIGTERM, signal.default_int_handler)
    _, region = stack_of(given.build, given.environment)
    os.environ["AWS_DEFAULT_REGION"] = region  # of every client here, and of SAM CLI
    order = Order(given.build, given.environment, given.max_usd, given.out.absolute())
    smoke(order, load_settings(), boto3.session.Session(), _say)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one of them; return an exit code."""
    parser = argparse.ArgumentParser(prog="python -m sam", description=(__doc__ or "").partition(":")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("previous", "teardown", "smoke"):
        commands.add_parser(name).add_argument("build", type=Path)
    for name in ("teardown", "smoke"):
        commands.choices[name].add_argument("environment")
    commands.choices["teardown"].add_argument("--stack", help="another stack than the environment's")
    asked = commands.choices["smoke"]
    asked.add_argument("--max-usd", type=float, default=1.0, help="spend no more, by the price model")
    asked.add_argument("--out", type=Path, default=Path("aws-measured.toml"), help="a file for SERFER_AWS_FILE")
    given = parser.parse_args(arguments)
    try:
        if given.command == "previous":
            previous(given.build)
        elif given.command == "teardown":
            teardown(given.build, given.environment, given.stack)
        else:
            measure(given)
    except SerferError as error:
        _say(str(error))
        return error.exit_code
    except (BotoCoreError, ClientError) as error:
        _say(str(error))
        return UnavailableError.exit_code
    except KeyboardInterrupt:
        return _INTERRUPTED
    return 0


def _say(line: str) -> None:
    sys.stderr.write(f"serfer: {line}\n")


if __name__ == "__main__":
    sys.exit(main())
