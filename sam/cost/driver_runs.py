"""Whether the driver function runs a plan of one function itself, instead of invoking that function and waiting.

    two functions   driver: decoding + an invocation + what the function takes, at the driver's memory
                    function: what it takes, at the plan's memory, and the price of a request
    one function    driver: decoding + what the function takes, at the memory of both

One saves the invocation's time, its request, and the driver's waiting; it pays the plan's memory while it decodes and
answers (`services.driver_seconds`). So it is the cheaper one unless the plan's memory is many times the driver's and
its computation is short: for one of no length at all, from some 5,500 MB on. Cold, one environment starts and not two;
the model adds up both starts in either case, too much for one: interpreter and numpy are loaded once there.

The function's memory has to hold both: what a driver decodes with, and the plan's weights as sessions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from serfer.core.costs.aws import AwsFacts
from serfer.core.errors import UsageError
from serfer.core.plan import CONTAINER, Plan
from serfer.core.units import MIB, MS_PER_S
from serfer.sam.cost.marginal import Deployed, Usage, query_usage
from serfer.sam.options import Options

DRIVER_MB = 1769
"""The memory of a driver function that invokes others (sam/template/parts/driver-function.yaml): one vCPU."""
_DRIVER_OWN_MB = 920
"""What a driver may take at most: 150 MB of process and imports (assumed), an image of 24 million pixels at 20 bytes in
the process that decodes it, 96 million pixels of a request at 3 bytes (the defaults of its settings)."""
_SESSIONS_PER_WEIGHTS = 2.2
"""Memory of sessions by the bytes of their weights: the most of three networks (lambdas/sessions.py: ResNet152 in one
part, (542 - 50) / 229; in the two that it has, 1.8)."""
_COLD = "it has a cold plan, and a driver chooses between the functions of both"
_MILLION = 1_000_000


@dataclass(frozen=True)
class Decision:
    """Whether the driver runs a plan itself, with how much memory, and why or why not, a sentence each.

    `apart` and `own` are what a warm query costs by two functions and by one; None where one is not possible.
    """

    runs: bool
    memory_mb: int
    reason: str
    apart: Usage | None = None
    own: Usage | None = None


def decide(plan: Plan, options: Options, facts: AwsFacts, unzipped: int = 0, *, has_cold: bool = False) -> Decision:
    """Decide whether the driver function of a deployment runs a plan, by `options.driver_runs` and the cost model.

    `unzipped` are the bytes of a driver's package with the layers for it, 0 where they are not known yet; `has_cold`
    says that a cold plan is deployed with it.
    """
    if options.driver_runs == "never":
        return Decision(runs=False, memory_mb=DRIVER_MB, reason="driver_runs=never")
    if against := _COLD if has_cold else _against(plan, options, facts, unzipped):
        return Decision(runs=False, memory_mb=DRIVER_MB, reason=against)
    memory_mb = needed_mb(plan)
    if not plan.explained:
        always = options.driver_runs == "always"
        reason = "nothing is predicted of this plan: its explanation.json is missing"
        return Decision(always, memory_mb if always else DRIVER_MB, reason)
    two, one = (
        Deployed(plan, options, facts, mb, driver_runs=own) for mb, own in ((DRIVER_MB, False), (memory_mb, True))
    )
    apart, own = query_usage(two), query_usage(one)
    cheaper, faster = own.usd <= apart.usd, own.seconds <= apart.seconds
    runs = options.driver_runs == "always" or (cheaper and faster)
    reason = (
        f"predicted, warm, with API and logs: one function of {memory_mb:,} MB {_described(one, own)}, a second "
        f"invocation {_described(two, apart)}"
    )
    return Decision(runs, memory_mb if runs else DRIVER_MB, reason, apart, own)


def require(plan: Plan, options: Options, facts: AwsFacts, unzipped: int = 0, *, has_cold: bool = False) -> None:
    if options.driver_runs != "always":
        return
    if against := _COLD if has_cold else _against(plan, options, facts, unzipped):
        raise UsageError(f"driver_runs=always: {against}; leave it out, which deploys two functions")


def needed_mb(plan: Plan) -> int:
    """Return the memory of a driver function that runs a plan of one function: what is priced, and what both take."""
    weights = sum(part.weights.bytes for part in plan.parts(0, 0))
    both = _DRIVER_OWN_MB + math.ceil(_SESSIONS_PER_WEIGHTS * weights / MIB)
    return max(DRIVER_MB, plan.stages[0].memory_mb, both)


def _against(plan: Plan, options: Options, facts: AwsFacts, unzipped: int) -> str:
    functions, tasks = len(plan.functions), plan.tasks
    limit, memory_mb = facts.functions.package_limit, needed_mb(plan) if functions == 1 else 0
    of_function = {
        "--snapstart": options.snapstart,
        "reserved_concurrency": options.reserved_concurrency is not None,
        "provisioned_concurrency": options.provisioned_concurrency is not None,
        "ping_queries": options.pings is not None and options.pings.queries > 1,
    }
    unused = next((name for name, chosen in of_function.items() if chosen), "")
    reasons = (
        (options.drivers != "function", "--drivers fleet are machines, whose memory is not billed by the query"),
        (options.engine != "push", f"--engine {options.engine} invokes functions, not workers in its own process"),
        (plan.windows is not None, "of a map plan each window is an invocation of the plan's function"),
        (functions > 1 or tasks > 1, f"a query of this plan is {tasks} tasks of {functions} functions"),
        (
            functions == 1 and plan.stages[0].weights_in == CONTAINER,
            "the plan's function is a container image, the driver is not: split with --set weights=zip or fetched",
        ),
        (options.applications is not None, "--app has a driver invoke the functions of several variants"),
        (unused != "", f"{unused} is of the plan's function, which a driver that runs the plan does not invoke"),
        (options.in_cache, f"--store {options.store} would be paid for and not used: package with --store s3"),
        (
            memory_mb > facts.functions.memory_max,
            f"driver and plan need {memory_mb:,} MB together, Lambda has {facts.functions.memory_max:,}",
        ),
        (
            unzipped > limit,
            (
                f"driver and plan take {unzipped:,} bytes unzipped together, AWS allows {limit:,}: split with "
                "--set weights=fetched"
            ),
        ),
    )
    return next((reason for against, reason in reasons if against), "")


def _described(deployed: Deployed, usage: Usage) -> str:
    return f"{deployed.answer_s(usage) * MS_PER_S:.0f} ms and ${usage.usd * _MILLION:,.2f} a million queries"
