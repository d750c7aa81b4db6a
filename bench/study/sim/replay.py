"""A load's worst minutes, replayed on a machine: what is simulated with the times that were measured there.

    load ──> its busiest minutes ──> thinned to what the machine serves ──> arrivals ──┬──> queries.py, with its times
                                                                                       └──> functions and instances

What runs at once on a machine shares its processors, which Lambda's environments do not: times are measured with
several numbers of queries at once, and drawn by how many run when a query begins.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final

import numpy as np
from numpy.random import Generator

from serfer.control.policies import make_policy
from serfer.control.router import Router
from serfer.control.scenario import LambdaTarget, Scenario
from serfer.core.units import MS_PER_S
from serfer.cost.driver_limits import DriverLimits
from serfer.cost.loads.trace import Floats, Trace
from serfer.cost.queries import QueriesRun, SimulatedInstance
from serfer.cost.service_times import Quantiles, ServiceTimes
from serfer.cost.windows import Window

LOADED: Final = 0.5
"""The share of what a machine serves that the busiest seconds of a replay have at most."""
_PEAK_S: Final = 10.0  # the length of those seconds
_POINTS: Final = 1000  # of a distribution
_BLOCK: Final = 4096  # draws at once
_SEEDS: Final = 10
_ROUNDING: Final = 1e-9


@dataclass(frozen=True)
class Invocation:
    """A query on a function as it was measured: its seconds for the caller, its price, and whether it started one.

    `at_once` is how many ran at that time.
    """

    at_once: int
    seconds: float
    usd: float
    cold: bool


@dataclass(frozen=True)
class InstanceSpeed:
    """Seconds that an instance took to boot, and for each image, one after the other."""

    boot_s: float
    images_s: tuple[float, ...]

    @property
    def image_s(self) -> float:
        return float(np.mean(self.images_s))


@dataclass(frozen=True, eq=False)
class MachineSpeed:
    """What a query takes on a machine: (counts, points) seconds, quantiles by how many run at once, from one on.

    `cold_s` is what a start adds. A query costs `usd_per_s` a second and `warm_usd` besides, one with a start
    `cold_usd`. At most `environments` run at once.
    """

    warm_s: Floats
    cold_s: Floats
    usd_per_s: float
    warm_usd: float
    cold_usd: float

    @classmethod
    def of(cls, measured: Sequence[Invocation], usd_per_s: float, most: int) -> MachineSpeed:
        """Return the speed by invocations, warm and cold ones at each number at once that was measured.

        There are cold ones; where there are no warm ones, starts add nothing. At most `most` run at once.
        """
        cold = [one for one in measured if one.cold]
        warm = [one for one in measured if not one.cold] or cold
        levels = sorted({one.at_once for one in measured})
        warm_rows, cold_rows = (np.stack([_quantiles(ones, level) for level in levels]) for ones in (warm, cold))
        cold_rows = np.maximum(cold_rows - warm_rows.mean(axis=1, keepdims=True), 0.0)
        besides = [float(np.mean([one.usd - usd_per_s * one.seconds for one in ones])) for ones in (warm, cold)]
        return cls(_every(levels, warm_rows, most), _every(levels, cold_rows, most), usd_per_s, *besides)

    @property
    def environments(self) -> int:
        return len(self.warm_s)

    @property
    def qps(self) -> float:
        """Queries a second that warm functions answer, as many at once as may be."""
        return self.environments / float(self.warm_s[-1].mean())

    def usd(self, seconds: float, warm: int, cold: int) -> float:
        """Price so many queries, which took so many seconds together."""
        return self.usd_per_s * seconds + self.warm_usd * warm + self.cold_usd * cold

    def as_dict(self) -> dict[str, Any]:
        warm_ms, cold_ms = (MS_PER_S * rows.mean(axis=1) for rows in (self.warm_s, self.cold_s))
        return {
            "at_once": self.environments,
            "warm_ms": round(float(warm_ms[0]), 3),
            "warm_at_once_ms": round(float(warm_ms[-1]), 3),
            "cold_ms": round(float((warm_ms + cold_ms)[0]), 3),
            "cold_at_once_ms": round(float((warm_ms + cold_ms)[-1]), 3),
            "qps": round(self.qps, 3),
        }


@dataclass(frozen=True)
class ReplayedAnswer:
    """An answer of a replay: when its query was to come, and when it was there, in seconds from the beginning.

    It ran on a function for `function_s`, which cost `usd`, or on an `instance`.
    """

    came_s: float
    ended_s: float
    function_s: float
    usd: float
    cold: bool
    instance: str = ""


def own_speed(answers: Sequence[ReplayedAnswer], speed: MachineSpeed) -> MachineSpeed:
    """Return a machine's speed as a replay's own functions had it, whatever ran at once; `speed` where none started."""
    ones = [one for one in answers if not one.instance]
    if not any(one.cold for one in ones):
        return speed
    besides_s = float(np.median([one.ended_s - one.came_s - one.function_s for one in ones]))  # most do not wait
    measured = [Invocation(1, one.function_s + besides_s, one.usd, one.cold) for one in ones]
    return MachineSpeed.of(measured, speed.usd_per_s, speed.environments)


def own_images_s(answers: Sequence[ReplayedAnswer]) -> tuple[float, ...]:
    """Return seconds of the images on a replay's own instances, each of which computes one after the other."""
    free_s: dict[str, float] = {}
    taken = []
    for one in sorted((one for one in answers if one.instance), key=lambda one: one.ended_s):
        taken.append(one.ended_s - max(one.came_s, free_s.get(one.instance, -math.inf)))
        free_s[one.instance] = one.ended_s
    return tuple(taken)


def _quantiles(measured: Sequence[Invocation], at_once: int) -> Floats:
    seconds = [one.seconds for one in measured if one.at_once == at_once]
    shares = (np.arange(_POINTS) + 0.5) / _POINTS
    # Interpolated between few samples, quantiles would have another mean than these.
    return np.asarray(np.quantile(seconds, shares, method="inverted_cdf"), dtype=np.float64)


def _every(levels: Sequence[int], rows: Floats, most: int) -> Floats:
    """Return a row for every count up to `most`, those between two levels interpolated."""
    counts = np.arange(1, most + 1)
    return np.stack([np.interp(counts, levels, column) for column in rows.T], axis=1)


@dataclass(frozen=True, eq=False)
class MeasuredTimes(ServiceTimes):
    """Service times of a machine, by how many queries run as one begins; `taken_s` has all that were drawn."""

    speed: MachineSpeed = field(kw_only=True)
    taken_s: array[float] = field(default_factory=lambda: array("d"), kw_only=True)

    @classmethod
    def on(cls, speed: MachineSpeed) -> MeasuredTimes:
        alone = Quantiles(speed.warm_s[0]), Quantiles(speed.cold_s[0])
        return cls(*alone, "measured on this machine", one_task=True, speed=speed)

    def draws(self, rng: Generator, running: Sequence[float]) -> tuple[Iterator[float], Iterator[float]]:
        return self._drawn(rng, running, self.speed.warm_s), self._drawn(rng, running, self.speed.cold_s)

    def _drawn(self, rng: Generator, running: Sequence[float], rows: Floats) -> Iterator[float]:
        table = rows.tolist()
        while True:
            for point in rng.integers(0, _POINTS, _BLOCK).tolist():
                seconds: float = table[min(len(running), len(table) - 1)][point]
                self.taken_s.append(seconds)
                yield seconds


@dataclass(frozen=True)
class ReplayOutcome:
    """What became of a replay's queries: shares of all that came, latencies of those answered, dollars of its time.

    `launches` are instances that were started, `on_instances` the share that they answered.
    """

    unanswered: float
    p50_ms: float | None
    p99_ms: float | None
    cold_share: float
    usd: float
    on_instances: float = 0.0
    launches: float = 0.0


def outcome(
    queries: int, latencies_s: Floats, patience_s: float, *, cold: int, usd: float, on_instances: int, launches: int
) -> ReplayOutcome:
    answered = latencies_s[latencies_s <= patience_s]
    p50, p99 = (MS_PER_S * np.quantile(answered, (0.5, 0.99))).tolist() if answered.size else (None, None)
    came = max(queries, 1)
    return ReplayOutcome(1 - len(answered) / came, p50, p99, cold / came, usd, on_instances / came, launches)


@dataclass(frozen=True)
class ReplayedWay:
    """A way to serve the replayed minutes, as it was simulated and as it was measured.

    `simulated` is with the machine's speed before the replay, `explained` with that of the replay's own invocations.
    """

    name: str
    simulated: ReplayOutcome
    explained: ReplayOutcome
    measured: ReplayOutcome

    def as_dict(self) -> dict[str, Any]:
        offs = {f"{name}_off": off(getattr(self, name), self.measured) for name in ("simulated", "explained")}
        return {**asdict(self), **offs}


def off(simulated: ReplayOutcome, measured: ReplayOutcome) -> dict[str, float | None]:
    """Return by which share of what was measured a simulation has more, or less; None where nothing was measured."""
    return {
        name: expected / found - 1 if found and expected is not None else None
        for name in ("p50_ms", "p99_ms", "usd")
        for expected, found in [(getattr(simulated, name), getattr(measured, name))]
    }


@dataclass(frozen=True, eq=False)
class ReplayedLoad:
    """The part of a load that is replayed: when its queries come, in seconds from its beginning.

    Of `thinned` queries of the load one is left; an instance's price is divided by as many, so that it pays from the
    same share of the load on.
    """

    window: Window
    thinned: float
    arrivals_s: Floats

    @property
    def seconds(self) -> float:
        return self.window.end_s - self.window.begin_s


def busiest(load: Trace, seconds: float) -> Window:
    """Return the part of so many seconds in which most queries come, the first of those alike; or the whole load."""
    if load.seconds <= seconds:
        return Window("whole", 0.0, load.seconds)
    starts = load.starts_s
    until = np.concatenate(([0.0], np.cumsum(load.durations_s * load.rates)))
    # A window that could not gain by moving begins or ends where a rate changes.
    begins = np.unique(np.clip(np.concatenate((starts, starts - seconds)), 0.0, load.seconds - seconds))
    counts = np.interp(begins + seconds, starts, until) - np.interp(begins, starts, until)
    begin = float(begins[np.flatnonzero(counts >= counts.max() * (1 - _ROUNDING))[0]])
    return Window("busiest", begin, begin + seconds)


def thinning(load: Trace, window: Window, qps: float) -> float:
    """Return one of how many queries a machine that answers `qps` can serve in the busiest seconds of a window."""
    part = load.cut(load.begin_s + window.begin_s, load.begin_s + window.end_s)
    return max(1.0, math.ceil(10 * part.resampled(_PEAK_S).peak / (LOADED * qps) - _ROUNDING) / 10)


def scenario_here(
    scenario: Scenario, speed: MachineSpeed, instance: InstanceSpeed | None, load: ReplayedLoad, target: LambdaTarget
) -> Scenario:
    warm_s, cold_s = float(speed.warm_s[0].mean()), float(speed.cold_s[0].mean())
    target = replace(
        target,
        usd_per_query=speed.usd(warm_s, 1, 0),
        latency_ms=warm_s * MS_PER_S,
        cold_ms=cold_s * MS_PER_S,
    )
    if instance is None:
        return replace(scenario, serverless=target)
    image_ms = instance.image_s * MS_PER_S
    kind = replace(
        scenario.instance,
        usd_per_hour=scenario.instance.usd_per_hour / load.thinned,
        spot_usd_per_hour=0.0,
        boot_s=max(scenario.instance.boot_s, instance.boot_s),
        batches=((1, image_ms),),
        qps=0.9 * MS_PER_S / image_ms,
    )
    return Scenario(max(scenario.slo_ms, 4 * image_ms), target, (kind,))


def simulate(
    load: ReplayedLoad,
    speed: MachineSpeed,
    scenario: Scenario,
    policy: str,
    *,
    period_s: float,
    patience_s: float,
    instance: InstanceSpeed | None = None,
) -> ReplayOutcome:
    """Simulate a replay with the times that were measured, under a policy that decides every `period_s`.

    An `instance` boots and takes any of its times for an image; decided is by what the scenario has. It begins as the
    replay does, with nothing warm, no instance and a policy that has seen nothing. Numbers are means over several draws
    of times.
    """
    limits, window = DriverLimits(slots=speed.environments), Window("replayed", 0.0, load.seconds)
    found = []
    for seed in range(_SEEDS):
        times = MeasuredTimes.on(speed)
        router = Router(scenario, make_policy(policy, scenario))
        run = _MeasuredRun(scenario, router, times, seed, limits, instance)
        one = run.through(load.arrivals_s, 0.0, window, period_s)
        warm = one.on_serverless + one.pings - one.cold_starts
        usd = speed.usd(sum(times.taken_s), warm, one.cold_starts) + one.instances_usd
        found.append(
            outcome(
                one.queries,
                one.latencies_s,
                patience_s,
                cold=one.cold_starts,
                usd=usd,
                on_instances=one.on_instances,
                launches=one.launches,
            )
        )
    return ReplayOutcome(**{each.name: _mean([getattr(one, each.name) for one in found]) for each in fields(found[0])})


class _MeasuredRun(QueriesRun):
    """A run whose instances boot and take for an image what was measured, whatever the router expects."""

    def __init__(
        self,
        scenario: Scenario,
        router: Router,
        services: ServiceTimes,
        seed: int,
        limits: DriverLimits,
        instance: InstanceSpeed | None,
    ) -> None:
        self._images_s = np.array(instance.images_s if instance else ())
        if instance is not None:
            scenario = replace(scenario, instances=(replace(scenario.instance, boot_s=instance.boot_s),))
        super().__init__(scenario, router, services, [], seed, limits=limits)

    def _batch_seconds(self, instance: SimulatedInstance, images: int) -> float:
        if not self._images_s.size:
            return super()._batch_seconds(instance, images)
        return float(self._rng.choice(self._images_s, images).sum())


def _mean(values: Sequence[float | None]) -> Any:  # noqa: ANN401 - None where there is no value
    known = [value for value in values if value is not None]
    return float(np.mean(known)) if known else None


@dataclass(frozen=True, eq=False)
class Replay:
    """A replay: what was replayed, the machine's speed, and the ways, as they were simulated and measured."""

    load: ReplayedLoad
    processors: int
    speed: MachineSpeed
    instance: InstanceSpeed | None
    scenario: Scenario
    ways: tuple[ReplayedWay, ...]
    remarks: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        kind = self.scenario.instance
        return {
            "begin_s": self.load.window.begin_s,
            "seconds": self.load.seconds,
            "queries": len(self.load.arrivals_s),
            "thinned": self.load.thinned,
            "machine": {
                "processors": self.processors,
                **self.speed.as_dict(),
                "instance_boot_s": self.instance and round(self.instance.boot_s, 3),
                "instance_image_ms": self.instance and round(self.instance.image_s * MS_PER_S, 3),
            },
            "instance": {"name": kind.name, "usd_per_hour": kind.usd_per_hour, "boot_s": kind.boot_s},
            "slo_ms": self.scenario.slo_ms,
            "ways": [way.as_dict() for way in self.ways],
            "remarks": list(self.remarks),
        }
