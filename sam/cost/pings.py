"""Cost of scheduled pings: the driver's invocation, and a request to each environment that is kept.

A request keeps its environment busy for `HOLD_S`, so that the others find other ones; functions come one after the
other, and the driver waits for them.
"""

from __future__ import annotations

from serfer.core.costs.cost_model import billed_usd
from serfer.pipeline.warm import HOLD_S, environments
from serfer.sam.cost.fixed import SECONDS_A_MONTH, Line
from serfer.sam.cost.marginal import Deployed

_MB_PER_GB = 1024
_S_PER_MINUTE = 60


def lines(deployed: Deployed) -> list[Line]:
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
    held = sum(count * memory / _MB_PER_GB * HOLD_S for count, memory in workers)
    usd = sum(count * float(billed_usd(memory, HOLD_S, platform.functions)) for count, memory in workers)
    own = float(billed_usd(deployed.driver_mb, waited, facts.on(deployed.options.architecture)))
    driver = deployed.driver_mb / _MB_PER_GB * waited
    priced = [
        Line("pings", requests, "requests", requests * facts.functions.price_request, "lambda.price_request"),
        Line("pings: workers' compute", pings * held, "GB-s", pings * usd, deployed.workers_price),
        Line("pings: driver's compute", pings * driver, "GB-s", pings * own, deployed.compute_price),
    ]
    return [line for line in priced if line.quantity]
