"""What a month costs beside the template's resources, whether queries come or not: scheduled pings, a pool's registry.

A ping is the driver's invocation and a request to each environment that is kept, busy for `HOLD_S`, so that the others
find other ones; functions come one after the other, and the driver waits for them. A bucket bills each request to a
pool's record, which drivers read and write each second (serfer/fleet/registry.py); in a cache these are cheap commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serfer.core.costs.aws import AwsFacts
from serfer.core.costs.cost_model import billed_usd
from serfer.core.units import MB_PER_GB
from serfer.fleet.registry import REQUESTS_PER_S
from serfer.pipeline.warm import HOLD_S, environments
from serfer.sam.cost.fixed import SECONDS_A_MONTH, Line
from serfer.sam.cost.marginal import Deployed
from serfer.sam.options import Options
from serfer.sam.template.intrinsics import resources

BUCKETS = ("s3", "s3express")
_GROUP = "Drivers"
_S_PER_MINUTE = 60


def ping_lines(deployed: Deployed) -> list[Line]:
    """Price a month of pings that find everything warm; none where the deployment has none.

    A driver function that runs its plan itself has no others to ping: an invocation is all that it takes.
    """
    chosen = deployed.options.pings
    if chosen is None:
        return []
    facts, plan = deployed.facts, deployed.plan
    counts, platform = {} if deployed.driver_runs else environments(plan, chosen.queries), deployed.platform(0.0)
    pings = SECONDS_A_MONTH / (_S_PER_MINUTE * chosen.minutes)
    requests = pings * (1 + sum(counts.values()))
    waited = len(counts) * (HOLD_S + facts.functions.invoke_floor)
    workers = [(count, plan.stages[stage].memory_mb) for (stage, _), count in counts.items()]
    held = sum(count * memory / MB_PER_GB * HOLD_S for count, memory in workers)
    usd = sum(count * float(billed_usd(memory, HOLD_S, platform.functions)) for count, memory in workers)
    own = float(billed_usd(deployed.driver_mb, waited, facts.on(deployed.options.architecture)))
    driver = deployed.driver_mb / MB_PER_GB * waited
    priced = [
        deployed.line("pings", requests, "requests", "lambda.price_request"),
        Line("pings: workers' compute", pings * held, "GB-s", pings * usd, deployed.workers_price),
        Line("pings: driver's compute", pings * driver, "GB-s", pings * own, deployed.compute_price),
    ]
    return [line for line in priced if line.quantity]


def registry_lines(facts: AwsFacts, options: Options, drivers: int = 1) -> list[Line]:
    """Price the registry for a month of so many drivers; none where the deployment has no pool or a cache."""
    if options.gpu is None or options.store not in BUCKETS:
        return []
    seconds = drivers * SECONDS_A_MONTH
    return [
        Line.priced(
            facts, "pool registry, looks", seconds * REQUESTS_PER_S.reads, "requests", f"{options.store}.price_get"
        ),
        Line.priced(
            facts, "pool registry, writes", seconds * REQUESTS_PER_S.writes, "requests", f"{options.store}.price_put"
        ),
    ]


def fewest_drivers(options: Options, template: Mapping[str, Any], parameters: Mapping[str, Any] | None = None) -> int:
    """Return how many drivers a template's fleet has at least."""
    _, group = resources(template, parameters, options.region).get(_GROUP, ("", {}))
    return int(group.get("MinSize", 1))
