"""LSTH against the hybrid histogram policy and fixed keep-alive windows, on loads of weeks: INFless' figure 16.

The published figures are INFless' (section 5.2, figure 16): 21.9% fewer cold starts than the hybrid histogram policy,
and 24.3% less idle waste. INFless describes that policy with idle times of the last four hours; its authors remember
two weeks. So both are run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Annotated, Final

import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.control.windows import window_policies
from serfer.core.units import MS_PER_S
from serfer.settings import load_settings
from serfer_bench.core.charts import Chart, Curve
from serfer_bench.core.drawing import draw_charts
from serfer_bench.core.options import RowsOption
from serfer_bench.core.results import publish_rows
from serfer_bench.core.traces import end_skipped, skipped, split_missing
from serfer_bench.study.sim.simulate import LoadSpec
from serfer_bench.study.sim.warm_state import WarmState, warm_state

LSTH: Final = ("lsth:gamma=0.3", "lsth:gamma=0.5", "lsth:gamma=0.7")
AS_INFLESS, AS_AUTHORS = "hybrid:hours=4", "hybrid"
FIXED: Final = ("60", "300", "600", "1800", "3600")
POLICIES: Final = (*LSTH, AS_AUTHORS, AS_INFLESS, *FIXED)
GENERATED: Final = ("sporadic", "periodic", "bursty-days")
PUBLISHED: Final = "published: 21.9% fewer cold starts than the hybrid histogram policy, 24.3% less idle waste"
_NAMED_FIXED: Final = "fixed keep-alive"
_S_PER_HOUR: Final = 3600.0


@dataclass(frozen=True)
class WindowsRow:
    """What a policy did with a load: uses of instances that began, how many cold, and instance-hours.

    On Lambda there are `pings`, and uses that start cold all the same. The last four are its cold starts and idle hours
    over those of the hybrid histogram policy, less 1, as INFless describes that one and as its authors do; None where
    there are none.
    """

    load: str
    policy: str
    uses: int
    cold: int
    cold_share: float
    loads: int
    idle_h: float
    busy_h: float
    pings: int
    cold_on_lambda: int
    cold_by_infless: float | None
    idle_by_infless: float | None
    cold_by_authors: float | None
    idle_by_authors: float | None

    @property
    def shown(self) -> dict[str, str]:
        return {
            "load": self.load,
            "windows": self.policy,
            "uses": f"{self.uses:,}",
            "cold": f"{self.cold:,}",
            "share": f"{self.cold_share:.1%}",
            "idle h": f"{self.idle_h:,.0f}",
            "busy h": f"{self.busy_h:,.0f}",
            "pings": f"{self.pings:,}",
            "cold on Lambda": f"{self.cold_on_lambda / max(self.uses, 1):.1%}",
            f"cold by {AS_INFLESS}": _change(self.cold_by_infless),
            f"idle by {AS_INFLESS}": _change(self.idle_by_infless),
            f"cold by {AS_AUTHORS}": _change(self.cold_by_authors),
            f"idle by {AS_AUTHORS}": _change(self.idle_by_authors),
        }


def run(
    load: LoadSpec, seeds: Iterable[int], latency_ms: float, policies: Sequence[str], kept_s: float = 300.0
) -> list[WindowsRow]:
    traces = [load.read(seed) for seed in (seeds if load.is_seeded else (0,))]
    found = {
        policy: _added([warm_state(trace, window_policies(policy), latency_ms, kept_s) for trace in traces])
        for policy in policies
    }
    name = Path(load.name).stem
    return [_row(name, one, found.get(AS_INFLESS), found.get(AS_AUTHORS)) for one in found.values()]


def _added(states: Sequence[WarmState]) -> WarmState:
    return WarmState(
        states[0].policy,
        sum(one.uses for one in states),
        sum(one.cold for one in states),
        sum(one.loads for one in states),
        math.fsum(one.idle_s for one in states),
        math.fsum(one.busy_s for one in states),
        sum(one.pings for one in states),
        sum(one.cold_on_lambda for one in states),
    )


def _row(load: str, one: WarmState, infless: WarmState | None, authors: WarmState | None) -> WindowsRow:
    return WindowsRow(
        load,
        one.policy,
        one.uses,
        one.cold,
        one.cold / max(one.uses, 1),
        one.loads,
        one.idle_s / _S_PER_HOUR,
        one.busy_s / _S_PER_HOUR,
        one.pings,
        one.cold_on_lambda,
        _relative(one.cold, infless.cold if infless else None),
        _relative(one.idle_s, infless.idle_s if infless else None),
        _relative(one.cold, authors.cold if authors else None),
        _relative(one.idle_s, authors.idle_s if authors else None),
    )


def _relative(value: float, other: float | None) -> float | None:
    return value / other - 1 if other else None


def _change(value: float | None) -> str:
    return "-" if value is None else f"{value:+.1%}"


def notes(rows: Sequence[WindowsRow]) -> Iterator[str]:
    yield PUBLISHED
    for policy in dict.fromkeys(one.policy for one in rows if one.policy.startswith("lsth")):
        mine = [one for one in rows if one.policy == policy]
        both = sum(1 for one in mine if (one.cold_by_infless or 0) < 0 and (one.idle_by_infless or 0) < 0)
        yield (
            f"{policy}: cold starts {_mean(one.cold_by_infless for one in mine)}, idle "
            f"{_mean(one.idle_by_infless for one in mine)} by {AS_INFLESS}, both lower on {both} of {len(mine)} loads; "
            f"{_mean(one.cold_by_authors for one in mine)} and {_mean(one.idle_by_authors for one in mine)} by "
            f"{AS_AUTHORS} (means over the loads)"
        )


def _mean(changes: Iterable[float | None]) -> str:
    known = [one for one in changes if one is not None]
    return _change(fmean(known)) if known else "-"


def charts(rows: Sequence[WindowsRow]) -> list[Chart]:
    made = []
    for load in dict.fromkeys(one.load for one in rows):
        points = {one.policy: _point(one) for one in rows if one.load == load}
        fixed = sorted(point for policy, point in points.items() if policy in FIXED)
        curves = [Curve(_NAMED_FIXED, tuple(fixed))] if fixed else []
        curves += [Curve(policy, (point,)) for policy, point in points.items() if policy not in FIXED]
        made.append(Chart(load, "idle instance-hours for each busy one", "% of starts cold", tuple(curves)))
    return made


def _point(one: WindowsRow) -> tuple[float, float]:
    return one.idle_h / max(one.busy_h, 1e-9), 100.0 * one.cold_share


def _legend(rows: Sequence[WindowsRow]) -> Iterator[str]:
    if any(one.policy in FIXED for one in rows):
        yield f"{_NAMED_FIXED} of {', '.join(FIXED)} s, from the left"
    yield from dict.fromkeys(one.policy for one in rows if one.policy not in FIXED)


def command(
    *,
    trace: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOAD", help="In place of the generated loads: as serfer study simulate takes it; may be repeated."
        ),
    ] = None,
    policy: Annotated[
        list[str] | None,
        typer.Option(help="lsth:gamma=N, hybrid:hours=N, seconds, MODULE:Class; may be repeated. By default ten."),
    ] = None,
    latency_ms: Annotated[float, typer.Option(min=1, max=1e6, help="For which a query uses an instance.")] = 200.0,
    seed: Annotated[int, typer.Option(min=0, help="The first of the generated loads.")] = 0,
    seeds: Annotated[int, typer.Option(min=1, max=100, help="Loads of each generator, added up.")] = 5,
    skip_zeros_over: Annotated[
        float, typer.Option(help="Cut out times of traces without queries of at least so many seconds.")
    ] = math.inf,
    picture: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw cold starts over idle waste (.png, .svg or .pdf).")
    ] = None,
    directory: RowsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run LSTH, the hybrid histogram policy and fixed windows on generated loads of two weeks, or on traces."""
    chosen = tuple(policy or POLICIES)
    for name in chosen:
        window_policies(name)  # says what is wrong with it
    kept_s = load_settings().facts().functions.kept_warm
    here, missing = split_missing(trace or ())
    loads = [LoadSpec(name, skip_zeros_over_s=skip_zeros_over) for name in (here if trace else GENERATED)]
    if not loads:
        end_skipped(skipped(missing))
    rows: list[WindowsRow] = []
    with status_line() as progress:
        for load in loads:
            progress(Path(load.name).stem)
            rows += run(load, range(seed, seed + seeds), latency_ms, chosen, kept_s)
    stamp = publish_rows(rows, directory, as_json=as_json, notes=[*notes(rows), *skipped(missing)])
    if picture is not None:
        below = [f"a query uses an instance for {latency_ms / MS_PER_S:g} s; {PUBLISHED}", *stamp.lines]
        draw_charts("Cold starts and idle waste of windows", charts(rows), [*_legend(rows)], below, picture)
