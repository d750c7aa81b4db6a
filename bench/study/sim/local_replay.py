"""A load's worst minutes in real time, through a driver, local functions and instances that boot on this machine.

    the machine: functions, cold and warm, one at a time and several at once; an instance's boot, and its images
      ──> what is replayed ──> one function, then functions and instances ──> both simulated, with the times that were
                                measured before, and with those of the replay

What is simulated is in bench/study/sim/replay.py; this is what runs.
"""

from __future__ import annotations

import asyncio
import math
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from serfer.control.policies import AUTO, DEFAULT
from serfer.control.scenario import LambdaTarget, Scenario
from serfer.core.costs.aws import AwsFacts
from serfer.core.errors import PlanError, UnavailableError, UsageError
from serfer.core.plan import Plan
from serfer.core.plan.window_plan import check_whole_images
from serfer.cost.loads.arrivals import arrival_times
from serfer.cost.loads.steps import Progress
from serfer.cost.loads.trace import Trace
from serfer.drivers.instance.client import Fault, InstanceClient, open_http
from serfer.drivers.instance.open_inference import check_classifies
from serfer.fleet.control_loop import END_S, PERIOD_S
from serfer.fleet.leader import end_instances
from serfer.fleet.open_pool import Routing, RunningPool, instance_command
from serfer.fleet.provisioner_url import LOCAL
from serfer.fleet.provisioners.provisioner import Provisioner
from serfer.pipeline.blocking import Pipeline
from serfer.pipeline.result import Result
from serfer.plan_directory import check_artefacts
from serfer.settings import Settings
from serfer.system import processors
from serfer.wiring.open_pipeline import open_pipeline
from serfer_bench.core.workload import Sent, run
from serfer_bench.study.sim.replay import (
    InstanceSpeed,
    Invocation,
    MachineSpeed,
    Replay,
    ReplayedAnswer,
    ReplayedLoad,
    ReplayedWay,
    ReplayOutcome,
    busiest,
    outcome,
    own_images_s,
    own_speed,
    scenario_here,
    simulate,
    thinning,
)

_AT_ONCE: Final = 2  # times the processors
_MOST: Final = 16  # at once, on machines of many processors, whose memory counts, too
_STARTS: Final = 3  # measured one by one
_TURNS: Final = 8  # of warm queries at each number at once
_IMAGES: Final = 20
_LOOK_S: Final = 0.05
_PATIENCE_S: Final = 120.0
_MB_PER_GB: Final = 1024
_S_PER_MINUTE: Final = 60
_FUNCTIONS, _MIX = "one function", "SerFer: one function, "


def check_replay(plan: Plan, directory: Path) -> None:
    if sys.platform != "linux":
        raise UsageError("--replay runs functions as processes of this machine, which needs Linux")
    check_whole_images(plan)
    check_artefacts(plan, directory)


@dataclass(frozen=True, slots=True)
class _Answer:
    """What counts of a query's answer: seconds and dollars of its function, whether that started, or its instance."""

    function_s: float = 0.0
    usd: float = 0.0
    cold: bool = False
    instance: str = ""

    @classmethod
    def of(cls, _number: int, result: Result) -> _Answer:
        if result.served is not None:
            return cls(instance=result.served.instance)
        [stage], [reported] = result.answer.stages, result.report.stages
        attempts = stage.tiles[0].attempts
        spans = [one.ended - (one.started or one.requested) for one in attempts if one.ended is not None]
        return cls(spans[-1], result.report.cost_usd, reported.cold > 0)


@dataclass(frozen=True)
class _Spent:
    """Dollars of a replay's instances, how many were started, and seconds until the first served, None if none did."""

    usd: float = 0.0
    launches: int = 0
    boot_s: float | None = None


@dataclass(frozen=True)
class LocalReplay:
    """Replays of loads on this machine, by a plan of one task; `scenario` has the instance that is compared."""

    plan: Plan
    directory: Path
    scenario: Scenario
    facts: AwsFacts
    settings: Settings
    progress: Progress

    def run(self, load: Trace, minutes: float) -> Replay:
        window, remarks = busiest(load, minutes * _S_PER_MINUTE), []
        with_instances = True
        try:
            check_classifies(self.plan)
        except PlanError as error:
            with_instances = False
            remarks.append(f"without instances: {error}")
        speed = MachineSpeed.of(self._measure_functions(), self._usd_per_s, _most())
        instance = asyncio.run(self._measure_instance()) if with_instances else None
        thinned = thinning(load, window, speed.qps)
        arrivals = arrival_times(load.scaled(1 / thinned), window.begin_s, window.end_s, 0) - window.begin_s
        if not arrivals.size:
            raise UsageError(
                f"nothing is left to replay: of {thinned:g} queries this machine serves one, and no query came of the "
                f"busiest {window.end_s - window.begin_s:,.0f} s: give more --replay-minutes, or a load of more"
            )
        replayed = ReplayedLoad(window, thinned, arrivals)
        scenario = scenario_here(self.scenario, speed, instance, replayed, self._target())
        booted = instance and replace(instance, boot_s=scenario.instance.boot_s)  # it is started late
        found, ways = [], list(_ways(scenario, instance))
        for number, (name, routing) in enumerate(ways):
            answers, measured, failed, spent = self._measured(
                replayed, routing, name, (len(ways) - number) * replayed.seconds
            )
            remarks += [f"{name}: {count:,} queries failed: {message}" for message, count in failed.items()]
            policy = DEFAULT if routing else "serverless"
            simulated, explained = (
                simulate(
                    replayed,
                    times,
                    scenario,
                    policy,
                    period_s=PERIOD_S,
                    patience_s=self._patience_s,
                    instance=kind,
                )
                for times, kind in ((speed, booted), (own_speed(answers, speed), _own_instance(booted, answers, spent)))
            )
            found.append(ReplayedWay(name, simulated, explained, measured))
        return Replay(replayed, processors(), speed, instance, scenario, tuple(found), tuple(remarks))

    @property
    def _usd_per_s(self) -> float:
        return self.plan.stages[0].memory_mb / _MB_PER_GB * self.facts.functions.price_gb_second

    def _target(self) -> LambdaTarget:
        functions = self.facts.functions
        memory_gb = self.plan.stages[0].memory_mb / _MB_PER_GB
        return LambdaTarget(1.0, 1.0, 0.0, functions.concurrency, memory_gb, functions.kept_warm)

    @property
    def _patience_s(self) -> float:
        return self.facts.services.api_timeout

    @contextmanager
    def _opened(self, routing: Routing | None = None) -> Iterator[Pipeline]:
        own = {"local_concurrency": _most(), "local_url": "", "local_port": 0}
        settings = self.settings.model_copy(update={**own, "keep_warm": None, "results": None})
        with open_pipeline(
            self.directory,
            workers="local",
            share=False,
            hedge=False,
            prewarm="never",
            cold_plan="never",
            routing=routing,
            settings=settings,
        ) as pipeline:
            yield pipeline

    def _batch(self) -> NDArray[Any]:
        shape, rng = self.plan.input, np.random.default_rng(0)
        batch: NDArray[Any] = rng.random((1, shape.channels, shape.height, shape.width), dtype=np.float32)
        if self.plan.preprocess is not None:
            batch = rng.integers(0, 256, (1, shape.height, shape.width, shape.channels), dtype=np.uint8)
        batch.flags.writeable = False
        return batch

    def _measure_functions(self) -> list[Invocation]:
        """Measure starts and warm queries, one at a time, as many as there are processors, and as many as may be."""
        found: list[Invocation] = []
        counts = sorted({1, min(processors(), _most()), _most()}, reverse=True)
        for at_once in (*counts, *[1] * (_STARTS - 1)):
            self.progress(f"measuring functions: {at_once} at once")
            with self._opened() as pipeline:
                for _ in range(_TURNS + 1):
                    found += self._at_once(pipeline, at_once)
        return found

    def _at_once(self, pipeline: Pipeline, count: int) -> list[Invocation]:
        batch = self._batch()

        def send(_number: int) -> Future[Result]:
            return pipeline.submit(batch)

        sent = asyncio.run(run(send, (0.0,) * count, _Answer.of, patience_s=_PATIENCE_S))
        if failed := next((one for one in sent if one.result is None), None):
            raise UnavailableError(f"a function on this machine did not answer: {failed.error}: {failed.message}")
        return [Invocation(count, one.latency, one.result.usd, one.result.cold) for one in sent if one.result]

    async def _measure_instance(self) -> InstanceSpeed:
        from serfer.fleet.provisioners.local import LocalProvisioner  # noqa: PLC0415 - Linux only

        self.progress("measuring an instance: it boots")
        with tempfile.TemporaryDirectory(prefix="serfer-replay-") as place:
            command = instance_command(self.plan.model, self.directory, 1)
            provisioner = LocalProvisioner(command, Path(place) / "instances")
            http = open_http(self.settings.instance_key.get_secret_value())
            try:
                begun = time.perf_counter()
                await provisioner.start(1)
                url = await _booted(provisioner)
                client = InstanceClient(url, self.plan.model, self.plan, http)
                while not await client.ready(1.0):
                    _check_patience(begun)
                    await asyncio.sleep(_LOOK_S)
                boot_s = time.perf_counter() - begun
                self.progress("measuring an instance: its images")
                return InstanceSpeed(boot_s, await self._images_s(client))
            finally:
                await http.close()
                await end_instances([provisioner], END_S)

    async def _images_s(self, client: InstanceClient) -> tuple[float, ...]:
        batch, taken = self._batch(), []
        for _ in range(2 + _IMAGES):  # the first two connect and read the model's metadata
            begun = time.perf_counter()
            result = await client.infer(batch, _PATIENCE_S, _PATIENCE_S)
            if isinstance(result, Fault):
                raise UnavailableError(f"the instance on this machine did not answer: {result.message}")
            taken.append(time.perf_counter() - begun)
        return tuple(taken[2:])

    def _measured(
        self, load: ReplayedLoad, routing: Routing | None, name: str, left_s: float
    ) -> tuple[Sequence[ReplayedAnswer], ReplayOutcome, Counter[str], _Spent]:
        self.progress(f"replaying {name}: it starts")
        with self._opened(routing) as pipeline:
            sent, spent = asyncio.run(self._serve(load, pipeline, name, left_s))
        answers = [ReplayedAnswer(one.scheduled, one.ended, *astuple(one.result)) for one in sent if one.result]
        if not answers:
            raise UnavailableError(f"replaying {name}: no query was answered: {sent[0].error}: {sent[0].message}")
        measured = outcome(
            len(sent),
            np.array([one.ended_s - one.came_s for one in answers]),
            self._patience_s,
            cold=sum(answer.cold for answer in answers),
            usd=sum(answer.usd for answer in answers) + spent.usd,
            on_instances=sum(bool(answer.instance) for answer in answers),
            launches=spent.launches,
        )
        return answers, measured, Counter(f"{one.error}: {one.message:.200}" for one in sent if one.error), spent

    async def _serve(
        self, load: ReplayedLoad, pipeline: Pipeline, name: str, left_s: float
    ) -> tuple[Sequence[Sent[_Answer]], _Spent]:
        batch, begun = self._batch(), time.monotonic()

        def note(state: str) -> None:
            seconds = max(0.0, left_s - (time.monotonic() - begun))
            self.progress(f"replaying {name}: {state}; {_clock(seconds)} left")

        spending = asyncio.create_task(_spent(pipeline, load.seconds))
        sent = await run(
            lambda _: pipeline.submit(batch, deadline_s=self._patience_s),
            load.arrivals_s.tolist(),
            _Answer.of,
            patience_s=self._patience_s + 1,
            progress=note,
        )
        return sent, await spending


async def _spent(pipeline: Pipeline, seconds: float) -> _Spent:
    begun, pool = time.monotonic(), pipeline.target
    started = boot_s = None
    while (now := time.monotonic() - begun) < seconds:
        if isinstance(pool, RunningPool) and boot_s is None:
            status = pool.controller.status
            started = now if started is None and status.on else started
            boot_s = now - started if started is not None and status.serving else None
        await asyncio.sleep(min(PERIOD_S / 4, seconds - now))
    if not isinstance(pool, RunningPool):
        return _Spent()
    return _Spent(pool.controller.status.instances_usd, pool.controller.changes["started"], boot_s)


def _own_instance(
    known: InstanceSpeed | None, answers: Sequence[ReplayedAnswer], spent: _Spent
) -> InstanceSpeed | None:
    if known is None:
        return None
    return InstanceSpeed(spent.boot_s or known.boot_s, own_images_s(answers) or known.images_s)


def _most() -> int:
    return min(_AT_ONCE * processors(), _MOST)


def _ways(scenario: Scenario, instance: InstanceSpeed | None) -> Iterator[tuple[str, Routing | None]]:
    yield _FUNCTIONS, None
    if instance is not None:
        delay_s = scenario.instance.boot_s - instance.boot_s
        yield f"{_MIX}{scenario.instance.name}", Routing(AUTO, LOCAL, scenario, boot_delay_s=delay_s)


async def _booted(provisioner: Provisioner) -> str:
    begun = time.perf_counter()
    while members := await provisioner.members():
        if members[0].url is not None:
            return members[0].url
        _check_patience(begun)
        await asyncio.sleep(_LOOK_S)
    raise UnavailableError("the instance on this machine ended before it served")


def _check_patience(begun: float) -> None:
    if time.perf_counter() - begun > _PATIENCE_S:
        raise UnavailableError(f"the instance on this machine did not serve within {_PATIENCE_S:g} s")


def _clock(seconds: float) -> str:
    whole = math.ceil(seconds)
    return f"{whole // _S_PER_MINUTE}:{whole % _S_PER_MINUTE:02d}"
