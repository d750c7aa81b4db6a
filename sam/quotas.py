"""AWS's limits, checked before anything is built; and the search for SAM CLI."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from botocore.session import Session

from serfer.core.costs.account import AccountQuotas
from serfer.core.costs.aws import AwsFacts
from serfer.core.errors import PlanError, UnavailableError, UsageError
from serfer.core.plan import CONTAINER, Plan, explained
from serfer.core.plan.borders import members
from serfer.core.units import MS_PER_S
from serfer.drivers.stepfunctions.asl import compile_plan, local_functions
from serfer.pipeline.warm import environments
from serfer.sam.cost.marginal import registry_lines
from serfer.sam.options import Options, Pings
from serfer.sam.template.intrinsics import resources

_S_PER_MINUTE = 60
_MOST_NAMED = 3


def check_deployable(
    plan: Plan, options: Options, facts: AwsFacts, cold: Plan | None = None, account: AccountQuotas | None = None
) -> list[str]:
    """Raise UsageError for the first thing that AWS would refuse, naming the option that helps.

    Return, a sentence each, what the `account` (a new one unless given) would have to ask for first.
    """
    options.check()
    check_region(options, facts)
    for checked in (plan, *([cold] if cold else [])):
        options.check_plan(checked)
        _check_functions(checked, facts)
        _check_times(checked, options, facts)
        _check_gangs(checked, options, facts)
    if options.by_state_machine:
        _check_machine(plan, options)
    if cold:
        _check_room(plan, cold, facts)
    if options.pings:
        _check_pings(plan, options.pings, facts)
    if options.provisioned_concurrency is not None:
        _check_provisioned(plan, options, options.provisioned_concurrency, facts)
    return _notes(plan, cold, options, facts, account or AccountQuotas.new(facts))


def check_region(options: Options, facts: AwsFacts) -> None:
    session, region = Session({"profile": (None, None, None, None)}), options.region  # whatever AWS_PROFILE says
    partitions = session.get_available_partitions()
    known = [name for partition in partitions for name in session.get_available_regions("lambda", partition)]
    if region not in known:
        near = difflib.get_close_matches(region, known, _MOST_NAMED)
        raise UsageError(f"--region {region} is not a region with Lambda{f': did you mean {near[0]}?' if near else ''}")
    needed = "apigateway" if options.drivers == "function" else "wafv2"
    if not any(region in session.get_available_regions(needed, partition) for partition in partitions):
        raise UsageError(f"--region {region} has no {needed}, which --drivers {options.drivers} needs: choose another")
    if options.snapstart and region in facts.regions_without.get("snapstart", ()):
        raise UsageError(f"--snapstart: {region} has none; leave it out, or choose another --region")
    _check_zone(options, facts)


def _check_zone(options: Options, facts: AwsFacts) -> None:
    if options.store != "s3express":
        return
    zones = facts.zones.get(options.region, ())
    if not zones:
        has = ", ".join(sorted(facts.zones))
        raise UsageError(f"--store s3express: {options.region} has no zone with S3 Express; these regions have: {has}")
    if options.zone not in zones:
        raise UsageError(f"zone {options.zone} has no S3 Express: in {options.region} these have: {', '.join(zones)}")


def _check_functions(plan: Plan, facts: AwsFacts) -> None:
    functions = facts.functions
    for number, stage in enumerate(plan.stages):
        if not functions.memory_min <= stage.memory_mb <= functions.memory_max:
            raise UsageError(
                f"stage-{number} has {stage.memory_mb:,} MB, Lambda allows {functions.memory_min} to "
                f"{functions.memory_max:,}: split with another --memory"
            )
    for number, part in plan.functions:
        size = plan.function_bytes(number, part) + explained(plan.limit).dependencies
        image = plan.stages[number].weights_in == CONTAINER
        limit = functions.image_limit if image else functions.package_limit
        if size > limit:
            raise UsageError(
                f"stage-{number}/{part} has {size:,} bytes with its dependencies, a "
                f"{'container image' if image else 'function'} may have {limit:,}: split without limit_mb"
            )


def _check_times(plan: Plan, options: Options, facts: AwsFacts) -> None:
    predicted = [ms / MS_PER_S for ms in plan.predicted_ms]
    if max(predicted) > facts.functions.timeout_max:
        raise UsageError(
            f"a stage is predicted to take {max(predicted):.0f} s, a function may take "
            f"{facts.functions.timeout_max:.0f} s: split with more --stages or finer --grids"
        )
    limits = [
        (options.drivers == "function", facts.services.api_timeout, "a REST API waits", "--drivers fleet"),
        (
            options.engine == "stepfunctions-express",
            facts.services.express_timeout,
            "an Express workflow runs",
            "--engine stepfunctions",
        ),
    ]
    for concerned, most, what, other in limits:
        if concerned and sum(predicted) > most:
            raise UsageError(f"a query is predicted to take {sum(predicted):.0f} s, {what} {most:.0f} s: use {other}")


def _check_gangs(plan: Plan, options: Options, facts: AwsFacts) -> None:
    """Refuse a gang whose members cannot all run at once: it would never start."""
    reserved = options.reserved_concurrency
    for gang in plan.gangs if options.runs_gangs else ():
        count = members(plan, gang)
        needs = f"the gang of stages {gang.start} to {gang.stop - 1} needs {count:,} environments at once"
        if reserved is not None and count > reserved:
            raise UsageError(f"{needs}, reserved_concurrency allows {reserved:,}: allow as many, or split again")
        if count > facts.functions.concurrency:
            most = facts.functions.concurrency
            raise UsageError(f"{needs}, an account has {most:,}: split with fewer tiles, or with --set gang=never")


def _check_room(plan: Plan, cold: Plan, facts: AwsFacts) -> None:
    """Refuse a cold plan that would take the environments which its query starts for the other plan."""
    needed = [max(stage.grid.tiles for stage in priced.stages) for priced in (cold, plan)]
    most = facts.functions.concurrency
    if sum(needed) > most:
        raise UsageError(
            f"a query on the cold plan needs {needed[0]:,} environments while {needed[1]:,} of the other plan start, "
            f"an account has {most:,}: split with fewer tiles, or with --set cold_plan=never"
        )


def _check_pings(plan: Plan, pings: Pings, facts: AwsFacts) -> None:
    functions = facts.functions
    if _S_PER_MINUTE * pings.minutes > functions.kept_warm:
        most = int(functions.kept_warm // _S_PER_MINUTE) or 1
        raise UsageError(
            f"ping_every={pings.minutes} is later than environments without work stay, {functions.kept_warm:.0f} s "
            f"(lambda.kept_warm of SERFER_AWS_FILE): ping every {most} minutes or more often"
        )
    needed = 1 + max(environments(plan, pings.queries).values())
    if needed > functions.concurrency:
        raise UsageError(
            f"ping_queries={pings.queries} takes {needed:,} environments at once, an account has "
            f"{functions.concurrency:,}: ping for fewer"
        )


def _check_provisioned(plan: Plan, options: Options, queries: int, facts: AwsFacts) -> None:
    counts, functions = environments(plan, queries), facts.functions
    reserved = options.reserved_concurrency
    if reserved is not None and max(counts.values()) > reserved:
        raise UsageError(
            f"provisioned_concurrency={queries} takes {max(counts.values()):,} environments of a function, "
            f"reserved_concurrency allows {reserved:,}: allow as many, or provision fewer"
        )
    total, most = sum(counts.values()), functions.concurrency - functions.concurrency_kept
    if total > most:
        raise UsageError(
            f"provisioned_concurrency={queries} takes {total:,} environments of all functions together, an account "
            f"may set {most:,} aside: provision fewer"
        )


def _check_machine(plan: Plan, options: Options) -> None:
    try:
        compile_plan(plan, local_functions(plan), express=options.engine == "stepfunctions-express")
    except PlanError as error:
        raise UsageError(f"--engine {options.engine}: {error}") from error


def _notes(plan: Plan, cold: Plan | None, options: Options, facts: AwsFacts, account: AccountQuotas) -> list[str]:
    plans = [plan, *([cold] if cold else [])]
    functions = facts.functions
    notes = account_notes(plans, account, drivers=options.drivers == "function")
    if lines := registry_lines(facts, options):
        usd = sum(line.usd for line in lines)
        notes.append(
            f"a GPU pool's drivers update its registry each second in --store {options.store}: about "
            f"${usd:,.0f} a month for each driver, also when idle; choose --store valkey"
        )
    notes += dict.fromkeys(note for plan in plans for note in _gang_notes(plan, options))
    count = sum(len(plan.functions) for plan in plans)
    reserved = (options.reserved_concurrency or 0) * count
    if reserved > functions.concurrency - functions.concurrency_kept:
        notes.append(
            f"reserved_concurrency takes {reserved:,} environments for {count} functions, an account "
            f"may reserve {functions.concurrency - functions.concurrency_kept:,} unless its quota was raised"
        )
    return notes


def _gang_notes(plan: Plan, options: Options) -> list[str]:
    if not plan.gangs:
        return []
    if not options.runs_gangs:
        chosen = f"--engine {options.engine} and --store {options.store}"
        return [
            f"{chosen} run the plan's gangs stage by stage; --engine push and a cache (--store valkey, say) as such"
        ]
    fewer = "where an account has fewer free, as new ones may, its stages run one by one"
    return [f"a query's widest gang needs {plan.widest_gang} environments at once; {fewer}"]


def account_notes(plans: Sequence[Plan], account: AccountQuotas, *, drivers: bool = True) -> list[str]:
    """Return, a sentence each, what plans that one query may use need and an account lacks; `drivers` are functions."""
    widest = sum(max(stage.grid.tiles for stage in plan.stages) for plan in plans)
    notes = [*dict.fromkeys(note for plan in plans if (note := memory_note(plan, account)))]
    if widest + drivers > account.concurrency:
        beside = " and its driver one more" if drivers else ""
        notes.append(
            f"a query takes {widest} environments at once{beside}; {account} has fewer: split with --set max_tiles="
            f"{max(1, account.concurrency - drivers)} or less, or ask for more in the Service Quotas console"
        )
    return notes


def memory_note(plan: Plan, account: AccountQuotas) -> str:
    """Name the stage that has more memory than an account's functions may have; empty where none has."""
    number, large = max(enumerate(stage.memory_mb for stage in plan.stages), key=lambda pair: pair[1])
    if large <= account.memory_mb:
        return ""
    return (
        f"stage-{number} has {large:,} MB, more than {account} has: split with --memory {account.memory_mb} or less, "
        "or ask AWS support for more"
    )


def check_template(template: Mapping[str, Any], facts: AwsFacts) -> None:
    count, size = stack_resources(template), len(json.dumps(template))
    advice = "split the model into fewer functions (--stages), or package it with --no-previous"
    if count > facts.services.stack_resources:
        raise UsageError(
            f"the stack would have {count} resources, {facts.services.stack_resources} are allowed: {advice}"
        )
    if size > facts.services.template_limit:
        raise UsageError(f"the template has {size:,} bytes, {facts.services.template_limit:,} are allowed: {advice}")


def stack_resources(template: Mapping[str, Any]) -> int:
    return sum(_expanded(kind, properties) for kind, properties in resources(template).values())


def _expanded(kind: str, properties: Mapping[str, Any]) -> int:
    role = "Role" not in properties
    if kind == "AWS::Serverless::Function":
        version = 2 * ("AutoPublishAlias" in properties)
        return 1 + role + version + len(properties.get("Events") or {})
    if kind == "AWS::Serverless::StateMachine":
        return 1 + role
    return 3 if kind == "AWS::Serverless::Api" else 1  # an API with a deployment and a stage


def find_sam(beside: Path | None = None, path: str | None = None) -> Path:
    """Return SAM CLI's program: of the environment `sam` in this one's, or else what `path` (PATH) has."""
    own = (beside or Path(sys.prefix)) / "sam" / "bin" / "sam"
    if own.is_file():
        return own
    program = shutil.which("sam", path=path)
    if program is None:
        raise UnavailableError(
            "SAM CLI, which builds and deploys, is not on PATH: install it in an environment of its own, such as pipx "
            "install aws-sam-cli"
        )
    return Path(program)


def run_sam(build: Path, *arguments: str) -> None:
    """Run SAM CLI in BUILD, its output on stderr; raises UnavailableError where it is missing or fails."""
    variables = {**os.environ, "SAM_CLI_TELEMETRY": "0"}
    command = [str(find_sam()), *arguments]
    done = subprocess.run(command, cwd=build, env=variables, stdout=sys.stderr, check=False)  # noqa: S603
    if done.returncode:
        raise UnavailableError(f"sam {arguments[0]} ended with {done.returncode}: what it says above says why")
