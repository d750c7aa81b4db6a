"""Gangs against everything else that the same memory allows: one worker, the best plan without them, their own stages.

    one        the network in one function
    ungrouped  the best plan without gangs
    staged     the gang plan's stages, one by one
    gang       the gang plan

Queries take turns, one at a time, over local workers of one vCPU each and a Redis server. AWS's latencies can be put
in: each invocation then begins `--invoke-ms` late, each request to the store waits `--request-ms`, and an environment's
bytes flow at `--mb-per-s`. More workers than this machine has cores share them, which such a row does not say.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Annotated

import numpy as np
import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import UsageError, WrongAnswerError
from serfer.core.exactness import TOLERANCE, difference
from serfer.core.plan import Plan, explained
from serfer.local.lambda_.faults import Faults
from serfer.local.servers.redis import RedisServer
from serfer.packaging.build_cache import forget_unused, in_use
from serfer.packaging.bundle import code_stamp
from serfer.pipeline.pipeline import Pipeline
from serfer.plan_directory import load_plan
from serfer.settings import Settings, load_settings
from serfer.splitter.split import split
from serfer.storage.delaying import delayed
from serfer.wiring.open_pipeline import open_pipeline
from serfer_bench.core.options import RowsOption
from serfer_bench.core.results import publish_rows

_MS_PER_S = 1000.0
_MB = 1e6
_WARM_UP = 3
_RESAMPLES = 2000
_CHANNELS = 3
_WORKERS = 2
SYSTEMS = ("one", "ungrouped", "staged", "gang")

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Latencies:
    """What is put in: milliseconds of an invocation and of a request to the store, bytes a second (0: no limit)."""

    invoke_ms: float = 0.0
    request_ms: float = 0.0
    bytes_per_s: float = 0.0


@dataclass(frozen=True)
class GangTime:
    """Queries of one image through one system; `gain` is its time over the gang plan's, of queries side by side.

    Milliseconds are wall time, `gain` the median of the pairs with its 95% interval (bootstrap); bytes go through the
    store, both ways, in the median; `predicted_ms` is the plan's own prediction, with AWS's latencies, `calibrated_ms`
    the same with compute as much slower as the network in one function was here (None without that system): alone for
    stages of one tile, beside a second query for those of several, which compute at the same time. `wait_ms` are all
    members' together.
    """

    network: str
    size: int
    system: str
    plan: str
    median_ms: float
    least_ms: float
    gain: float
    gain_low: float
    gain_high: float
    bytes_stored: float
    wait_ms: float
    predicted_ms: float
    calibrated_ms: float | None

    @property
    def shown(self) -> dict[str, str]:
        """Its columns."""
        return {
            "network": f"{self.network} {self.size}",
            "system": self.system,
            "plan": self.plan,
            "ms": f"{self.median_ms:,.1f}",
            "from": f"{self.least_ms:,.1f}",
            "gang is faster": f"{self.gain:.2f}x",
            "95%": f"{self.gain_low:.2f} to {self.gain_high:.2f}",
            "kB stored": f"{self.bytes_stored / 1000:,.0f}",
            "waiting ms": f"{self.wait_ms:,.1f}",
            "predicted ms": f"{self.predicted_ms:,.1f}",
            "error": f"{self.predicted_ms / self.median_ms - 1:+.1%}",
            "calibrated ms": f"{self.calibrated_ms:,.1f}" if self.calibrated_ms else "-",
            "its error": f"{self.calibrated_ms / self.median_ms - 1:+.1%}" if self.calibrated_ms else "-",
        }


@dataclass
class _System:
    """An open pipeline and its measurements."""

    name: str
    pipeline: Pipeline
    predicted_ms: float
    ms: list[float] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def run(self, image: np.ndarray) -> np.ndarray:
        started = time.perf_counter()
        answer = self.pipeline.run(image)
        self.ms.append((time.perf_counter() - started) * _MS_PER_S)
        report = self.pipeline.last_report
        self.stored.append(report.store.bytes_put + report.store.bytes_get)
        self.waits.append(sum(stage.wait_ms for stage in report.stages))
        return np.asarray(answer)


def measure(
    network: str,
    size: int,
    settings: Settings,
    latencies: Latencies,
    rounds: int,
    chosen: Sequence[str] = SYSTEMS,
    progress: Progress = lambda _: None,
) -> list[GangTime]:
    """Run a network at `size` x `size` through `chosen` systems `rounds` times, in turn, after some rounds to warm up.

    The last system is what the others are compared with.
    """
    with ExitStack() as stack:
        systems = _opened(network, size, settings, latencies, chosen, stack, progress)
        image = _image(systems[0].pipeline.plan)
        for number in range(-_WARM_UP, rounds):
            progress(f"query {max(number, 0) + 1} of {rounds}")
            answers = [system.run(image) for system in systems]
            for system, answer in zip(systems[1:], answers[1:], strict=True):
                if difference(answer, answers[0]).error > TOLERANCE:
                    raise WrongAnswerError(f"{system.name} answers otherwise than {systems[0].name}")
            if number == -1:
                for system in systems:
                    system.ms, system.stored, system.waits = [], [], []
        progress("queries by twos")
        calibration = _Calibration.of(systems[0], image, rounds) if systems[0].name == "one" else None
        return [_row(network, size, system, systems[-1], calibration) for system in systems]


def _image(plan: Plan) -> np.ndarray:
    """Return pixels, or numbers where the plan does not say how pixels become numbers."""
    random, shape = np.random.default_rng(0), plan.input
    if plan.preprocess is None:
        return random.standard_normal((1, shape.channels, shape.height, shape.width), np.float32)
    return random.integers(0, 256, (1, shape.height, shape.width, shape.channels), np.uint8)


def _opened(
    network: str,
    size: int,
    settings: Settings,
    latencies: Latencies,
    chosen: Sequence[str],
    stack: ExitStack,
    progress: Progress,
) -> list[_System]:
    url = stack.enter_context(RedisServer()).url
    if latencies.request_ms or latencies.bytes_per_s:
        url = delayed(url, put_ms=latencies.request_ms, get_ms=latencies.request_ms, bytes_per_s=latencies.bytes_per_s)
    faults = Faults(latency_s=latencies.invoke_ms / _MS_PER_S) if latencies.invoke_ms else None
    plans = {name: _plan(network, size, name, settings, progress) for name in chosen}
    systems = []
    for name, directory in plans.items():
        progress(f"starting {name}")
        gangs = "never" if name == "staged" else "planned"
        pipeline = open_pipeline(
            directory, store=url, workers="local", gangs=gangs, faults=faults, settings=settings, hedge=False
        )
        predicted_ms = _predicted_ms(load_plan(directory), gangs=gangs == "planned")
        systems.append(_System(name, stack.enter_context(pipeline), predicted_ms))
    return systems


def _predicted_ms(plan: Plan, *, gangs: bool) -> float:
    return sum(plan.predicted_ms) if gangs else sum(explained(stage.predicted_ms) for stage in plan.stages)


def _compute_ms(plan: Plan) -> tuple[float, float]:
    """Return what of a plan's prediction is compute of the slowest tiles: of stages of one tile, and of several."""
    alone = together = 0.0
    for stage in plan.stages:
        slowest = max(explained(tile.serial_ms) + explained(tile.parallel_ms) for tile in stage.tiles)
        alone, together = (alone, together + slowest) if len(stage.tiles) > 1 else (alone + slowest, together)
    return alone, together


@dataclass(frozen=True)
class _Calibration:
    """How many times as long as predicted compute takes here: alone, and beside another function's."""

    alone: float
    together: float

    @classmethod
    def of(cls, one: _System, image: np.ndarray, rounds: int) -> _Calibration:
        """Compare the network in one function of one vCPU with its prediction, by itself and by twos."""
        together = []
        for _ in range(_WARM_UP + rounds):
            started = time.perf_counter()
            for query in [one.pipeline.submit(image) for _ in range(_WORKERS)]:
                query.result()
            together.append((time.perf_counter() - started) * _MS_PER_S)
        compute_ms = sum(_compute_ms(one.pipeline.plan))
        return cls(*(1 + (median(ms) - one.predicted_ms) / compute_ms for ms in (one.ms, together[_WARM_UP:])))

    def of_plan(self, plan: Plan, predicted_ms: float) -> float:
        """Return a plan's prediction with compute as slow as it is here."""
        alone, together = _compute_ms(plan)
        return predicted_ms + (self.alone - 1) * alone + (self.together - 1) * together


def _plan(network: str, size: int, system: str, settings: Settings, progress: Progress) -> Path:
    """Return the directory of a system's plan, split when first needed."""
    grids, stages = ("1", 1) if system == "one" else ("auto", "auto")
    gang = "never" if system in ("one", "ungrouped") else "auto"
    kind = hashlib.sha256(repr((network, size, grids, gang)).encode()).hexdigest()[:8]
    target = settings.cache_dir / "plans" / f"bench-gangs-{kind}-{code_stamp(('serfer.splitter', 'serfer.core'))}"
    if not in_use(target):
        progress(f"splitting {network} for {system}, once: the plan stays in {target.parent}")
        target.parent.mkdir(parents=True, exist_ok=True)
        example = np.zeros((1, _CHANNELS, size, size), dtype=np.float32)
        memory_mb = shipped_aws().functions.memory_per_vcpu
        split(
            network,
            example,
            target,
            grids=grids,
            stages=stages,
            gang=gang,
            memory_mb=memory_mb,
            max_tiles=_WORKERS,
            objective="latency",
            precision="fp32",
            gap="never",
        )
        forget_unused(target.parent)
    return target


def _row(network: str, size: int, system: _System, gang: _System, calibration: _Calibration | None) -> GangTime:
    plan, predicted_ms = system.pipeline.plan, system.predicted_ms
    ratios = np.array(system.ms) / np.array(gang.ms)
    samples = np.random.default_rng(0).choice(ratios, (_RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(samples, axis=1), [0.025, 0.975])
    return GangTime(
        network,
        size,
        system.name,
        _described(plan),
        median_ms=median(system.ms),
        least_ms=min(system.ms),
        gain=float(np.median(ratios)),
        gain_low=float(low),
        gain_high=float(high),
        bytes_stored=median(system.stored),
        wait_ms=median(system.waits),
        predicted_ms=predicted_ms,
        calibrated_ms=calibration.of_plan(plan, predicted_ms) if calibration else None,
    )


def _described(plan: Plan) -> str:
    """Return a plan's grids, a gang's in brackets."""
    steps, gangs = [], {gang.start: gang for gang in plan.gangs}
    for stage, _ in plan.functions:
        gang = gangs.get(stage)
        grids = [str(plan.stages[number].grid) for number in (gang.stages if gang else (stage,))]
        steps.append(f"[{len(grids)} x {grids[0]}]" if gang else grids[0])
    return " ".join(steps)


def command(
    model: Annotated[str, typer.Option(help="A model of the zoo.")] = "resnet50",
    size: Annotated[list[int] | None, typer.Option(help="Height and width of the image; may be repeated.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Queries of each; they take turns.")] = 30,
    invoke_ms: Annotated[float, typer.Option(min=0, help="Milliseconds put into each invocation.")] = 0.0,
    request_ms: Annotated[float, typer.Option(min=0, help="Milliseconds put into each request to the store.")] = 0.0,
    mb_per_s: Annotated[float, typer.Option(min=0, help="MB a second of an environment; 0: no limit.")] = 0.0,
    system: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(SYSTEMS)}; may be repeated. The gang plan is always among them."),
    ] = None,
    directory: RowsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare gangs of two workers with one worker, with plans without gangs, and with their own stages one by one."""
    if unknown := {*(system or ())} - {*SYSTEMS}:
        raise UsageError(f"unknown system {', '.join(sorted(unknown))}: choose from {', '.join(SYSTEMS)}")
    chosen = [name for name in SYSTEMS if not system or name in (*system, "gang")]
    rows: list[GangTime] = []
    with status_line() as progress:
        for pixels in size or [448]:
            latencies = Latencies(invoke_ms, request_ms, mb_per_s * _MB)
            rows += measure(model, pixels, load_settings(), latencies, rounds, chosen, progress)
    publish_rows(rows, directory, as_json=as_json)
