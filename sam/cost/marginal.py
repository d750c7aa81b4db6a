"""Cost of a query in a deployment, item by item, by the cost model of serfer/core/costs/cost_model.py; of pings, too.

A driver waits while workers run, so a driver function is billed for the whole of each query. A ping is the driver's
invocation and a request to each environment that is kept, busy for `HOLD_S`, so that the others find other ones;
functions come one after the other. A bucket bills each request to a pool's record, which drivers read and write each
second (serfer/fleet/registry.py); in a cache these are cheap commands.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from serfer.control.bill_lines import Line, add_up
from serfer.core.costs.aws import AwsFacts, StoreFacts
from serfer.core.costs.cold_starts import critical_path
from serfer.core.costs.cost_model import (
    Floats,
    GangLoad,
    Platform,
    StageLoad,
    billed_usd,
    gang_load,
    invoke_seconds,
    plan_load,
    price_gang,
    ready_seconds,
    stage_price,
    task_seconds,
)
from serfer.core.plan import CACHE, FETCHED, Plan
from serfer.core.units import FLOAT_BYTES, MB_PER_GB
from serfer.drivers.poll import POLLING
from serfer.drivers.stepfunctions.asl import AT_ONCE
from serfer.fleet.registry import REQUESTS_PER_S
from serfer.lambdas.weights import PART_BYTES
from serfer.pipeline.warm import HOLD_S, environments
from serfer.sam.cost.fixed import SECONDS_A_MONTH
from serfer.sam.options import Options
from serfer.sam.template.intrinsics import resources

_BASE64 = 4 / 3
_CHUNK_S = 0.1  # of an Express workflow's time
_REPLY_BYTES = 500
BUCKETS = ("s3", "s3express")


@dataclass(frozen=True)
class Deployed:
    """A plan in a deployment, with its cold plan if it has one; `driver_mb` is the memory of a driver function.

    With `driver_runs` that runs the plan itself, which is of one task (sam/cost/driver_runs.py).
    """

    plan: Plan
    options: Options
    facts: AwsFacts
    driver_mb: int
    cold: Plan | None = None
    driver_runs: bool = False

    @property
    def store(self) -> StoreFacts:
        facts: StoreFacts = getattr(self.facts, self.table)
        return facts

    @property
    def table(self) -> str:
        return "redis_serverless" if self.options.store == "redis" else self.options.store.partition("-")[0]

    @property
    def compute_price(self) -> str:
        return self._price("gb_second")

    @property
    def workers_price(self) -> str:
        """The name of the price of stage functions' compute, which is another one where they are provisioned."""
        return self.compute_price if self.options.provisioned_concurrency is None else self._price("provisioned_second")

    def _price(self, name: str) -> str:
        return f"lambda.price_{name}{'_arm' if self.options.architecture == 'arm64' else ''}"

    def line(self, item: str, quantity: float, unit: str, source: str) -> Line:
        return Line.priced(self.facts, item, quantity, unit, source)

    def compute(self, item: str, used: Iterable[tuple[float, Floats | float]], price: str) -> Line:
        """Return a line of MB that are billed for seconds, each number of which is rounded up to the millisecond."""
        functions, used = replace(self.facts.functions, price_gb_second=self.facts.price(price)), list(used)
        gb_seconds = sum(memory_mb / MB_PER_GB * float(np.sum(seconds)) for memory_mb, seconds in used)
        usd = sum(float(billed_usd(memory_mb, seconds, functions).sum()) for memory_mb, seconds in used)
        return Line(item, gb_seconds, "GB-s", usd, price)

    def platform(self, cold_share: float) -> Platform:
        """Return where the plan runs, at the price of its stage functions' compute."""
        functions = self.facts.functions
        price = getattr(functions, self.workers_price.removeprefix("lambda."))
        priced = replace(functions, price_gb_second=price)
        return Platform(priced, self.store, cold_share, snapstart=self.options.snapstart)

    def answer_s(self, usage: Usage, cold_share: float = 0.0) -> float:
        """Return what a query takes at the driver: to be handed to a function, to be read, to run, to be answered."""
        facts = self.facts
        seconds = usage.seconds + facts.services.driver_seconds
        if self.options.drivers == "fleet":
            return seconds
        return seconds + invoke_seconds(1, facts.functions) + cold_share * facts.services.driver_init

    @property
    def on_demand(self) -> Deployed:
        """The same without what is provisioned: what a query finds that comes when all of that is busy."""
        return replace(self, options=replace(self.options, provisioned_concurrency=None))


@dataclass(frozen=True)
class Usage:
    """The cost of one query: its lines, and the expected seconds that its driver waits for it."""

    lines: tuple[Line, ...]
    seconds: float

    @property
    def usd(self) -> float:
        return sum(line.usd for line in self.lines)


def query_usage(deployed: Deployed, cold_share: float = 0.0) -> Usage:
    """Return what a query of one image uses, where a share of the environments has to be started for it.

    Where functions are provisioned, it is the share of queries that find none of those free, nor any other environment.
    With a cold plan it is the share of queries that run on that, all of whose environments start, and beside them those
    of the other plan.
    """
    if deployed.driver_runs:
        return _usage_of_one_function(deployed, cold_share)
    if deployed.options.provisioned_concurrency is not None:
        return mixed(_plan_usage(deployed, 0.0), query_usage(deployed.on_demand, 1.0), cold_share)
    if deployed.cold is None:
        return _plan_usage(deployed, cold_share)
    warm, cold = _plan_usage(deployed, 0.0), _plan_usage(replace(deployed, plan=deployed.cold), 1.0)
    cold = replace(cold, lines=(*cold.lines, *_started_beside(deployed)))
    return mixed(warm, cold, cold_share)


def mixed(warm: Usage, cold: Usage, cold_share: float) -> Usage:
    shares = ((warm, 1 - cold_share), (cold, cold_share))
    lines = add_up(line.times(share) for usage, share in shares if share for line in usage.lines)
    return Usage(tuple(lines), (1 - cold_share) * warm.seconds + cold_share * cold.seconds)


def _started_beside(deployed: Deployed) -> list[Line]:
    """Price a plan's environments that start while its cold plan answers: one for each task, by warm-up requests."""
    platform, steps = deployed.platform(1.0), _steps(deployed)
    starts = (
        (step.memory_mb, np.full(step.load.tasks, step.load.cold_start(platform).billed_seconds)) for step in steps
    )
    return [
        deployed.line("warm-up requests", _tasks(steps), "requests", "lambda.price_request"),
        deployed.compute("warm-ups' compute", starts, deployed.compute_price),
        *(replace(line, item="weights: reads by warm-ups") for line in _weights(deployed, steps, 1.0)),
    ]


def _plan_usage(deployed: Deployed, cold_share: float) -> Usage:
    steps = _steps(deployed)
    platform = deployed.platform(cold_share)
    seconds = sum(step.seconds(platform) for step in steps) + _waiting(deployed, steps)
    seconds += cold_share * _waiting_for_starts(deployed, steps, platform)
    lines = [
        *_workers(deployed, steps, platform),
        *_store(deployed, steps),
        *_weights(deployed, steps, cold_share),
        *_engine(deployed, seconds),
        *_driver(deployed, steps, seconds, cold_share),
        *_network(deployed, steps),
    ]
    return Usage(tuple(line for line in lines if line.quantity), seconds)


def _usage_of_one_function(deployed: Deployed, cold_share: float) -> Usage:
    """Return what a query uses whose driver computes it: nothing is invoked, and nothing goes through a store."""
    load = plan_load(deployed.plan, 0)
    moved = ("bytes_read", "ranges", "bytes_written", "carried_in", "carried_out")
    nothing: dict[str, Any] = dict.fromkeys(moved, np.zeros(load.tasks))
    load = replace(load, crops=0.0, **nothing)
    step = _Step(deployed.driver_mb, load)
    seconds = float(step.tasks_s(deployed.platform(cold_share)).sum())
    lines = [*_weights(deployed, [step], cold_share), *_driver(deployed, [], seconds, cold_share)]
    return Usage(tuple(line for line in lines if line.quantity), seconds)


def serverless_usd(deployed: Deployed) -> float:
    """Return the dollars of a warm query that only functions cost: what lies before them is paid for either way."""
    steps = _steps(deployed)
    lines = [*_workers(deployed, steps, deployed.platform(0.0)), *_store(deployed, steps), *_network(deployed, steps)]
    return sum(line.usd for line in (*lines, *_engine(deployed, query_usage(deployed).seconds)))


@dataclass(frozen=True)
class _Step:
    """What is invoked together: a stage's tasks, or the members of a gang, whose `load` is what they move around it."""

    memory_mb: int
    load: StageLoad
    gang: GangLoad | None = None

    def seconds(self, platform: Platform) -> float:
        if self.gang:
            return price_gang(self.gang, self.memory_mb, platform).seconds
        return float(stage_price(self.load, self.memory_mb, platform)[0])

    def tasks_s(self, platform: Platform) -> Floats:
        """Return what each of its invocations is billed for, cold starts with their share."""
        cold = platform.cold_share * self.load.cold_start(platform).billed_seconds
        if self.gang:
            price = price_gang(self.gang, self.memory_mb, platform)
            return np.full(self.load.tasks, price.billed_s / self.load.tasks + cold)
        return np.asarray(task_seconds(self.load, self.memory_mb, platform) + cold)


def _steps(deployed: Deployed) -> list[_Step]:
    """Return what a query invokes; only the push engine carries outputs, state machines carry no crops either."""
    plan, carries = deployed.plan, deployed.options.engine == "push"
    stages = (stage if carries and stage.inline else replace(stage, path=CACHE) for stage in plan.stages)
    plan = replace(plan, stages=tuple(stages))
    gangs = {stage: gang for gang in plan.gangs for stage in gang.stages} if deployed.options.runs_gangs else {}
    steps = []
    for number, stage in enumerate(plan.stages):
        gang = gangs.get(number)
        if gang is None:
            steps.append(_Step(stage.memory_mb, plan_load(plan, number)))
        elif gang.start == number:
            members = gang_load(plan, gang)
            steps.append(_Step(stage.memory_mb, members.outer, members))
    if deployed.options.by_state_machine:
        first = steps[0].load
        load = replace(
            first, bytes_read=first.carried_in, ranges=np.ones(first.tasks), carried_in=np.zeros(first.tasks), crops=0.0
        )
        steps[0] = replace(steps[0], load=load)
    platform = deployed.platform(0.0)
    return [replace(step, load=step.load.placed(platform)) for step in steps] if carries else steps


def _workers(deployed: Deployed, steps: list[_Step], platform: Platform) -> list[Line]:
    options = deployed.options
    tasks = _tasks(steps) + options.by_state_machine  # a state machine's is cleaning up
    reply = deployed.store.request_latency if options.engine == "poll" else 0.0
    used = ((step.memory_mb, step.tasks_s(platform) + reply) for step in steps)
    lines = [
        deployed.line("workers' invocations", tasks, "requests", "lambda.price_request"),
        deployed.compute("workers' compute", used, deployed.workers_price),
    ]
    if options.snapstart:
        restored = platform.cold_share * sum(step.load.tasks * step.memory_mb / MB_PER_GB for step in steps)
        lines.append(deployed.line("SnapStart restores", restored, "GB", "lambda.price_snapstart_restored"))
    return lines


def _tasks(steps: list[_Step]) -> int:
    return sum(step.load.tasks for step in steps)


def _store(deployed: Deployed, steps: list[_Step]) -> list[Line]:
    """Price the requests of workers and driver to the store; deleting costs nothing."""
    loads = [step.load for step in steps]
    put = np.concatenate([np.atleast_1d(load.put) for load in loads])  # by the driver: large crops
    written = sum(float(load.bytes_written.sum()) for load in loads) + float(put.sum())
    read = sum(float(load.bytes_read.sum()) for load in loads)
    puts = sum(int((load.bytes_written > 0).sum()) for load in loads) + int((put > 0).sum())
    gets = sum(int(load.ranges.sum()) for load in loads)
    for exchange in (exchange for step in steps if step.gang for exchange in step.gang.exchanges):
        written, read = written + float(exchange.bytes_sent.sum()), read + float(exchange.bytes_received.sum())
        puts, gets = puts + int(exchange.messages.sum()), gets + int((exchange.bytes_received > 0).sum())
    tasks, last = _tasks(steps), deployed.plan.output.elements * FLOAT_BYTES
    engine = deployed.options.engine
    if engine != "push":  # the driver reads the answer
        gets, read = gets + 1, read + last
    if engine == "poll":  # replies, and the looks for them
        puts, written = puts + tasks, written + tasks * _REPLY_BYTES
        gets, read = gets + tasks, read + tasks * _REPLY_BYTES
        gets += sum(step.load.tasks * _polls(step.seconds(deployed.platform(0.0))) for step in steps)
    if deployed.options.by_state_machine:  # the driver writes the crops
        puts, written = puts + loads[0].tasks, written + float(loads[0].bytes_read.sum())
    table = deployed.table
    lines = [
        deployed.line("store: writes", puts, "requests", f"{table}.price_put"),
        deployed.line("store: reads and looks", gets, "requests", f"{table}.price_get"),
    ]
    if deployed.options.store == "s3express":
        return [
            *lines,
            deployed.line("store: bytes written", written, "bytes", "services.price_s3express_upload"),
            deployed.line("store: bytes read", read, "bytes", "services.price_s3express_download"),
        ]
    return [*lines, deployed.line("store: bytes", written + read, "bytes", f"{table}.price_byte")]


def _weights(deployed: Deployed, steps: list[_Step], cold_share: float) -> list[Line]:
    loads = [step.load for step in steps if step.load.weights_in == FETCHED]
    gets = cold_share * sum(load.tasks * math.ceil(load.weight_bytes / PART_BYTES) for load in loads)
    return [deployed.line("weights: reads by new environments", gets, "requests", "s3.price_get")]


def _polls(seconds: float) -> int:
    elapsed, looks = 0.0, 0
    while elapsed < seconds:
        looks += 1
        elapsed += POLLING.wait(looks)
    return looks


def _waiting(deployed: Deployed, steps: list[_Step]) -> float:
    """Return the seconds that an engine adds to a query: looks that come late, transitions one after the other."""
    if deployed.options.engine == "poll":
        late = [POLLING.wait(1 + _polls(step.seconds(deployed.platform(0.0)))) for step in steps]
        return sum(late) / 2 + len(steps) * 2 * deployed.store.request_latency
    if not deployed.options.by_state_machine:
        return 0.0
    entered = 2 + sum(1 + (stage.grid.tiles > 1) for stage in deployed.plan.stages)
    return entered * deployed.facts.services.transition_latency + 2 * deployed.store.request_latency


def _waiting_for_starts(deployed: Deployed, steps: list[_Step], platform: Platform) -> float:
    """Return the seconds that a query which finds nothing warm waits: only push drivers start all steps at once."""
    starts = [step.load.cold_start(platform).seconds for step in steps]
    if deployed.options.engine != "push":
        return sum(starts)
    ready = [
        ready_seconds(step.load.tasks, start, platform.functions, first=not number)
        for number, (step, start) in enumerate(zip(steps, starts, strict=True))
    ]
    return sum(
        time.waited for time in critical_path(zip(ready, (step.seconds(platform) for step in steps), strict=True))
    )


def _engine(deployed: Deployed, seconds: float) -> list[Line]:
    if deployed.options.engine == "stepfunctions":
        return [deployed.line("transitions", transitions(deployed.plan), "transitions", "services.price_transition")]
    if deployed.options.engine == "stepfunctions-express":
        chunks = -(-seconds // _CHUNK_S) * _CHUNK_S
        used = chunks * deployed.facts.services.express_memory / MB_PER_GB
        return [
            deployed.line("executions", 1, "requests", "services.price_express_request"),
            deployed.line("executions' time", used, "GB-s", "services.price_express_gb_second"),
        ]
    return []


def transitions(plan: Plan) -> int:
    """Count the states that an execution of a plan enters where nothing fails: the first, the last, and its stages.

    A stage of several tiles is a Map, which enters a state for each of them, and for each group where they are many.
    """
    several = [stage.grid.tiles for stage in plan.stages if stage.grid.tiles > 1]
    groups = sum(math.ceil(tiles / AT_ONCE) for tiles in several if tiles > AT_ONCE)
    return 2 + len(plan.stages) + sum(several) + groups


def _driver(deployed: Deployed, steps: list[_Step], seconds: float, cold_share: float) -> list[Line]:
    """Price what comes between a client and the plan: an API and a function, or a balancer and a web ACL."""
    services = deployed.facts.services
    logged = services.log_bytes * (_tasks(steps) + 1)
    common = [
        deployed.line("logs taken in", logged, "bytes", "services.price_log_byte"),
        deployed.line("answers out", services.answer_bytes, "bytes", "services.price_egress_byte"),
    ]
    if deployed.options.drivers == "fleet":
        capacity = (services.upload_bytes + services.answer_bytes) / services.lcu_bytes
        return [
            deployed.line("balancer's capacity", capacity, "LCU-hours", "services.price_lcu_hour"),
            deployed.line("web ACL", 1, "requests", "services.price_acl_request"),
            *common,
        ]
    busy = seconds + services.driver_seconds + cold_share * services.driver_init
    return [
        deployed.line("API", 1, "requests", "services.price_api_request"),
        deployed.line("driver's invocation", 1, "requests", "lambda.price_request"),
        deployed.compute("driver's compute", [(deployed.driver_mb, busy)], deployed.compute_price),
        *common,
    ]


def _network(deployed: Deployed, steps: list[_Step]) -> list[Line]:
    if not deployed.options.in_vpc:
        return []
    carried = _BASE64 * sum(float((step.load.carried_in + step.load.carried_out).sum()) for step in steps)
    return [deployed.line("through endpoints", carried, "bytes", "services.price_endpoint_byte")]


def ping_lines(deployed: Deployed) -> list[Line]:
    """Price a month of pings that find everything warm; none where the deployment has none.

    A driver function that runs its plan itself has no others to ping: an invocation is all that it takes.
    """
    chosen = deployed.options.pings
    if chosen is None:
        return []
    facts, plan = deployed.facts, deployed.plan
    counts = {} if deployed.driver_runs else environments(plan, chosen.queries)
    pings = SECONDS_A_MONTH / (60 * chosen.minutes)
    waited = len(counts) * (HOLD_S + facts.functions.invoke_floor)
    held = ((plan.stages[stage].memory_mb, np.full(count, HOLD_S)) for (stage, _), count in counts.items())
    priced = [
        deployed.line("pings", 1 + sum(counts.values()), "requests", "lambda.price_request"),
        deployed.compute("pings: workers' compute", held, deployed.workers_price),
        deployed.compute("pings: driver's compute", [(deployed.driver_mb, waited)], deployed.compute_price),
    ]
    return [line.times(pings) for line in priced if line.quantity]


def registry_lines(facts: AwsFacts, options: Options, drivers: int = 1) -> list[Line]:
    """Price the registry for a month of so many drivers; none where the deployment has no pool or a cache."""
    if options.gpu is None or options.store not in BUCKETS:
        return []
    looks = ("looks", REQUESTS_PER_S, "get"), ("writes", REQUESTS_PER_S, "put")
    seconds, store = drivers * SECONDS_A_MONTH, options.store
    return [
        Line.priced(facts, f"pool registry, {name}", seconds * rate, "requests", f"{store}.price_{price}")
        for name, rate, price in looks
    ]


def fewest_drivers(options: Options, template: Mapping[str, Any], parameters: Mapping[str, Any] | None = None) -> int:
    _, group = resources(template, parameters, options.region).get("Drivers", ("", {}))
    return int(group.get("MinSize", 1))
