"""`serfer package`: what SAM deploys."""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Annotated

import typer

from serfer.cli.registry.options import RegistryOption
from serfer.cli.shared.display import byte_size, columns, plain
from serfer.cli.shared.options import AccountOption, JsonOption, print_json, status_line
from serfer.cli.shared.terminal import complain, out
from serfer.core.costs.aws import AwsFacts
from serfer.core.costs.pricing import store_of
from serfer.core.errors import InputError, UnavailableError, UsageError
from serfer.core.plan import Plan
from serfer.doctor.accounts import quotas_for
from serfer.plan_directory import COLD_DIRECTORY, load_cold_plan, load_plan
from serfer.sam.build.package import deployed_cold
from serfer.sam.build.package import package as write
from serfer.sam.cost.driver_runs import decide
from serfer.sam.cost.scenario import read_profile
from serfer.sam.deployment import COLD_FUNCTIONS, Deployment, load_deployment
from serfer.sam.options import GpuPool, Options, Pings, Serves, default_name, is_build
from serfer.sam.quotas import check_deployable, find_sam
from serfer.sam.samconfig import ENVIRONMENTS, FILE, stack_of
from serfer.settings import Settings, aws_region, load_settings

_GPUS = 4  # of a pool without --gpu-max


def package(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A plan directory, from serfer split.")],
    build: Annotated[
        Path, typer.Option("--out", help="The directory to write; an earlier deployment there is updated.")
    ],
    name: Annotated[
        str | None,
        typer.Option(help="What the stacks are called, NAME-dev and NAME-prod; by default serfer-MODEL."),
    ] = None,
    region: Annotated[str | None, typer.Option(help="By default boto3's, or else us-east-1.")] = None,
    drivers: Annotated[
        str,
        typer.Option(help="function: behind a REST API, with no network of its own; fleet: behind a load balancer."),
    ] = "function",
    store: Annotated[
        str | None,
        typer.Option(
            help="s3, s3express, valkey or redis (ElastiCache Serverless, in a VPC).",
            show_default="what --out has, or the plan's own; s3 where no stage hands anything on through a store",
        ),
    ] = None,
    driver: Annotated[
        str, typer.Option(help="push, poll, stepfunctions or stepfunctions-express (docs/reference/engines.md).")
    ] = "push",
    runtime: Annotated[str, typer.Option(help="python3.13, python3.12 or python3.14.")] = "python3.13",
    architecture: Annotated[str, typer.Option(help="x86_64 or arm64.")] = "x86_64",
    snapstart: Annotated[
        bool, typer.Option("--snapstart", help="Start functions from snapshots, which cost something all the time.")
    ] = False,
    reserved_concurrency: Annotated[
        int | None, typer.Option(help="Environments that each stage's function is given, and may have at most.")
    ] = None,
    driver_runs: Annotated[
        str,
        typer.Option(
            metavar="auto|always|never",
            help="A plan of one function: run by the driver function itself, instead of by a second invocation.",
        ),
    ] = "auto",
    provisioned_concurrency: Annotated[
        int | None,
        typer.Option(
            metavar="QUERIES", help="For how many queries at once Lambda keeps environments initialised, at a price."
        ),
    ] = None,
    ping_every: Annotated[
        int | None,
        typer.Option(metavar="MINUTES", help="Have a schedule keep environments warm, by the driver function."),
    ] = None,
    ping_queries: Annotated[
        int | None, typer.Option(metavar="QUERIES", help="For how many queries at once pings do so; by default 1.")
    ] = None,
    results_days: Annotated[
        int,
        typer.Option(
            metavar="DAYS", help="Keep results that are too large for an answer for so long, in a bucket; 0: keep none."
        ),
    ] = 0,
    registry: RegistryOption = None,
    app: Annotated[
        list[str] | None,
        typer.Option(
            "--app",
            metavar="NAME",
            help="With --registry s3://BUCKET/PREFIX: an application that drivers answer for, too, by those of its "
            "variants that are deployed; may be repeated.",
        ),
    ] = None,
    beside: Annotated[
        list[Path] | None,
        typer.Option(
            "--beside",
            metavar="DIR",
            help="With --app: the plan directory of another variant, whose functions are deployed, too; may be "
            "repeated.",
        ),
    ] = None,
    zone: Annotated[
        str | None, typer.Option(help="With --store s3express: its availability zone's id, such as use1-az4.")
    ] = None,
    gpu_instance_type: Annotated[
        str | None,
        typer.Option(help="Add a pool of GPU instances for load that lasts, with --drivers fleet: g6.xlarge, say."),
    ] = None,
    gpu_max: Annotated[int | None, typer.Option(help="Instances that the pool may have at most; by default 4.")] = None,
    gpu_warm_pool: Annotated[
        int | None, typer.Option(help="Instances of it that are kept prepared and stopped; by default none.")
    ] = None,
    gpu_spot: Annotated[
        bool,
        typer.Option(
            "--gpu-spot/--no-gpu-spot",
            help="Add a second group, of spot instances, which the policy mark-spot uses; the profile has their price.",
        ),
    ] = False,
    gpu_profile: Annotated[
        Path | None,
        typer.Option(metavar="FILE.toml", help="How fast such an instance is: what serfer tune --out wrote on one."),
    ] = None,
    gpu_slo_ms: Annotated[
        float | None, typer.Option(help="The objective that the profile was made for: serfer tune's --slo-ms.")
    ] = None,
    base_image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE", help="Build container images on this one; by default on AWS's own image of the runtime."
        ),
    ] = None,
    previous: Annotated[
        bool,
        typer.Option(
            "--previous/--no-previous",
            help="Keep the plan that --out has now: nothing fails while drivers change over, and one can go back.",
        ),
    ] = True,
    previous_of: Annotated[
        str | None,
        typer.Option(
            metavar="STACK",
            help="Keep the plan that a deployed stack serves, downloaded from it unless --out has it: for a new --out.",
        ),
    ] = None,
    account: AccountOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write what SAM deploys: template, functions, layers, state machine, bill of materials (docs/how-to/deploy.md)."""
    if previous_of is not None and not previous:
        raise UsageError("--previous-of does not go with --no-previous")
    try:
        find_sam()
    except UnavailableError as error:  # another machine may be the one that builds and deploys
        complain(error)
    settings, plan = load_settings(), load_plan(directory)
    options = Options(
        name=name or default_name(plan.model),
        region=region or aws_region() or "us-east-1",
        drivers=drivers,
        store=store or _store_of(directory, plan, build, settings),
        engine=driver,
        runtime=runtime,
        architecture=architecture,
        snapstart=snapstart,
        reserved_concurrency=reserved_concurrency,
        zone=zone,
        gpu=_pool(gpu_instance_type, gpu_max, gpu_warm_pool, spot=gpu_spot),
        base_image=base_image,
        driver_runs=driver_runs,
        pings=_pings(ping_every, ping_queries),
        provisioned_concurrency=provisioned_concurrency,
        results_days=results_days or None,
        applications=_served(registry or settings.registry, registry, app),
    )
    options.check()
    quotas = quotas_for(settings, account, options.region)
    profile = None
    if gpu_profile is not None or gpu_slo_ms is not None:
        profile = read_profile(gpu_profile, gpu_slo_ms, options, settings.facts())
    with status_line() as progress:
        deployment = write(
            directory,
            build,
            options,
            settings,
            keep_previous=previous,
            previous_of=previous_of,
            profile=profile,
            beside=beside or (),
            account=quotas,
            progress=progress,
        )
    cold = deployed_cold(directory, plan, options)
    for note in check_deployable(plan, options, settings.facts(), cold, quotas):
        complain(note)
    if cold is None and load_cold_plan(directory, plan):
        reason = (
            "functions that --provisioned-concurrency keeps are never cold"
            if provisioned_concurrency is not None
            else f"--driver {driver} runs one plan, --driver push chooses"
        )
        complain(f"{directory / COLD_DIRECTORY} is left out: {reason}")
    _remark_region(build, options.region)
    if as_json:
        print_json({**asdict(deployment), "out": str(build)})
        return
    out.print(plain(f"checked for {quotas}"))
    _print_driver(deployment, plan, quotas.within(settings.facts()))
    _print_deployment(deployment, build)
    if not deployment.precompiled:
        complain(f"there is no {runtime} here to compile with: every cold start will compile its modules itself")


def _store_of(directory: Path, plan: Plan, build: Path, settings: Settings) -> str:
    """Return the store of the deployment that `build` has, or else the one that the plan was made for."""
    if is_build(build):
        return load_deployment(build).options.store
    return store_of(plan, settings.facts(), load_cold_plan(directory, plan))


def _pool(instance_type: str | None, most: int | None, warm: int | None, *, spot: bool) -> GpuPool | None:
    """Return the GPU pool that was chosen, if one was."""
    if instance_type is None:
        if most is not None or warm is not None or spot:
            raise UsageError("--gpu-max, --gpu-warm-pool and --gpu-spot go with --gpu-instance-type")
        return None
    return GpuPool(instance_type, _GPUS if most is None else most, warm or 0, spot)


def _served(url: str | None, given: str | None, names: list[str] | None) -> Serves | None:
    """Return the applications that drivers serve, None for none: a registry alone, of the settings, chooses nothing."""
    if not names:
        if given is not None:
            raise UsageError("--registry: name the applications that drivers answer for, --app NAME")
        return None
    if url is None:
        raise UsageError("--app names applications of a registry: give --registry s3://BUCKET/PREFIX")
    return Serves(url, tuple(names))


def _pings(minutes: int | None, queries: int | None) -> Pings | None:
    """Return the schedule that was chosen, if one was."""
    if minutes is None:
        if queries is not None:
            raise UsageError("--ping-queries goes with --ping-every")
        return None
    return Pings(minutes, 1 if queries is None else queries)


def _remark_region(build: Path, region: str) -> None:
    """Warn where SAM CLI's settings, which are the user's, go on deploying to another region."""
    for environment in ENVIRONMENTS:
        with suppress(InputError):  # the user's own environments have other names
            stack = stack_of(build, environment)
            if stack.region != region:
                complain(
                    f"{build / FILE} was left as it is and deploys {stack.stack} to {stack.region}, not to "
                    f"{region}: correct it, or delete it and package again"
                )


def _print_driver(deployment: Deployment, plan: Plan, facts: AwsFacts) -> None:
    """Print whether the driver function runs the plan itself, and why, where the plan is one function."""
    has_cold = deployment.current in deployment.cold
    decision = decide(plan, deployment.options, facts, has_cold=has_cold)
    memory_mb = deployment.driver_runs.get(deployment.current)
    if memory_mb is not None:
        out.print(f"the driver function runs the plan itself: {plain(decision.reason)}")
    elif len(plan.functions) == 1:
        fits = "" if not decision.runs else "; driver and plan do not fit into one package"
        out.print(f"the driver function invokes the plan's function: {plain(decision.reason)}{fits}")


def _print_deployment(deployment: Deployment, build: PurePath) -> None:
    """Print what was packaged, and what comes next."""
    options = deployment.options
    table = columns("function", "unzipped, with layers")
    for name, size in deployment.bytes.items():
        where = ", a container image" if deployment.is_image(name) else ""
        plan = "cold plan, " if name.startswith(COLD_FUNCTIONS) else ""
        table.add_row(f"{plan}stage-{name.removeprefix(COLD_FUNCTIONS)}", byte_size(size) + where)
    out.print(table)
    if deployment.weights:
        whole = byte_size(sum(deployment.weights.values()))
        out.print(f"{whole} of weights that functions fetch: deploying brings them into the stack's bucket")
    if deployment.images:
        out.print(f"container images are built on {plain(options.builds_on)}: sam build needs a container engine")
    cold = f" with the cold plan {deployment.cold[deployment.current]}" if deployment.current in deployment.cold else ""
    kept = f", beside the one before, {deployment.plans[1]}" if len(deployment.plans) > 1 else ""
    variants = deployment.beside.get(deployment.current)
    beside = f" with the plans of other variants {', '.join(variants)}" if variants else ""
    out.print(
        f"plan {deployment.current}{cold}{beside}{kept}: {options.drivers} drivers, engine {options.engine}, "
        f"store {options.store}, {options.runtime} on {options.architecture}, {options.region}; "
        f"digest {deployment.digest[:12]}"
    )
    place = plain(shlex.quote(str(build)))
    out.print(
        f"next: serfer cost {place}; serfer doctor --aws --build {place}; make deploy BUILD={place}, or cd {place} && "
        "sam build && sam deploy --guided"
    )
