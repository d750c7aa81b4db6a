"""The costs of a deployment: an idle month, a million queries, a burst, and months of several loads.

Fixed costs come from the template (sam/cost/fixed.py), marginal costs from the cost model (sam/cost/marginal.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any

from serfer.control.bill_lines import Line, all_busy
from serfer.core.costs.aws import AwsFacts
from serfer.core.costs.pricing import cold_share_of, uses_store
from serfer.core.errors import InputError, UsageError
from serfer.core.plan import Plan
from serfer.core.plan.window_plan import priced_query
from serfer.sam.cost.driver_runs import decide
from serfer.sam.cost.fixed import SECONDS_A_MONTH, fixed_costs
from serfer.sam.cost.marginal import Deployed, Usage, fewest_drivers, mixed, ping_lines, query_usage, registry_lines
from serfer.sam.deployment import load_deployment, load_packaged_cold, load_packaged_plan, load_template
from serfer.sam.options import TEMPLATE, Options
from serfer.sam.template.intrinsics import ApiLimits, check_parameters, resources

LOADS = (1_000, 100_000, 10_000_000)
"""Queries a month, by default."""
_MOST_QUERIES = 10**12
_AT_ONCE = 16  # queries that a driver of a fleet takes at once: SERFER_API_IN_FLIGHT's default
_DRIVER = "DriverFunction"
IN_PROCESS = "inprocess"
"""SERFER_WORKERS of a driver function that runs its plan itself."""
_BURST, _MILLION = 1_000, 1_000_000
_GB = 1e9
_KEPT = 0.5  # of a month that logs are kept
Template = Mapping[str, Any]


@dataclass(frozen=True)
class Month:
    """A month of so many queries, spread evenly; `lines` are fixed costs and what the queries use."""

    queries: int
    cold_share: float
    lines: tuple[Line, ...]

    @property
    def usd(self) -> float:
        return sum(line.usd for line in self.lines)


@dataclass(frozen=True)
class Bill:
    """The costs of a deployment: an idle month, a warm and a cold query, a burst of `burst` queries, months.

    `limits` are those of its API, None for a fleet.
    """

    deployed: Deployed
    idle: tuple[Line, ...]
    warm: Usage
    cold: Usage
    burst: int
    months: tuple[Month, ...]
    limits: ApiLimits | None

    def keys(self, queries: int) -> int:
        return math.ceil(queries / self.limits.a_month) if self.limits else 1

    def load(self, month: Month) -> str:
        keys = self.keys(month.queries)
        return f"{month.queries:,}" + (f" ({keys:,} keys)" if keys > 1 else "")

    @property
    def mixed(self) -> tuple[float, Usage]:
        """The share of cold queries that the plan was chosen for, and what a query uses then."""
        share = cold_share_of(self.deployed.plan)
        return share, query_usage(self.deployed, share)

    def seconds(self, usage: Usage, cold_share: float = 0.0) -> float:
        return self.deployed.answer_s(usage, cold_share)

    @property
    def idle_usd(self) -> float:
        return sum(line.usd for line in self.idle)

    @property
    def environments(self) -> int:
        """The number of environments that a burst would keep busy at once, without a driver function's.

        Those of driver functions that run the plan themselves are counted.
        """
        deployed = self.deployed
        plans = (deployed.plan, *([deployed.cold] if deployed.cold else []))
        return self.burst * max(stage.grid.tiles for plan in plans for stage in plan.stages)

    @property
    def assumed(self) -> tuple[str, ...]:
        deployed = self.deployed
        facts = deployed.facts
        services = facts.services
        fleet = (
            f"a machine takes {_AT_ONCE} queries at once; a query's image has {services.upload_bytes:,} bytes"
            if deployed.options.drivers == "fleet"
            else f"a driver function of {deployed.driver_mb:,} MB runs its query itself, and is billed for decoding too"
            if deployed.driver_runs
            else f"a driver function of {deployed.driver_mb:,} MB waits for its query and is billed for all of it"
        )
        notes = [
            "us-east-1's prices, on demand, without any free tier; alarms where --parameter AlarmEmail=x is given",
            fleet,
            f"an environment is kept warm {facts.functions.kept_warm:.0f} s, so rare queries find none",
            f"an invocation logs {services.log_bytes:,} bytes, an answer has {services.answer_bytes:,}",
            f"one takes a driver's own {1000 * services.driver_seconds:.0f} ms, a driver function's invocation, too",
            "one image a query, each month's queries evenly at random, no retries, duplicates or health checks",
        ]
        notes += self._of_pool()
        notes += self._of_kept()
        if deployed.cold:
            notes.append(
                f"cold: on the cold plan {deployed.cold.digest[:12]}, all of whose environments start, and beside them "
                "those of the other plan"
            )
        notes += self._of_second_invocation()
        if deployed.options.in_cache and not deployed.options.cache_in_vpc:
            notes.append(
                "of a public endpoint neither latency nor the price of bytes is known: a VPC's are assumed (K)"
            )
        if deployed.options.snapstart:
            notes.append("what a start from a snapshot takes is assumed (lambda.restore, lambda.snapshot_rate: K)")
        if uses_store(deployed.plan, facts) and (deployed.plan.store == "s3") == deployed.options.in_cache:
            better = deployed.options.store.partition("-")[0] if deployed.options.in_cache else "s3"
            notes.append(
                f"the plan was split for {deployed.plan.store}; serfer split --store {better} may find a better one"
            )
        return (*notes, "D AWS's documentation, M measured, S a third party, K common knowledge, U your own file")

    @property
    def _gpu_usd(self) -> float | None:
        pool = self.deployed.options.gpu
        return self.deployed.facts.instances.get(pool.instance_type) if pool else None

    def _of_kept(self) -> list[str]:
        options = self.deployed.options
        if not options.kept_ready:
            return []
        taken = f"one takes {self.seconds(self.warm):.2f} s, not {self.seconds(self.cold, 1.0):.2f} s"
        notes = [f"environments are kept for {options.kept_ready} queries at once: {taken}"]
        if options.pings:
            usd = sum(line.usd for line in ping_lines(self.deployed))
            stay = "that environments stay until the next one is assumed"
            notes.append(f"pings cost ${usd:,.2f} a month, their schedule nothing (K); {stay}")
        return notes

    def _of_pool(self) -> list[str]:
        pool = self.deployed.options.gpu
        if pool is None:
            return []
        usd = self._gpu_usd or 0.0
        note = (
            f"a GPU instance, {pool.instance_type}, costs ${usd:.4f} an hour while it is on, its disk apart; at most "
            f"{pool.most} are, ${pool.most * usd:.2f} an hour; what they take from functions is not subtracted"
        )
        spot = f"at most {pool.most} spot instances besides, at the price of gpu_profile, which is not known here"
        return [note, *([spot] if pool.spot else [])]

    def _of_second_invocation(self) -> list[str]:
        deployed = self.deployed
        options, has_cold = replace(deployed.options, driver_runs="auto"), deployed.cold is not None
        priced = decide(deployed.plan, options, deployed.facts, has_cold=has_cold)
        return [priced.reason] if priced.own else []

    def tag(self, line: Line) -> str:
        """Return how well a line's price is known: D, B, M, S, K, or U for a user's own."""
        source = self.deployed.facts.sources.get(line.source)
        return source.tag if source else "?"

    def as_dict(self) -> dict[str, Any]:
        share, usage = self.mixed
        return {
            "model": self.deployed.plan.model,
            "plan": self.deployed.plan.digest,
            "cold_plan": self.deployed.cold.digest if self.deployed.cold else None,
            "options": asdict(self.deployed.options),
            "idle_month": self._priced(self.idle),
            "query": {
                name: self._priced(usage.lines, latency_ms=1000 * self.seconds(usage, cold))
                for name, usage, cold in (("warm", self.warm, 0.0), ("cold", self.cold, 1.0))
            },
            "million_queries": {
                "cost_usd": _MILLION * self.warm.usd,
                "cold_share": share,
                "mixed_cost_usd": _MILLION * usage.usd,
                "cold_cost_usd": _MILLION * self.cold.usd,
            },
            "burst": {
                "queries": self.burst,
                "cost_usd": self.burst * self.warm.usd,
                "cold_cost_usd": self.burst * self.cold.usd,
                "environments": self.environments,
                "concurrency": self.deployed.facts.functions.concurrency,
            },
            "months": [
                {
                    "queries": month.queries,
                    "keys": self.keys(month.queries),
                    "cold_share": month.cold_share,
                    **self._priced(month.lines),
                }
                for month in self.months
            ],
            "limits": asdict(self.limits) if self.limits else None,
            "gpu_usd_per_hour": self._gpu_usd,
            "assumed": list(self.assumed),
        }

    def _priced(self, lines: Sequence[Line], **more: float) -> dict[str, Any]:
        names = ("item", "quantity", "unit", "cost_usd", "source")
        told = [{**dict(zip(names, astuple(line), strict=True)), "tag": self.tag(line)} for line in lines]
        return {"cost_usd": sum(line.usd for line in lines), **more, "lines": told}


def deployed(plan: Plan, options: Options, facts: AwsFacts, template: Template, cold: Plan | None = None) -> Deployed:
    """Return a plan in a deployment, with its cold plan, and its driver function as the template has it."""
    _, properties = resources(template, region=options.region).get(_DRIVER, ("", {}))
    memory_mb = int(properties.get("MemorySize", facts.functions.memory_per_vcpu))
    variables = properties.get("Environment", {}).get("Variables", {})
    return Deployed(plan, options, facts, memory_mb, cold, variables.get("SERFER_WORKERS") == IN_PROCESS)


def bill(
    deployed: Deployed,
    template: Template,
    *,
    burst: int = _BURST,
    loads: Sequence[int] = LOADS,
    cold_share: float | None = None,
    packed_bytes: int = 0,
    image_bytes: int = 0,
    parameters: Mapping[str, str] | None = None,
) -> Bill:
    """Price a deployment, with the template's own parameters unless others are given.

    `cold_share` holds for all months; None takes for each load the share that finds no environment when queries come
    at random. `packed_bytes` are in the bucket that deployments go through, `image_bytes` in repositories of images.
    """
    if burst < 1 or any(not 1 <= load <= _MOST_QUERIES for load in loads):
        raise UsageError(f"--per-month and --burst are 1 to {_MOST_QUERIES:,} queries")
    check_parameters(template.get("Parameters") or {}, parameters or {})
    idle = fixed_costs(template, deployed.facts, parameters, deployed.options.region)
    idle += registry_lines(deployed.facts, deployed.options, fewest_drivers(deployed.options, template, parameters))
    idle += ping_lines(deployed)
    for what, kept, price in (
        ("packages in S3", packed_bytes, "price_s3_gb"),
        ("images in ECR", image_bytes, "price_ecr_gb"),
    ):
        if kept:
            idle.append(deployed.line(f"{what}, if not compressed", kept / _GB, "GB", f"services.{price}"))
    months = tuple(_month(deployed, tuple(idle), load, cold_share) for load in loads)
    limits = ApiLimits.of(template, parameters, deployed.options.region)
    return Bill(deployed, tuple(idle), query_usage(deployed), query_usage(deployed, 1.0), burst, months, limits)


def _month(deployed: Deployed, idle: tuple[Line, ...], queries: int, cold_share: float | None) -> Month:
    share, usage = _expected(deployed, queries, cold_share)
    used = [line.times(queries) for line in usage.lines]
    return Month(queries, share, (*_grown(deployed, idle, queries, usage.seconds), *used, _logs(deployed, queries)))


def _expected(deployed: Deployed, queries: int, cold_share: float | None) -> tuple[float, Usage]:
    if cold_share is not None:
        return cold_share, query_usage(deployed, cold_share)
    share, kept = _cold_share(deployed, queries), deployed.options.kept_ready
    if not kept:
        return share, query_usage(deployed, share)
    warm = query_usage(deployed)
    beyond = all_busy(kept, queries / SECONDS_A_MONTH * warm.seconds)
    return beyond * share, mixed(warm, query_usage(deployed.on_demand, share), beyond)


def _cold_share(deployed: Deployed, queries: int) -> float:
    return math.exp(-queries / SECONDS_A_MONTH * deployed.facts.functions.kept_warm)


def _grown(deployed: Deployed, idle: tuple[Line, ...], queries: int, seconds: float) -> list[Line]:
    busy = queries / SECONDS_A_MONTH * (seconds + deployed.facts.services.driver_seconds)
    hours = math.ceil(busy / _AT_ONCE) * SECONDS_A_MONTH / 3600
    return [
        line.times(max(1.0, hours / line.quantity)) if line.quantity and line.source.startswith("instances.") else line
        for line in idle
    ]


def _logs(deployed: Deployed, queries: int) -> Line:
    gigabytes = queries * deployed.facts.services.log_bytes * (deployed.plan.tasks + 1) * _KEPT / _GB
    return deployed.line("logs kept 14 days", gigabytes, "GB-months", "services.price_log_gb")


def price_build(
    build: Path,
    facts: AwsFacts,
    *,
    burst: int,
    loads: Sequence[int] | None = None,
    cold_share: float | None = None,
    parameters: Mapping[str, str] | None = None,
) -> Bill:
    deployment, template = load_deployment(build), load_template(build)
    plan = priced_query(load_packaged_plan(build, deployment.current))
    images = sum(size for name, size in deployment.bytes.items() if deployment.is_image(name))
    try:
        return bill(
            deployed(plan, deployment.options, facts, template, load_packaged_cold(build, deployment, plan)),
            template,
            burst=burst,
            loads=loads or LOADS,
            cold_share=cold_share,
            packed_bytes=sum(deployment.bytes.values()) + sum(deployment.weights.values()) - images,
            image_bytes=images,
            parameters=parameters,
        )
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        # A template is free in form, and is its owner's to alter; ours has a test that each of its resources is priced.
        raise InputError(
            f"{build / TEMPLATE} has something altered that cannot be priced ({error}): package again"
        ) from error
