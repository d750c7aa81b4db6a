"""Gangs of n members against everything else that n processors allow: one worker, n threads, plans without gangs.

    one        the network in one function of one vCPU
    threads    the network in one function of n vCPUs, which computes on n threads
    ungrouped  the best plan without gangs, of at most n tiles a stage, which may be one function
    stages     the fastest plan without gangs whose stages have n tiles, on n functions of one vCPU, wherever they can
    staged     the gang plan's stages, one by one
    gang       a plan with a gang of n members, of one vCPU each

Queries take turns, one at a time, over local workers and a Redis server. All systems have the same n processors: the
process, and with it the workers, the driver and the store, is bound to them, to fewer where the machine has fewer. A
function of Lambda has at most 10,240 MB, 5.8 vCPUs: with n of 6 and more `threads` is what no function has. AWS's
latencies can be put in (`--latencies 30,0.5,75`): each invocation then begins 30 ms late, each request to the store
waits 0.5 ms, and its bytes flow at 75 MB/s: requests at the same time, as a driver's for all crops, do not share that.
"""

from __future__ import annotations

import hashlib
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer

from serfer.build_cache import forget_unused, in_use
from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.costs.aws import AwsFacts
from serfer.core.costs.cost_model import MEASURED_MEMBERS
from serfer.core.errors import ModelError, UsageError, WrongAnswerError
from serfer.core.exactness import TOLERANCE, difference
from serfer.core.plan import Plan, explained
from serfer.local.servers.redis import RedisServer
from serfer.packaging.bundle import code_stamp
from serfer.pipeline.blocking import Pipeline
from serfer.plan_directory import file_sha256, load_plan
from serfer.settings import Settings, load_settings
from serfer.splitter.split import split
from serfer.storage.faults import wrapped_url
from serfer.wiring.open_pipeline import open_pipeline
from serfer_bench.core.faults import Faults, injected
from serfer_bench.core.options import RowsOption
from serfer_bench.core.results import publish_rows

_MS_PER_S = 1000.0
_MB = 1e6
_WARM_UP = 3
_RESAMPLES = 2000
_CHANNELS = 3
_NONE = "none"
_NETWORK, _SIZE = "resnet50", 448
_MOST_MEMBERS = 64
SYSTEMS = ("one", "threads", "ungrouped", "stages", "staged", "gang")
_WITH_GANG = ("staged", "gang")
_OPTIONS: dict[str, Any] = {
    "objective": "latency",
    "cold_share": 0.0,  # all queries are warm
    "account": "default",
    "precision": "fp32",
    "gap": "never",
}

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Latencies:
    """What is put in: milliseconds of an invocation and of a request to the store, bytes a second (0: no limit)."""

    invoke_ms: float = 0.0
    request_ms: float = 0.0
    bytes_per_s: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Latencies:
        if text == _NONE:
            return cls()
        try:
            invoke_ms, request_ms, mb_per_s = (_put_in(float(part)) for part in text.split(","))
        except ValueError as error:
            form = f"{_NONE} or INVOKE_MS,REQUEST_MS,MB_PER_S, as 30,0.5,75"
            raise UsageError(f"--latencies is {form}, not {text!r:.60}") from error
        return cls(invoke_ms, request_ms, mb_per_s * _MB)

    def __str__(self) -> str:
        if self == Latencies():
            return _NONE
        flow = f"{self.bytes_per_s / _MB:g} MB/s" if self.bytes_per_s else "no limit"
        return f"{self.invoke_ms:g} ms, {self.request_ms:g} ms, {flow}"


def _put_in(value: float) -> float:
    if not 0 <= value < math.inf:
        raise ValueError(value)
    return value


@dataclass(frozen=True)
class GangTime:
    """Queries of one image through one system; `gain` is its time over the gang plan's, of queries side by side.

    `members` are those of the gang, `processors` what every system had, driver and store included. Milliseconds are
    wall time, `gain` the median of the pairs with its 95% interval (bootstrap); bytes go through the store, both ways,
    in the median; `predicted_ms` is the plan's own prediction, with AWS's latencies, `calibrated_ms` the same with
    compute as much slower as the network in one function was here (None without that system, and for
    several threads): alone for stages of one tile, beside as many queries as there are members for those of several,
    which compute at the same time. `wait_ms` are all members' together.
    """

    network: str
    size: int
    latencies: str
    members: int
    processors: int
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
        return {
            "network": f"{self.network} {self.size}",
            "latencies put in": self.latencies,
            "members": str(self.members),
            "processors": str(self.processors),
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


class _AnyMemory(Settings):
    """Settings by which a function may have any memory, and with it any number of threads."""

    def facts(self) -> AwsFacts:
        facts = super().facts()
        memory_max = _MOST_MEMBERS * facts.functions.memory_per_vcpu
        return replace(facts, functions=replace(facts.functions, memory_max=memory_max))


@contextmanager
def bound_to(count: int) -> Iterator[int]:
    whole = os.sched_getaffinity(0)
    some = sorted(whole)[:count]
    os.sched_setaffinity(0, some)
    try:
        yield len(some)
    finally:
        os.sched_setaffinity(0, whole)


def measure(
    network: str,
    size: int,
    members: int,
    settings: Settings,
    latencies: Latencies,
    rounds: int,
    chosen: Sequence[str] = SYSTEMS,
    progress: Progress = lambda _: None,
) -> list[GangTime]:
    """Run a network at `size` x `size` through `chosen` systems `rounds` times, in turn, after some rounds to warm up.

    The last system, a gang of so many `members`, is what the others are compared with. Raises ModelError where the
    network has no such gang.
    """
    wide = _AnyMemory(**{**dict(settings), "local_concurrency": max(settings.local_concurrency, members)})
    plans = {name: _plan(network, size, members, name, wide, progress) for name in chosen}
    with ExitStack() as stack:
        processors = stack.enter_context(bound_to(members))
        systems = _opened(plans, wide, latencies, stack, progress)
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
        progress(f"{members} queries at once")
        calibration = _Calibration.of(systems[0], image, members, rounds) if systems[0].name == "one" else None
        of = (network, size, str(latencies), members, processors)
        return [_row(of, system, systems[-1], calibration) for system in systems]


def _image(plan: Plan) -> np.ndarray:
    random, shape = np.random.default_rng(0), plan.input
    if plan.preprocess is None:
        return random.standard_normal((1, shape.channels, shape.height, shape.width), np.float32)
    return random.integers(0, 256, (1, shape.height, shape.width, shape.channels), np.uint8)


def _opened(
    plans: dict[str, Path], settings: Settings, latencies: Latencies, stack: ExitStack, progress: Progress
) -> list[_System]:
    url = stack.enter_context(RedisServer()).url
    if latencies.request_ms or latencies.bytes_per_s:
        ms, bytes_per_s = latencies.request_ms, latencies.bytes_per_s
        url = wrapped_url("delay", url, put_ms=ms, get_ms=ms, bytes_per_s=bytes_per_s)
    faults = Faults(latency_s=latencies.invoke_ms / _MS_PER_S) if latencies.invoke_ms else None
    systems = []
    for name, directory in plans.items():
        progress(f"starting {name}")
        gangs = "never" if name == "staged" else "planned"
        with injected(faults):
            pipeline = open_pipeline(directory, store=url, workers="local", gangs=gangs, settings=settings, hedge=False)
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
    def of(cls, one: _System, image: np.ndarray, members: int, rounds: int) -> _Calibration:
        together = []
        for _ in range(_WARM_UP + rounds):
            started = time.perf_counter()
            for query in [one.pipeline.submit(image) for _ in range(members)]:
                query.result()
            together.append((time.perf_counter() - started) * _MS_PER_S)
        compute_ms = sum(_compute_ms(one.pipeline.plan))
        return cls(*(1 + (median(ms) - one.predicted_ms) / compute_ms for ms in (one.ms, together[_WARM_UP:])))

    def of_plan(self, plan: Plan, predicted_ms: float) -> float:
        alone, together = _compute_ms(plan)
        return predicted_ms + (self.alone - 1) * alone + (self.together - 1) * together


def _plan(network: str, size: int, members: int, system: str, settings: Settings, progress: Progress) -> Path:
    facts = settings.facts()
    vcpus = members if system == "threads" else 1
    shapes: dict[str, dict[str, Any]] = {
        "one": {"grids": "1", "stages": 1, "gang": "never"},
        "threads": {"grids": "1", "stages": 1, "gang": "never"},
        "ungrouped": {"gang": "never", "max_tiles": members},
        "stages": {"gang": "never", "grids": _grid(members)},
    }
    of_gang = {"grids": _grid(members), "gang": "always", "gang_width": members}
    options = {**_OPTIONS, "memory_mb": vcpus * facts.functions.memory_per_vcpu, **shapes.get(system, of_gang)}
    file = file_sha256(Path(network)) if Path(network).is_file() else ""
    kind = hashlib.sha256(repr((network, file, size, sorted(options.items()))).encode()).hexdigest()[:8]
    target = settings.cache_dir / "plans" / f"bench-gangs-{kind}-{code_stamp(('serfer.splitter', 'serfer.core'))}"
    if not in_use(target):
        progress(f"splitting {network} for {system}, once: the plan stays in {target.parent}")
        target.parent.mkdir(parents=True, exist_ok=True)
        example = np.zeros((1, _CHANNELS, size, size), dtype=np.float32)
        try:
            split(network, example, target, facts=facts, **options)
        except ModelError as error:
            what = f"{network} at {size} px cannot be the system {system}, of {options['memory_mb']:,} MB a function"
            raise ModelError(f"{what} ({error}): choose a smaller --size, or other systems") from error
        forget_unused(target.parent)
    if system in _WITH_GANG and load_plan(target).widest_gang != members:
        raise ModelError(f"{network} at {size} px has no gang of {members} members: give a larger --size")
    return target


def _grid(members: int) -> str:
    """Return the grid of so many tiles that is nearest to a square, with at least as many rows as columns."""
    columns = next(number for number in range(math.isqrt(members), 0, -1) if members % number == 0)
    return f"{members // columns}x{columns}"


def _row(
    of: tuple[str, int, str, int, int], system: _System, gang: _System, calibration: _Calibration | None
) -> GangTime:
    plan, predicted_ms = system.pipeline.plan, system.predicted_ms
    ratios = np.array(system.ms) / np.array(gang.ms)
    samples = np.random.default_rng(0).choice(ratios, (_RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(samples, axis=1), [0.025, 0.975])
    calibrated = None
    if calibration is not None and system.name != "threads":
        calibrated = calibration.of_plan(plan, predicted_ms)
    return GangTime(
        *of,
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
        calibrated_ms=calibrated,
    )


def _described(plan: Plan) -> str:
    steps, gangs = [], {gang.start: gang for gang in plan.gangs}
    for stage, _ in plan.functions:
        gang = gangs.get(stage)
        grids = [str(plan.stages[number].grid) for number in (gang.stages if gang else (stage,))]
        steps.append(f"[{len(grids)} x {grids[0]}]" if gang else grids[0])
    return " ".join(steps)


def command(
    model: Annotated[
        list[str] | None,
        typer.Option(help=f"A model of the zoo, or an .onnx file; may be repeated. By default {_NETWORK}."),
    ] = None,
    size: Annotated[
        list[int] | None, typer.Option(help=f"Height and width of the image; may be repeated. By default {_SIZE}.")
    ] = None,
    gang_width: Annotated[
        list[int] | None,
        typer.Option(
            min=MEASURED_MEMBERS,
            max=_MOST_MEMBERS,
            help="Members of the gang, and processors; may be repeated. By default 2.",
        ),
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Queries of each; they take turns.")] = 30,
    latencies: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INVOKE_MS,REQUEST_MS,MB_PER_S",
            help="Milliseconds put into each invocation and into each request to the store, and MB a second of that "
            "(0: no limit), as 30,0.5,75; none, by default, puts nothing in. May be repeated.",
        ),
    ] = None,
    system: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(SYSTEMS)}; may be repeated. The gang plan is always among them."),
    ] = None,
    directory: RowsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare gangs with one worker, with as many threads, with plans without gangs, and with their stages alone."""
    if unknown := {*(system or ())} - {*SYSTEMS}:
        raise UsageError(f"unknown system {', '.join(sorted(unknown))}: choose from {', '.join(SYSTEMS)}")
    chosen = [name for name in SYSTEMS if not system or name in (*system, "gang")]
    delays = [Latencies.parse(text) for text in latencies or [_NONE]]
    settings, rows = load_settings(), list[GangTime]()
    cases = product(model or [_NETWORK], size or [_SIZE], gang_width or [MEASURED_MEMBERS], delays)
    with status_line() as progress:
        for network, pixels, members, put_in in cases:
            rows += measure(network, pixels, members, settings, put_in, rounds, chosen, progress)
    publish_rows(rows, directory, as_json=as_json, notes=_shared(rows))


def _shared(rows: Sequence[GangTime]) -> list[str]:
    short = {row.members: row.processors for row in rows if row.processors < row.members}
    return [
        f"members: {members}, processors: {processors}: they took turns, and these rows do not show what {members} "
        "processors would do"
        for members, processors in short.items()
    ]
