"""Assumptions of routing in a deployment with a GPU pool: scenario.toml, beside each plan that drivers follow.

What a query costs and how long it takes on functions is the cost model's; what an instance costs stands in aws.toml;
how fast it is has been measured on one by `serfer study tune`: speeds are never assumed.
"""

from __future__ import annotations

from pathlib import Path

from serfer.control.instance_profile import Profile, parse_profile, scenario_text
from serfer.control.scenario import LambdaTarget, Scenario
from serfer.core.costs.aws import AwsFacts
from serfer.core.errors import InputError, UsageError
from serfer.core.plan import Plan
from serfer.core.units import MB_PER_GB, MS_PER_S
from serfer.sam.cost.marginal import Deployed, query_usage, serverless_usd
from serfer.sam.options import Options, digest12

_MISSING = (
    "gpu_profile is missing: run serfer study tune --name {} --out FILE.toml on such an instance to measure its speed"
)


def read_profile(file: Path | None, slo_ms: float | None, options: Options, facts: AwsFacts) -> Profile:
    """Read the one [[instance]] table of a file, at the price that `facts` have for the pool's type of instance."""
    pool = options.gpu
    if pool is None:
        raise UsageError("gpu_profile and gpu_slo_ms go with --gpu-instance-type")
    if file is None:
        raise UsageError(_MISSING.format(pool.instance_type))
    if slo_ms is None:
        raise UsageError("gpu_slo_ms is missing: the --slo-ms that serfer study tune was given")
    price = facts.instances.get(pool.instance_type)
    if price is None:
        raise UsageError(
            f"--gpu-instance-type {pool.instance_type} has no price among {', '.join(sorted(facts.instances))}: add "
            "its USD per hour to a file (SERFER_AWS_FILE)"
        )
    try:
        profile = parse_profile(file, slo_ms, price)
    except InputError as error:
        raise InputError(f"gpu_profile={file}: {error}") from error
    if profile.instance.name != pool.instance_type:
        raise UsageError(
            f"gpu_profile={file} is of {profile.instance.name!r:.80}, not of {pool.instance_type}: run serfer study "
            f"tune --name {pool.instance_type} on one"
        )
    if pool.spot and not profile.instance.spot_usd_per_hour:
        raise UsageError(
            f"gpu_spot: gpu_profile={file} has no spot price: set spot_usd_per_hour there (serfer study tune "
            "--spot-usd-per-hour)"
        )
    return profile


def check_pool(plan: Plan, options: Options, profile: Profile | None) -> None:
    if options.gpu is None:
        return
    if profile is None:
        raise UsageError(_MISSING.format(options.gpu.instance_type))
    if plan.original:
        raise UsageError(
            "--gpu-instance-type: this plan alters its network (fp16 storage, or another head), and instances would "
            "need the original as well: split without"
        )


def make_scenario(plan: Plan, options: Options, facts: AwsFacts, profile: Profile) -> str:
    """Return the text of a plan's scenario; parse_scenario takes it, and the same inputs give the same text."""
    deployed = Deployed(plan, options, facts, 0)
    warm, cold = query_usage(deployed), query_usage(deployed, 1.0)
    widest = max(stage.grid.tiles for stage in plan.stages)
    environments = min(options.reserved_concurrency or facts.functions.concurrency, facts.functions.concurrency)
    functions = LambdaTarget(
        usd_per_query=serverless_usd(deployed),
        latency_ms=MS_PER_S * warm.seconds,
        cold_ms=MS_PER_S * (cold.seconds - warm.seconds),
        concurrency=max(1, environments // widest),
        memory_gb=sum(_environments(plan, *part) * plan.stages[part[0]].memory_mb for part in plan.functions)
        / MB_PER_GB,
        keep_alive_s=facts.functions.kept_warm,
    )
    scenario = Scenario(profile.slo_ms, functions, (profile.instance,))
    return scenario_text(scenario, digest12(plan))


def _environments(plan: Plan, stage: int, number: int) -> int:
    return sum(tile.function == number for tile in plan.stages[stage].tiles)
