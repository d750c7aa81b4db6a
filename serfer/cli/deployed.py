"""`serfer doctor`, `warm` and `sweep`: what a deployment needs, its functions, and its bucket."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from serfer.cli.shared.display import plain, print_table, styled
from serfer.cli.shared.options import JsonOption, opened, plan_directory, print_json, status_line
from serfer.cli.shared.plan_commands import WarmCommand
from serfer.cli.shared.terminal import out
from serfer.core.errors import UnavailableError, UsageError
from serfer.settings import load_settings
from serfer.wiring.pipeline_options import PipelineOptions

if TYPE_CHECKING:
    from serfer.doctor.machine import Check
    from serfer.pipeline.warm import Warmth


def doctor(
    aws: Annotated[
        bool, typer.Option("--aws", help="Look at the AWS account, the region and SAM CLI; nothing is created.")
    ] = False,
    build: Annotated[
        Path | None,
        typer.Option(help="With --aws: what is to be deployed, a BUILD directory of serfer deploy package."),
    ] = None,
    region: Annotated[str | None, typer.Option(help="With --aws: a region; by default BUILD's, or AWS's own.")] = None,
    deployer_policy: Annotated[
        bool,
        typer.Option("--deployer-policy", help="With --build: print the IAM policies that deploying takes, as JSON."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check this machine or an AWS account; print what is missing and how to get it; exit code 4 if something is."""
    if (build or region or deployer_policy) and not aws:
        raise UsageError("--build, --region and --deployer-policy go with --aws")
    if deployer_policy:
        if build is None:
            raise UsageError("--deployer-policy depends on what is deployed: give --build BUILD")
        from serfer.doctor.aws import deployer_policies  # noqa: PLC0415 - imports boto3

        print(json.dumps(deployer_policies(build), indent=2))  # noqa: T201 - goes out as it is
        return
    checks = _examined(aws, build, region)
    if as_json:
        for check in checks:
            print_json(asdict(check))
    else:
        _print_checks(checks)
    if missing := [check.name for check in checks if not check.ok]:
        raise UnavailableError(f"{len(missing)} of {len(checks)} checks failed: {', '.join(missing)}: see above")


def _examined(aws: bool, build: Path | None, region: str | None) -> Sequence[Check]:  # noqa: FBT001 - a flag, passed on
    if aws:
        from serfer.doctor.aws import examine_aws  # noqa: PLC0415 - imports boto3

        with status_line() as progress:
            progress("asking AWS")
            settings = load_settings()
            return examine_aws(settings.facts(), build, region, settings.cache_dir)
    from serfer.doctor.machine import examine  # noqa: PLC0415 - looks at packages that other commands do not need

    return examine(load_settings())


def warm(options: WarmCommand, _context: typer.Context) -> None:
    directory = plan_directory(options.plan, options.model, options.stack, workers="aws")
    with opened(directory, PipelineOptions(store=options.store, stack=options.stack), "aws") as pipeline:
        while True:
            with status_line() as progress:
                progress("warming up")
                warmths = pipeline.warm(options.queries, options.hold_s)
            if options.as_json:
                for function in warmths:
                    print_json(function.as_dict())
            else:
                _print_warmth(warmths)
            if options.every_s is None:
                break
            time.sleep(options.every_s)
    if any(function.problem for function in warmths):
        raise UnavailableError("some requests failed: see the lines above")


def sweep(
    store: Annotated[str | None, typer.Option(help="The bucket and prefix: s3://BUCKET/PREFIX. [SERFER_STORE]")] = None,
    rule: Annotated[
        bool, typer.Option("--rule", help="Also give the bucket a lifecycle rule that does this once a day.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Delete what has expired from a store in S3, which knows no time to live: what drivers that died left behind."""
    from serfer.storage import open_store  # noqa: PLC0415 - the command line starts fast
    from serfer.storage.s3.store import S3Store  # noqa: PLC0415 - same

    store = store or load_settings().store
    if store is None:
        raise UsageError("which store? Give --store s3://BUCKET/PREFIX, or set SERFER_STORE")
    with open_store(store) as opened_store, status_line() as progress:
        if not isinstance(opened_store, S3Store):
            raise UsageError("every other store deletes expired values by itself: give --store s3://BUCKET/PREFIX")
        progress("looking for what has expired")
        if rule:
            opened_store.ensure_lifecycle()
        deleted = opened_store.sweep()
    if as_json:
        print_json({"deleted": deleted, "rule": rule})
    else:
        out.print(f"deleted {deleted:,} expired objects" + ("; the bucket's own rule does so daily" if rule else ""))


def _print_warmth(warmths: Sequence[Warmth]) -> None:
    rows = [
        (made.function, str(made.asked), str(made.warm), str(made.started), f"{made.slowest_start_ms:.0f}")
        for made in warmths
    ]
    print_table(["function", "asked", "warm", "started", "slowest start ms"], rows)
    for made in warmths:
        if made.problem:
            out.print(f"{plain(made.function)}: {plain(made.problem)}")


def _print_checks(checks: Sequence[Check]) -> None:
    for check in checks:
        mark = styled("ok     ", "green") if check.ok else styled("MISSING", "red")
        out.print(mark, f" {plain(check.name):<22} {plain(check.found)}")
        if not check.ok or "(optional)" in check.found:
            out.print(f"         {plain(check.remedy)}")
