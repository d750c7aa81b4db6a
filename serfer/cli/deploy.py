"""`serfer deploy apply`, `check`, `smoke`, `rollback` and `destroy`: an environment's stack of a BUILD directory."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serfer.cli.shared.options import JsonOption
from serfer.cli.shared.terminal import complain
from serfer.core.errors import UnavailableError
from serfer.files import write_whole

if TYPE_CHECKING:
    from serfer.sam.findings import Findings
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
    with _stack(build, environment) as (settings, session):
        _check(build, settings, session, replace=replace)


def apply(build: BuildArgument, environment: EnvironmentArgument = "dev", replace: ReplaceOption = False) -> None:
    """Check, build and deploy an environment's stack by SAM CLI (docs/how-to/deploy.md)."""
    from serfer.sam.quotas import run_sam  # noqa: PLC0415 - needs the extra `deploy`

    with _stack(build, environment) as (settings, session):
        _check(build, settings, session, replace=replace)
    run_sam(build, "build", "--config-env", environment)
    run_sam(build, "deploy", "--config-env", environment)


def rollback(build: BuildArgument, environment: EnvironmentArgument = "dev") -> None:
    """Let an environment's drivers serve the plan before: its functions are there still, and nothing is built."""
    from serfer.sam.stacks import roll_back  # noqa: PLC0415 - needs the extra `deploy`

    with _stack(build, environment) as (settings, session):
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

    with _stack(build, environment) as (settings, session):
        name = stack or settings.stack
        tear_down(name, session, complain)
        complain(f"{name} is gone, and nothing of it bills")


def smoke(
    build: BuildArgument,
    environment: EnvironmentArgument = "dev",
    max_usd: Annotated[float, typer.Option(help="Spend no more, by the price model.")] = 1.0,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE.toml", help="Write what was measured there, for SERFER_AWS_FILE, and a record into FILE.json."
        ),
    ] = Path("aws-measured.toml"),
    at_once: Annotated[
        int,
        typer.Option(
            min=1,
            max=1000,
            help="The largest group of starts at once, six times, after groups of 4, 16 and 64 that are smaller.",
        ),
    ] = 64,
    as_json: JsonOption = False,
) -> None:
    """Deploy a stack of its own, NAME-smoke, query it, measure AWS, and delete it, however the run ends."""
    from serfer.cli.shared.tables import Results, Table, publish  # noqa: PLC0415 - the command line starts fast
    from serfer.sam.probe import Extent  # noqa: PLC0415 - needs the extra `deploy`
    from serfer.sam.smoke import Order  # noqa: PLC0415 - same
    from serfer.sam.smoke import smoke as measure  # noqa: PLC0415 - same
    from serfer.settings import load_settings  # noqa: PLC0415 - the command line starts fast

    with _stack(build, environment) as (settings, session):
        os.environ["AWS_DEFAULT_REGION"] = settings.region  # of the clients that know no samconfig.toml, and of SAM CLI
        order = Order(build, settings, max_usd, out.absolute(), Extent.up_to(at_once))
        found = measure(order, load_settings(), session, complain)
    command = f"serfer deploy smoke BUILD {environment} --max-usd {max_usd:g} --at-once {at_once}"
    record = json.dumps(_record(found, command), indent=1)
    write_whole(out.with_suffix(".json"), record.encode())
    complain(f"written: {out.with_suffix('.json')}; serfer bench results reads it from docs/results/data")
    tables = found.tables()
    rows = [row for table in tables for row in table]
    shown = [Table([*table[0]], [[*row.values()] for row in table]) for table in tables]
    publish(Results(rows, shown), as_json=as_json)


def _record(found: Findings, command: str) -> dict[str, Any]:
    """Return the record of a run, as `serfer bench results` reads it: its tables, and the files that set them."""
    package = Path(__file__).parents[1]
    names = ("probe.py", "probed_function.py", "measure.py", "tails.py", "findings.py")
    files = [package / "sam" / name for name in names]
    several = f"{found.where}: {len(found.samples.warm)} warm invocations, {len(found.samples.cold)} starts"
    return {
        "command": command,
        "kind": "measured",
        "seeds": "",
        "samples": "; not measured: ".join([several, *found.samples.missing]),
        "files": {
            file.relative_to(package.parent).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest() for file in files
        },
        "date": found.date,
        "commit": "",
        "machine": "",
        "tables": [{"head": [*table[0]], "rows": [[*row.values()] for row in table]} for table in found.tables()],
    }


def _check(build: Path, settings: StackSettings, session: Any, *, replace: bool) -> None:  # noqa: ANN401 - boto3 has no types here
    from serfer.sam.deployment import load_deployment  # noqa: PLC0415 - needs the extra `deploy`
    from serfer.sam.stacks import check_update, find_stack  # noqa: PLC0415 - same

    stack = find_stack(session.client("cloudformation"), settings.stack)
    check_update(stack, load_deployment(build), replace=replace)


@contextmanager
def _stack(build: Path, environment: str) -> Iterator[tuple[StackSettings, Any]]:
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
