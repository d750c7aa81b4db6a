"""`serfer deploy apply`, `check`, `smoke`, `rollback` and `destroy`: an environment's stack of a BUILD directory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serfer.cli.shared.terminal import complain
from serfer.core.errors import UnavailableError

if TYPE_CHECKING:
    from serfer.sam.samconfig import StackSettings

BuildArgument = Annotated[
    Path, typer.Argument(metavar="BUILD", help="What serfer deploy package wrote.", show_default=False)
]
EnvironmentArgument = Annotated[
    str, typer.Argument(metavar="[ENV]", help="The environment, of BUILD/samconfig.toml: dev, prod, or one of yours.")
]
ReplaceOption = Annotated[
    bool, typer.Option("--replace", help="Go on where the update deletes the plan that the stack serves.")
]


def check(build: BuildArgument, environment: EnvironmentArgument = "dev", replace: ReplaceOption = False) -> None:
    """Refuse an update that would delete the plan that an environment's stack serves, or its store."""
    with open_stack(build, environment) as (settings, session):
        _check(build, settings, session, replace=replace)


def apply(build: BuildArgument, environment: EnvironmentArgument = "dev", replace: ReplaceOption = False) -> None:
    """Check, build and deploy an environment's stack by SAM CLI (docs/how-to/deploy.md)."""
    from serfer.sam.quotas import run_sam  # noqa: PLC0415 - needs the extra `deploy`

    with open_stack(build, environment) as (settings, session):
        _check(build, settings, session, replace=replace)
    run_sam(build, "build", "--config-env", environment)
    run_sam(build, "deploy", "--config-env", environment)


def rollback(build: BuildArgument, environment: EnvironmentArgument = "dev") -> None:
    """Let an environment's drivers serve the plan before: its functions are there still, and nothing is built."""
    from serfer.sam.stacks import roll_back  # noqa: PLC0415 - needs the extra `deploy`

    with open_stack(build, environment) as (settings, session):
        complain(f"{settings.stack} serves the plan {roll_back(settings.stack, session, complain)}")


def destroy(
    build: BuildArgument,
    environment: EnvironmentArgument = "dev",
    stack: Annotated[
        str | None, typer.Option(metavar="NAME", help="Another stack than the environment's, in its region.")
    ] = None,
) -> None:
    """Delete an environment's stack, all that its buckets hold, and what SAM CLI uploaded for it."""
    from serfer.sam.teardown import tear_down  # noqa: PLC0415 - needs the extra `deploy`

    with open_stack(build, environment) as (settings, session):
        name = stack or settings.stack
        tear_down(name, session, complain)
        complain(f"{name} is gone, and nothing of it bills")


def smoke(
    build: BuildArgument,
    environment: EnvironmentArgument = "dev",
    max_usd: Annotated[float, typer.Option(help="Spend no more, by the price model.")] = 1.0,
) -> None:
    """Deploy a stack of its own, NAME-smoke, query it, compare answers, and delete it, however the run ends."""
    from serfer.sam.smoke import Order  # noqa: PLC0415 - needs the extra `deploy`
    from serfer.sam.smoke import smoke as run  # noqa: PLC0415 - same
    from serfer.settings import load_settings  # noqa: PLC0415 - the command line starts fast

    with open_stack(build, environment) as (settings, session):
        os.environ["AWS_DEFAULT_REGION"] = settings.region  # of the clients that know no samconfig.toml, and of SAM CLI
        run(Order(build, settings, max_usd), load_settings(), session, complain)


def _check(build: Path, settings: StackSettings, session: Any, *, replace: bool) -> None:  # noqa: ANN401 - boto3 has no types here
    from serfer.sam.deployment import load_deployment  # noqa: PLC0415 - needs the extra `deploy`
    from serfer.sam.stacks import check_update, find_stack  # noqa: PLC0415 - same

    stack = find_stack(session.client("cloudformation"), settings.stack)
    check_update(stack, load_deployment(build), replace=replace)


@contextmanager
def open_stack(build: Path, environment: str) -> Iterator[tuple[StackSettings, Any]]:
    """Give an environment's stack, and a session of boto3 for its region; AWS's errors are UnavailableError."""
    import boto3  # noqa: PLC0415 - the extra `deploy`
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError  # noqa: PLC0415 - the command line starts fast

    from serfer.sam.samconfig import stack_of  # noqa: PLC0415 - needs the extra `deploy`

    settings = stack_of(build, environment)
    try:
        yield settings, boto3.session.Session(region_name=settings.region)
    except NoCredentialsError as error:
        raise UnavailableError(
            "no AWS credentials: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from error
    except (BotoCoreError, ClientError) as error:
        raise UnavailableError(str(error)) from error
