"""Two instances with batch sizes of their own against the same two with one size, under bursts through HTTP.

    bench ── POST /v1/classify, at each arrival ──> serfer serve --route SYSTEM ──> two instances of one thread
                                                                              └──> functions in its process

The instances stay, each system's driver sets their batch sizes when it starts. Systems come in turn, round by round.
Latencies count from scheduled arrivals; bench, driver and instances share this machine's processors.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import aiohttp
import psutil
import typer

from serfer.cli.shared.options import JsonOption, status_lines
from serfer.control.policy import InstanceCount, InstanceGroup, Observation, ProvisioningPlan
from serfer.control.scenario import Market, Scenario, read_scenario, scenario_file
from serfer.core.errors import UnavailableError
from serfer.settings import load_settings
from serfer_bench.core.arrivals import poisson
from serfer_bench.core.options import ModelOption, PlanOption, RowsOption, image_plan, plan_of
from serfer_bench.core.processes import serving
from serfer_bench.core.quantiles import percentiles
from serfer_bench.core.results import publish_rows, require_answers
from serfer_bench.core.tables import Column, Measurement
from serfer_bench.core.workload import Sent, run
from serfer_bench.serving.route import classify, examples_of
from serfer_bench.study.policies.nonuniform.rate_dispatcher import RateDispatcher
from serfer_bench.study.policies.nonuniform.sizes import sizes_of

SMALL = 2
_HERE = "serfer_bench.serving.nonuniform"
_PATIENCE_S = 60.0
_READY_S = 30.0
_LOOK_S = 0.1
_MS_PER_S = 1000.0
Progress = Callable[[str], None]


class _Fixed:
    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    @property
    def batches(self) -> tuple[int, int]:
        return 0, 0

    def observe(self, seen: Observation) -> ProvisioningPlan:
        del seen
        kind = self._scenario.instance.name
        counts = {batch: self.batches.count(batch) for batch in self.batches}
        groups = (InstanceCount(kind, Market.ON_DEMAND, count, batch) for batch, count in counts.items())
        return ProvisioningPlan(tuple(groups), "two instances")

    def resume(self, fleet: Sequence[InstanceGroup]) -> None:
        """Go on."""


class AtOnce(_Fixed):
    """Batches of what waits, at once, and the instance that answers first: the rule of the other policies."""


class Uniform(_Fixed):
    """Both with the largest size, windows for full batches, and dispatch by rates."""

    @property
    def batches(self) -> tuple[int, int]:
        large = sizes_of(self._scenario.instance, self._scenario.slo_ms)[0].batch
        return large, large

    def dispatcher(self) -> RateDispatcher:
        return RateDispatcher(self._scenario)


class Pair(Uniform):
    """One with the largest size and one with a small one."""

    @property
    def batches(self) -> tuple[int, int]:
        return super().batches[0], SMALL


SYSTEMS: dict[str, type[_Fixed]] = {"non-uniform": Pair, "uniform": Uniform, "at once": AtOnce}


@dataclass(frozen=True)
class Row(Measurement):
    """A burst of a system: shares of its queries, images and batches of each instance, and processor time."""

    system: Annotated[str, Column("system")]
    rate: Annotated[float, Column("queries/s", "g")]
    round: Annotated[int, Column("round")]
    queries: Annotated[int, Column("queries", ",")]
    in_time: Annotated[float, Column("in time", ".1%")]
    per_s: Annotated[float, Column("in time, a second", ".1f")]
    serverless: Annotated[int, Column("on functions", ",")]
    failed: Annotated[int, Column("failed")]
    p50_ms: Annotated[float, Column("p50 ms", ",.0f")]
    p99_ms: Annotated[float, Column("p99 ms", ",.0f")]
    images: Annotated[tuple[int, ...], Column("images of each", lambda images: " + ".join(map(str, images)))]
    batch_means: Annotated[
        tuple[float, ...], Column("mean batches", lambda means: ", ".join(f"{mean:.1f}" for mean in means))
    ]
    cpu_ms: Annotated[float, Column("processor ms an image", ".1f")]


@dataclass(frozen=True)
class Experiment:
    """Poisson bursts of each rate for some seconds, to each system in turn, `rounds` times."""

    scenario: Path
    rates: Sequence[float]
    seconds: float
    rounds: int


def measure(directory: Path, experiment: Experiment, progress: Progress) -> Iterator[Row]:
    scenario, examples = (
        read_scenario(experiment.scenario),
        examples_of(image_plan(directory), directory, load_settings()),
    )
    options = ["--set", "threads=1", "--max-batch", str(scenario.instance.max_batch)]
    with ExitStack() as stack:
        reports = [stack.enter_context(serving("instance", directory, options)) for _ in range(2)]
        instances = _Instances([str(one["url"]) for one in reports], [psutil.Process(one["pid"]) for one in reports])
        for number in range(experiment.rounds):
            for rate in experiment.rates:
                for name, policy in SYSTEMS.items():
                    progress(f"round {number + 1}, {rate:g} queries/s: {name}")
                    yield _burst(directory, experiment, instances, examples, (name, policy(scenario), rate, number))


@dataclass(frozen=True)
class _Instances:
    urls: Sequence[str]
    processes: Sequence[psutil.Process]

    def cpu_s(self) -> float:
        return sum(times.user + times.system for times in (one.cpu_times() for one in self.processes))

    async def signals(self, http: aiohttp.ClientSession) -> list[dict[str, Any]]:
        found = []
        for url in self.urls:
            async with http.get(f"{url}/v1/models") as reply:
                found.append((await reply.json())["models"][0]["state"]["signals"])
        return found


def _burst(
    directory: Path,
    experiment: Experiment,
    instances: _Instances,
    examples: Sequence[tuple[bytes, int]],
    turn: tuple[str, _Fixed, float, int],
) -> Row:
    options = ["--route", f"{_HERE}:{type(turn[1]).__name__}", "--instances", f"static:{','.join(instances.urls)}"]
    options += ["--set", f"scenario={experiment.scenario}", "--workers", "inprocess", "--store", "memory://"]
    with serving("serve", directory, options) as report:
        return asyncio.run(_send(str(report["url"]), experiment, instances, examples, turn))


async def _send(
    url: str,
    experiment: Experiment,
    instances: _Instances,
    examples: Sequence[tuple[bytes, int]],
    turn: tuple[str, _Fixed, float, int],
) -> Row:
    name, policy, rate, number = turn
    timeout = aiohttp.ClientTimeout(_PATIENCE_S)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:

        def send(query: int) -> asyncio.Task[str]:
            return asyncio.create_task(classify(http, url, *examples[query % len(examples)]))

        await _until_ready(url, http, instances, policy)
        before, cpu_s = await instances.signals(http), instances.cpu_s()
        arrivals = poisson(rate, experiment.seconds, number)
        ends: list[Sent[str]] = await run(send, arrivals, patience_s=_PATIENCE_S)
        cpu_s = instances.cpu_s() - cpu_s
        after = await instances.signals(http)
    slo_ms = read_scenario(experiment.scenario).slo_ms
    deltas = [
        (new["images"] - old["images"], new["batches"] - old["batches"]) for old, new in zip(before, after, strict=True)
    ]
    return _row((name, rate, number), experiment.seconds, ends, slo_ms, deltas, cpu_s)


def _row(
    turn: tuple[str, float, int],
    seconds: float,
    ends: Sequence[Sent[str]],
    slo_ms: float,
    deltas: Sequence[tuple[int, int]],
    cpu_s: float,
) -> Row:
    answered = [end for end in ends if end.result in ("gpu", "serverless")]
    times = [end.latency * _MS_PER_S for end in answered]
    within = sum(time <= slo_ms for time in times)
    p50, p99 = percentiles(times, 50, 99)
    images = tuple(images for images, _ in deltas)
    return Row(
        system=turn[0],
        rate=turn[1],
        round=turn[2] + 1,
        queries=len(ends),
        in_time=within / max(1, len(ends)),
        per_s=within / seconds,
        serverless=sum(end.result == "serverless" for end in answered),
        failed=len(ends) - len(answered),
        p50_ms=p50,
        p99_ms=p99,
        images=images,
        batch_means=tuple(images / max(1, batches) for images, batches in deltas),
        cpu_ms=cpu_s * _MS_PER_S / max(1, sum(images)),
    )


async def _until_ready(url: str, http: aiohttp.ClientSession, instances: _Instances, policy: _Fixed) -> None:
    largest = 'serfer_pool_instances{state="serving"} 2.0'
    try:
        async with asyncio.timeout(_READY_S):
            while True:
                async with http.get(f"{url}/metrics") as reply:
                    serve = largest in await reply.text()
                sizes = sorted(one["max_batch"] for one in await instances.signals(http))
                if serve and (sizes == sorted(policy.batches) or not any(policy.batches)):
                    return
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        raise UnavailableError(f"the instances have batches of {sizes}, not {sorted(policy.batches)}") from None


def command(
    scenario: Annotated[Path, typer.Option(metavar="FILE or NAME", help="Prices and speeds, as of one thread.")],
    model: ModelOption = None,
    plan: PlanOption = None,
    rate: Annotated[list[float] | None, typer.Option(help="Queries a second; may be repeated. [default: 20]")] = None,
    seconds: Annotated[float, typer.Option(min=1, max=3600, help="How long each burst lasts.")] = 20.0,
    rounds: Annotated[int, typer.Option(min=1, max=100)] = 3,
    directory: RowsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send bursts to two instances: with batch sizes of their own, with the same, and with batches at once."""
    experiment = Experiment(scenario_file(scenario), rate or (20.0,), seconds, rounds)
    with status_lines() as progress:
        rows = list(measure(plan_of(model, plan), experiment, progress))
    publish_rows(rows, directory, as_json=as_json)
    require_answers(sum(row.failed for row in rows), sum(row.queries for row in rows))
