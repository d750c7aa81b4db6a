"""The loads of SerFer's Table 1, at its own driver and worker and at ours, and how each system did (figures 10 to 14).

Baselines are not given more than 100 queries at once, which would take minutes: what they would do is extrapolated,
with as many answers a second, and latencies in proportion to the burst.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

from serfer.settings import Settings
from serfer_bench.core.quantiles import holds, percentiles
from serfer_bench.load.results import Log, Round
from serfer_bench.load.rounds import Plan, measure_rounds
from serfer_bench.load.systems import SERFER, UNSPLIT, Setup, examples, open_systems

SHARES: Final = (5, 10, 25, 50, 75, 90, 95, 99, 100)
"""The quantiles of tables, in percent: points of the paper's distribution functions."""
MEASURED, EXTRAPOLATED = "measured", "extrapolated"
BURST: Final = "burst"
_PUBLISHED, _REPAIRED, _GILLIS = "serfer-published", "serfer-repaired", "gillis"
_FAST = (SERFER, UNSPLIT, _REPAIRED, _GILLIS)
_STEP_FUNCTIONS = ("stepfunctions", "stepfunctions-express")
_ROUNDS = 3
_WARM_UP = 4  # queries for each invocation at once, as in bench/load/measure.py
_PATIENCE_S = 600.0
_MS_PER_S = 1000.0
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Load:
    """A row of Table 1: so many images at once, or one every `gap_s` seconds, to some systems, in so many rounds."""

    images: int
    gap_s: float
    systems: tuple[str, ...]
    rounds: int = 1

    @property
    def traffic(self) -> str:
        return f"one every {self.gap_s:g} s" if self.gap_s else BURST

    @property
    def arrivals(self) -> tuple[tuple[float, ...], ...]:
        return (tuple(number * self.gap_s for number in range(self.images)),) * self.rounds


BURSTS: Final = (
    *(Load(images, 0.0, _FAST, _ROUNDS) for images in (8, 32, 100)),
    *(Load(images, 0.0, (_PUBLISHED,)) for images in (8, 100)),
    *(Load(images, 0.0, (SERFER, UNSPLIT)) for images in (250, 500, 1000)),
)
UNIFORM: Final = (
    Load(8, 1.0, (SERFER, _PUBLISHED, _REPAIRED, _GILLIS)),
    Load(25, 0.2, (SERFER, _REPAIRED, _GILLIS)),
    Load(150, 0.02, (SERFER, _REPAIRED, _GILLIS)),
)
"""The paper's have 1,000 images each."""
STEP_FUNCTIONS: Final = (Load(10, 0.8, _STEP_FUNCTIONS), Load(20, 0.8, _STEP_FUNCTIONS))
"""The paper's have 10 to 1,000 images."""
ONE_BURST: Final = (Load(100, 0.0, (SERFER, _REPAIRED)), Load(100, 0.0, (_PUBLISHED,)))


def limited(loads: Sequence[Load], most: int, systems: Sequence[str]) -> list[Load]:
    kept, seen = [], set[tuple[str, int, str]]()
    for load in loads:
        images = min(load.images, most)
        names = [name for name in load.systems if not systems or name in systems]
        fresh = tuple(name for name in names if (load.traffic, images, name) not in seen)
        seen |= {(load.traffic, images, name) for name in fresh}
        if fresh:
            kept.append(replace(load, images=images, systems=fresh))
    return kept


@dataclass(frozen=True)
class Measured:
    """The rounds of a system at a load, with their queries."""

    load: Load
    system: str
    rounds: Sequence[Round]
    logs: Sequence[Log]


def measure(
    directory: Path, loads: Sequence[Load], concurrency: int, settings: Settings, progress: Progress
) -> list[Measured]:
    setup, measured = Setup("local", concurrency, deadline_s=_PATIENCE_S), []
    inputs = examples(directory, setup)
    names = tuple(dict.fromkeys(name for load in loads for name in load.systems))
    with open_systems(names, directory, setup, settings, progress) as systems:
        measure_rounds(systems, inputs, Plan((), _WARM_UP * concurrency, _PATIENCE_S), progress)
        for load in loads:
            progress(f"{load.traffic}, {load.images} images")
            loaded = [system for system in systems if system.name in load.systems]
            rounds, logs = measure_rounds(loaded, inputs, Plan(load.arrivals, 0, _PATIENCE_S), progress)
            for name in load.systems:
                mine = [one for one in rounds if one.system == name], [log for log in logs if log.system == name]
                measured.append(Measured(load, name, *mine))
    return measured


@dataclass(frozen=True)
class LoadRow:
    """A system under a load: answers a second and in ms the quantiles of all rounds' latencies from scheduled arrivals.

    `of_unsplit` is each round's rate as a share of the unsplit network's under the same load. `timed` queries of all
    rounds were answered; quantiles that so few do not hold are not shown. `failed` ones had no right answer.
    """

    traffic: str
    images: int
    system: str
    figures: str
    a_second: float
    of_unsplit: tuple[float, ...]
    latency_ms: tuple[float, ...]
    timed: int
    failed: int

    @property
    def shown(self) -> dict[str, str]:
        shares = self.of_unsplit
        return {
            "traffic": self.traffic,
            "images": f"{self.images:,}",
            "system": self.system,
            "figures": self.figures,
            "a second": f"{self.a_second:,.2f}",
            "of unsplit": f"{median(shares):.2f}" if shares else "",
            "range": f"{min(shares):.2f} to {max(shares):.2f}" if len(shares) > 1 else "",
            **{
                f"{share}% ms": f"{ms:,.0f}" if holds(self.timed, share) else ""
                for share, ms in zip(SHARES, self.latency_ms, strict=True)
            },
            "failed": f"{self.failed}",
        }


def load_rows(measured: Sequence[Measured]) -> list[LoadRow]:
    unsplit = {
        (one.load.traffic, one.load.images): [each.throughput for each in one.rounds]
        for one in measured
        if one.system == UNSPLIT
    }
    rows = [_load_row(one, unsplit.get((one.load.traffic, one.load.images), ())) for one in measured]
    bursts = [row for row in rows if row.traffic == BURST]
    bursts += _extrapolated(bursts)
    return [*sorted(bursts, key=lambda row: row.images), *(row for row in rows if row.traffic != BURST)]


def _load_row(one: Measured, unsplit: Sequence[float]) -> LoadRow:
    """Compare round with round, or with the median of the unsplit network's where they are not as many."""
    rates = [each.throughput for each in one.rounds]
    bases = unsplit if len(unsplit) == len(rates) else [median(unsplit)] * len(rates) if unsplit else []
    times = [query.latency * _MS_PER_S for log in one.logs for query in log.queries if query.error is None]
    return LoadRow(
        one.load.traffic,
        one.load.images,
        one.system,
        MEASURED,
        median(rates),
        tuple(rate / base for rate, base in zip(rates, bases, strict=False)),
        tuple(percentiles(times, *SHARES)),
        len(times),
        sum(each.sent - each.answered for each in one.rounds),
    )


def _extrapolated(bursts: Sequence[LoadRow]) -> Iterator[LoadRow]:
    for system in dict.fromkeys(row.system for row in bursts):
        largest = max((row for row in bursts if row.system == system), key=lambda row: row.images)
        for images in sorted({row.images for row in bursts if row.images > largest.images}):
            times = tuple(ms * images / largest.images for ms in largest.latency_ms)
            yield replace(largest, images=images, figures=EXTRAPOLATED, of_unsplit=(), latency_ms=times, failed=0)
