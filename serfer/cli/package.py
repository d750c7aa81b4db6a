"""`serfer deploy package`: what SAM deploys."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path, PurePath

import typer

from serfer.cli.costs import print_totals
from serfer.cli.shared.display import byte_size, plain, print_table
from serfer.cli.shared.options import print_json, status_line
from serfer.cli.shared.plan_commands import PackageCommand
from serfer.cli.shared.terminal import complain, out
from serfer.core.costs.aws import AwsFacts
from serfer.core.costs.pricing import store_of
from serfer.core.errors import InputError, UnavailableError, UsageError
from serfer.core.plan import Plan
from serfer.doctor.accounts import quotas_for
from serfer.plan_directory import COLD_DIRECTORY, load_cold_plan, load_plan
from serfer.sam.build.package import deployed_cold
from serfer.sam.build.package import package as write
from serfer.sam.cost.bill import price_build
from serfer.sam.cost.driver_runs import decide
from serfer.sam.cost.scenario import read_profile
from serfer.sam.deployment import COLD_FUNCTIONS, Deployment, load_deployment, load_template
from serfer.sam.options import GpuPool, Options, Pings, Serves, default_name, is_build
from serfer.sam.quotas import check_deployable, find_sam
from serfer.sam.samconfig import ENVIRONMENTS, FILE, stack_of
from serfer.sam.template.intrinsics import ApiLimits
from serfer.settings import Settings, aws_region, load_settings

_GPUS = 4  # of a pool without gpu_max
_AS_GIVEN = (
    *("drivers", "engine", "runtime", "architecture", "snapstart", "reserved_concurrency", "zone", "base_image"),
    *("driver_runs", "provisioned_concurrency"),
)


def package(options: PackageCommand, _context: typer.Context) -> None:
    directory, build, previous_of = options.directory, options.out, options.previous_of
    if previous_of is not None and not options.previous:
        raise UsageError("--previous-of does not go with --no-previous")
    try:
        find_sam()
    except UnavailableError as error:  # another machine may be the one that builds and deploys
        complain(error)
    settings, plan = load_settings(), load_plan(directory)
    chosen = _chosen(options, plan, settings)
    chosen.check()
    quotas = quotas_for(settings, options.account, chosen.region)
    profile = None
    if options.gpu_profile is not None or options.gpu_slo_ms is not None:
        profile = read_profile(options.gpu_profile, options.gpu_slo_ms, chosen, settings.facts())
    with status_line() as progress:
        deployment = write(
            directory,
            build,
            chosen,
            settings,
            keep_previous=options.previous,
            previous_of=previous_of,
            profile=profile,
            beside=options.beside,
            account=quotas,
            progress=progress,
        )
    cold = deployed_cold(directory, plan, chosen)
    for note in check_deployable(plan, chosen, settings.facts(), cold, quotas):
        complain(note)
    if cold is None and load_cold_plan(directory, plan):
        reason = f"--engine {chosen.engine} runs one plan, --engine push chooses"
        if chosen.provisioned_concurrency is not None:
            reason = "functions that provisioned_concurrency keeps are never cold"
        complain(f"{directory / COLD_DIRECTORY} is left out: {reason}")
    _remark_region(build, chosen.region)
    if options.as_json:
        print_json({**asdict(deployment), "out": str(build)})
        return
    out.print(plain(f"checked for {quotas}"))
    _print_driver(deployment, plan, build, quotas.within(settings.facts()))
    _print_deployment(deployment, build)
    if limits := ApiLimits.of(load_template(build), region=chosen.region):
        out.print(f"the API takes {limits} (ThrottleBurst, ThrottleRate, MonthlyQuota in samconfig.toml)")
    if not deployment.precompiled:
        complain(f"there is no {chosen.runtime} here to compile with: every cold start will compile its modules itself")


def _chosen(options: PackageCommand, plan: Plan, settings: Settings) -> Options:
    return Options(
        name=options.name or default_name(plan.model),
        region=options.region or aws_region() or "us-east-1",
        store=options.store or _store_of(options.directory, plan, options.out, settings),
        gpu=_pool(options),
        pings=_pings(options.ping_every, options.ping_queries),
        results_days=options.results_days or None,
        applications=_served(options.registry or settings.registry, options.registry, options.app),
        **{name: getattr(options, name) for name in _AS_GIVEN},
    )


def _store_of(directory: Path, plan: Plan, build: Path, settings: Settings) -> str:
    if is_build(build):
        return load_deployment(build).options.store
    return store_of(plan, settings.facts(), load_cold_plan(directory, plan))


def _pool(options: PackageCommand) -> GpuPool | None:
    most, warm = options.gpu_max, options.gpu_warm_pool
    if options.gpu_instance_type is None:
        if most is not None or warm is not None or options.gpu_spot:
            raise UsageError("gpu_max, gpu_warm_pool and gpu_spot go with --gpu-instance-type")
        return None
    return GpuPool(options.gpu_instance_type, _GPUS if most is None else most, warm or 0, options.gpu_spot)


def _served(url: str | None, given: str | None, names: Sequence[str]) -> Serves | None:
    """Return the applications that drivers serve, None for none: a registry alone, of the settings, chooses nothing."""
    if not names:
        if given is not None:
            raise UsageError("--registry: name the applications that drivers answer for, --app NAME")
        return None
    if url is None:
        raise UsageError("--app names applications of a registry: give --registry s3://BUCKET/PREFIX")
    return Serves(url, tuple(names))


def _pings(minutes: int | None, queries: int | None) -> Pings | None:
    if minutes is None and queries is not None:
        raise UsageError("ping_queries goes with ping_every")
    return None if minutes is None else Pings(minutes, 1 if queries is None else queries)


def _remark_region(build: Path, region: str) -> None:
    for environment in ENVIRONMENTS:
        with suppress(InputError):  # the user's own environments have other names
            stack = stack_of(build, environment)
            if stack.region != region:
                deploys = f"{build / FILE} was left as is and deploys {stack.stack} to {stack.region}, not to {region}"
                complain(f"{deploys}: correct it, or delete it and package again")


def _print_driver(deployment: Deployment, plan: Plan, build: Path, facts: AwsFacts) -> None:
    if plan.explained:
        print_totals(price_build(build, facts, burst=1))
    has_cold = deployment.current in deployment.cold
    decision = decide(plan, deployment.options, facts, has_cold=has_cold)
    memory_mb = deployment.driver_runs.get(deployment.current)
    if memory_mb is not None:
        out.print(f"the driver function runs the plan itself: {plain(decision.reason)}")
    elif len(plan.functions) == 1:
        fits = "" if not decision.runs else "; driver and plan do not fit into one package"
        out.print(f"the driver function invokes the plan's function: {plain(decision.reason)}{fits}")


def _print_deployment(deployment: Deployment, build: PurePath) -> None:
    options = deployment.options
    rows = []
    for name, size in deployment.bytes.items():
        where = ", a container image" if deployment.is_image(name) else ""
        plan = "cold plan, " if name.startswith(COLD_FUNCTIONS) else ""
        plan = "the driver, with " if deployment.current in deployment.driver_runs else plan
        rows.append((f"{plan}stage-{name.removeprefix(COLD_FUNCTIONS)}", byte_size(size) + where))
    print_table(["function", "unzipped, with layers"], rows)
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
    out.print(f"next: serfer cost {place}; serfer doctor --aws --build {place}; serfer deploy apply {place}")
