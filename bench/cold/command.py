"""`serfer bench cold`: cold starts part by part against the cost model's, first answers, and those of two plans."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Annotated

import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.costs.cold_starts import ColdStart, cold_start
from serfer.core.errors import UsageError
from serfer.core.plan import Plan
from serfer.core.units import MS_PER_S
from serfer.local.servers.redis import RedisServer
from serfer.plan_directory import load_plan
from serfer.settings import Settings, load_settings
from serfer.storage import open_store
from serfer_bench.cold import page_cache
from serfer_bench.cold.functions import (
    PROCESS,
    RESPONSE,
    SECOND,
    SECOND_SESSION,
    Bench,
    FunctionStart,
    measure_functions,
)
from serfer_bench.cold.pairs import Pairs, alone, measure_pairs, other_plan, paired_plan
from serfer_bench.cold.query import DRIVER, OVERLAPPED, FirstAnswer, measure_first_answer
from serfer_bench.core.options import PlanOption, RowsOption, StoreOption, network
from serfer_bench.core.results import publish_rows
from serfer_bench.core.tables import Table

STARTING, FETCHING, SESSIONS, FIRST_RUN = "process and imports", "fetching", "graphs and sessions", "first run"
BY_BYTES = FETCHING, SESSIONS, FIRST_RUN


@dataclass(frozen=True)
class MeasuredStart:
    """The median seconds of a function's cold start by part, and the bytes of its weights.

    `FIRST_RUN` is what the first run takes above a warm one.
    """

    weight_bytes: int
    seconds: Mapping[str, float]


def predicted_by_others(others: Sequence[MeasuredStart], weight_bytes: int) -> dict[str, float]:
    """Predict the seconds of each part of a function with so many bytes of weights; empty where others say nothing.

    The cost model predicts Lambda, where a process starts in `lambda.init` seconds, which is an assumption (aws.toml).
    What can be checked on another machine is the model's form: a start that is the same for every function, and parts
    in proportion to the bytes of weights. So each function is predicted by the median start of the others that were
    measured, and by their seconds a byte; its own measurements are not used.
    """
    total = sum(other.weight_bytes for other in others)
    if not others:
        return {}
    parts = {STARTING: median(other.seconds[STARTING] for other in others)}
    if total:
        parts |= {part: weight_bytes / total * sum(other.seconds[part] for other in others) for part in BY_BYTES}
    return parts


Progress = Callable[[str], None]
_MB = 1e6
QUERY = "query"
WHOLE = "all parts"
_STARTING = (
    *(PROCESS, "runtime", "own code", "logger", "store client", "numpy", "onnxruntime"),
    *("plan", "store"),
)
_SESSIONS = "graphs", "sessions"
_ORDER = (*_STARTING, "weights", *_SESSIONS, "run", "task", RESPONSE, DRIVER, OVERLAPPED)
_MODELLED = {STARTING: _STARTING, FETCHING: ("weights",), SESSIONS: _SESSIONS, FIRST_RUN: ("run",)}


@dataclass(frozen=True)
class PartTime:
    """Milliseconds of a part of a function's cold start, or of the first answer of a query: the median of `rounds`.

    `predicted_ms` is the cost model's for Lambda, of the parts that it knows; `here_ms` is what the plan's other
    functions predict on this machine.
    """

    function: str
    part: str
    ms: float
    least_ms: float
    greatest_ms: float
    rounds: int
    predicted_ms: float | None = None
    here_ms: float | None = None

    @property
    def shown(self) -> dict[str, str]:
        predicted = "" if self.predicted_ms is None else f"{self.predicted_ms:,.0f}"
        cells = {"ms": self.ms, "from": self.least_ms, "to": self.greatest_ms}
        shown = {name: f"{value:,.1f}" for name, value in cells.items()}
        here = "" if self.here_ms is None else f"{self.here_ms:,.0f}"
        return {
            "function": self.function,
            "part": self.part,
            **shown,
            "predicted ms": predicted,
            "by other functions ms": here,
        }


def measure(bench: Bench, rounds: int, progress: Progress = lambda _: None) -> tuple[list[PartTime], str]:
    starts: dict[tuple[int, int], list[FunctionStart]] = defaultdict(list)
    answers: list[FirstAnswer] = []
    for number in range(rounds):
        progress(f"round {number + 1} of {rounds}: every function by itself")
        for part, start in asyncio.run(measure_functions(bench)).items():
            starts[part].append(start)
        progress(f"round {number + 1} of {rounds}: the first answer of all")
        answers.append(asyncio.run(measure_first_answer(bench)))
    measured = {part: _medians(bench, part, [one.parts for one in each]) for part, each in starts.items()}
    rows: list[PartTime] = []
    for part, each in starts.items():
        others = [one for other, one in measured.items() if other != part]
        here = predicted_by_others(others, measured[part].weight_bytes)
        rows += _function_rows(bench, part, [one.parts for one in each], here)
    done = {each.page_cache for ones in starts.values() for each in ones}
    return [*rows, *_query_rows(answers)], " and ".join(sorted(done))


def _medians(bench: Bench, part: tuple[int, int], starts: Sequence[Mapping[str, float]]) -> MeasuredStart:
    weights = weight_bytes(bench.plan, part)
    return MeasuredStart(weights, {title: median(_seconds(title, starts)) for title in _MODELLED})


def _seconds(title: str, starts: Sequence[Mapping[str, float]]) -> list[float]:
    """Return what a part that is modelled took in each start, above what a warm invocation takes of it too."""
    keys = _MODELLED[title]
    return [sum(start.get(key, 0.0) for key in keys) - _warm(start, keys) for start in starts]


def _function_rows(
    bench: Bench, part: tuple[int, int], starts: Sequence[Mapping[str, float]], here: Mapping[str, float]
) -> list[PartTime]:
    name = ".".join(map(str, part))
    predicted = predict(bench.plan, part, bench.settings)
    on_lambda = {STARTING: predicted.process, FETCHING: predicted.fetching, SESSIONS: predicted.sessions}
    added = [_row(name, each, _seconds(each, starts), on_lambda.get(each), here.get(each)) for each in _MODELLED]
    whole = [sum(start.get(key, 0.0) for key in _ORDER) for start in starts]
    cold = [seconds - start[SECOND] for seconds, start in zip(whole, starts, strict=True)]
    return [
        *(_row(name, each, [start.get(each, 0.0) for start in starts]) for each in _parts(starts)),
        _row(name, WHOLE, whole),
        *added,
        _row(name, "cold start", cold, predicted.seconds - predicted.package),  # nothing here copies a package
        _row(name, SECOND, [start[SECOND] for start in starts]),
    ]


def _warm(start: Mapping[str, float], keys: Sequence[str]) -> float:
    return start[SECOND_SESSION] if "run" in keys else 0.0


def _query_rows(answers: Sequence[FirstAnswer]) -> list[PartTime]:
    parts = [answer.parts for answer in answers]
    return [
        *(_row(QUERY, each, [part.get(each, 0.0) for part in parts]) for each in _parts(parts)),
        _row(QUERY, "first answer", [answer.seconds for answer in answers]),
        _row(QUERY, "second answer", [answer.second for answer in answers]),
    ]


def _parts(measured: Sequence[Mapping[str, float]]) -> list[str]:
    seen = {key for each in measured for key in each}
    return [key for key in _ORDER if key in seen]


def _row(
    function: str, part: str, seconds: Sequence[float], predicted: float | None = None, here: float | None = None
) -> PartTime:
    ms = [MS_PER_S * each for each in seconds]
    modelled = [None if each is None else MS_PER_S * each for each in (predicted, here)]
    return PartTime(function, part, median(ms), min(ms), max(ms), len(ms), *modelled)


def predict(plan: Plan, part: tuple[int, int], settings: Settings) -> ColdStart:
    return cold_start(weight_bytes(plan, part), plan.stages[part[0]].weights_in, settings.facts().functions)


def weight_bytes(plan: Plan, part: tuple[int, int]) -> int:
    start, number = part
    gang = plan.gang_of(start)
    stages = [plan.stages[stage] for stage in (gang.stages if gang else [start])]
    return sum(stage.functions[min(number, len(stage.functions) - 1)].weights.bytes for stage in stages)


def table(rows: Sequence[PartTime]) -> Table:
    functions = [*dict.fromkeys(row.function for row in rows)]
    cells = {(row.part, row.function): row for row in rows}
    parts = [*dict.fromkeys(row.part for row in rows)]
    body = [[part, *(_cell(cells.get((part, function))) for function in functions)] for part in parts]
    return Table(["ms", *functions], body)


def _cell(row: PartTime | None) -> str:
    if row is None:
        return ""
    known = {"predicted": row.predicted_ms, "by others": row.here_ms}
    beside = "".join(f", {name} {_with_error(value, row.ms)}" for name, value in known.items() if value is not None)
    return f"{row.ms:,.1f} ({row.least_ms:,.1f} to {row.greatest_ms:,.1f}{beside})"


def _with_error(predicted_ms: float, ms: float) -> str:
    return f"{predicted_ms:,.0f}" + (f" {predicted_ms / ms - 1:+.0%}" if ms > 1 else "")


def command(
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="A fixed plan of bench/core/plans.py, or else a model of the zoo. With --pairs one of the zoo, which "
            "may be repeated: its plan with weights fetched, and a cold plan of four environments.",
        ),
    ] = None,
    plan: PlanOption = None,
    rounds: Annotated[int, typer.Option(min=1, help="Cold starts of each function; functions take turns.")] = 5,
    store: StoreOption = None,
    page_cache_mode: Annotated[
        str,
        typer.Option(
            "--page-cache",
            help="What is dropped before each start: files (of the function and the runtime), all (takes root), kept.",
        ),
    ] = page_cache.FILES,
    pairs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Measure first answers of the plan and of its cold plan instead, in so many alternated pairs."
        ),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="With --pairs: another plan of the network, instead of the cold plan.")
    ] = None,
    fetch_mb_per_s: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            help="MB a second at which an environment fetches weights, 75 on Lambda; else SERFER_LOCAL_FETCH_RATE.",
        ),
    ] = None,
    directory: RowsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Measure cold starts part by part in fresh processes, against those predicted, and first answers of plans."""
    if page_cache_mode not in page_cache.MODES:
        raise UsageError(f"--page-cache is {', '.join(page_cache.MODES)}, not {page_cache_mode!r}")
    if pairs is None and (against is not None or len(model or ()) > 1):
        raise UsageError("--against, and several of --model, are for first answers of two plans: give --pairs too")
    if plan is not None and model:
        raise UsageError("give --plan or --model, not both")
    settings = load_settings()
    if fetch_mb_per_s is not None:
        settings = settings.model_copy(update={"local_fetch_rate": fetch_mb_per_s * _MB})
    with status_line() as progress, ExitStack() as stack:
        url = store or stack.enter_context(RedisServer()).url
        opened = stack.enter_context(open_store(url))

        def bench(found: Path) -> Bench:
            return Bench(load_plan(found), found, opened, url, settings, page_cache_mode)

        if pairs is None:
            measured = bench(network(next(iter(model or ()), None), plan, settings, progress))
            rows, dropped = measure(alone(measured), rounds, progress)
        else:
            found = [paired_plan(name, settings, progress) for name in model or ()] or [
                network(None, plan, settings, progress)
            ]
            compared = [_compared(bench(place), against, pairs, progress) for place in found]
    if pairs is not None:
        answers = [row for each in compared for row in each.rows]
        rate = settings.local_fetch_rate
        held = f"environments fetch at {rate / _MB:g} MB/s at most" if rate else "fetching is not held to a rate"
        said = dict.fromkeys(note for each in compared for note in each.notes)
        publish_rows(answers, directory, as_json=as_json, notes=[*said, held])
        return
    notes = [
        f"page cache: {dropped}",
        f"{len(measured.plan.functions)} functions, each started {rounds} times",
        "predicted: the cost model's, for Lambda, whose start of a process is an assumption",
        "by others: on this machine, from the plan's other functions, by the bytes of their weights",
    ]
    publish_rows(rows, directory, as_json=as_json, table=table(rows), notes=notes)


def _compared(bench: Bench, against: Path | None, pairs: int, progress: Progress) -> Pairs:
    other, place = other_plan(bench.directory, bench.plan, against)
    return measure_pairs(bench, replace(bench, plan=other, directory=place), pairs, progress)
