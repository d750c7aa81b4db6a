"""Whether two results of the same load differ: paired rounds, Student's interval of their mean difference.

Round k of one is paired with round k of the other. The differences of a pair are taken for independent and about
normal; with the few rounds that a load has, that says more than a bootstrap, whose intervals are then too narrow.
Results of two runs were not measured in turn: what changed on the machine in between is in the difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import typer
from scipy.special import stdtrit

from serfer.cli.shared.options import JsonOption
from serfer.cli.shared.terminal import complain
from serfer.core.errors import InputError
from serfer_bench.core.tables import Results, Table, publish
from serfer_bench.load.results import Result, Round, read_result

_MIN_PAIRS = 2


@dataclass(frozen=True)
class Difference:
    """A figure of a system before and after, means of `pairs` rounds, and the interval of after less before.

    `low` and `high` are infinite where there are too few rounds to say.
    """

    system: str
    figure: str
    pairs: int
    before: float
    after: float
    low: float
    high: float

    @property
    def real(self) -> bool:
        return not self.low <= 0 <= self.high

    @property
    def verdict(self) -> str:
        if self.pairs < _MIN_PAIRS:
            return "too few rounds to say"
        if not self.real:
            return "no difference shown"
        return "more" if self.low > 0 else "less"

    def as_dict(self) -> dict[str, Any]:
        values = {**asdict(self), "real": self.real, "verdict": self.verdict}
        return {name: None if value in (math.inf, -math.inf) else value for name, value in values.items()}


def _p50(one: Round) -> float | None:
    return one.latency.p50 if one.latency else None


def _p99(one: Round) -> float | None:
    return one.latency.p99 if one.latency else None


FIGURES: dict[str, Callable[[Round], float | None]] = {
    "p50 latency, ms": _p50,
    "p99 latency, ms": _p99,
    "answers a second": lambda one: one.throughput,
    "bytes a query": lambda one: one.bytes_per_query,
    "failed queries": lambda one: float(one.sent - one.answered),
}


def compare(before: Result, after: Result, confidence: float = 0.95) -> list[Difference]:
    _check_same_work(before, after)
    differences = []
    for title, one, other in _systems(before, after):
        for figure, value in FIGURES.items():
            pairs = [(value(a), value(b)) for a, b in _paired(before.of(one), after.of(other))]
            known = [(a, b) for a, b in pairs if a is not None and b is not None]
            if known:
                differences.append(difference(title, figure, known, confidence))
    return differences


def difference(system: str, figure: str, pairs: Sequence[tuple[float, float]], confidence: float) -> Difference:
    changes = [after - before for before, after in pairs]
    reach = math.inf
    if len(pairs) >= _MIN_PAIRS:
        quantile = float(stdtrit(len(pairs) - 1, (1 + confidence) / 2))
        reach = quantile * stdev(changes) / math.sqrt(len(pairs))
    befores, afters = zip(*pairs, strict=True)
    middle = mean(changes)
    return Difference(system, figure, len(pairs), mean(befores), mean(afters), middle - reach, middle + reach)


def _check_same_work(before: Result, after: Result) -> None:
    for field in fields(before.work):
        mine, theirs = getattr(before.work, field.name), getattr(after.work, field.name)
        if mine != theirs:
            raise InputError(f"the results are of different work: {field.name} is {mine!r} in A and {theirs!r} in B")


def _systems(before: Result, after: Result) -> list[tuple[str, str, str]]:
    if len(before.systems) == len(after.systems) == 1 and before.systems != after.systems:
        [one], [other] = before.systems, after.systems
        return [(f"{one} / {other}", one, other)]
    common = [name for name in before.systems if name in after.systems]
    if not common:
        raise InputError(
            f"the results share no system: A has {', '.join(before.systems)}, B has {', '.join(after.systems)}"
        )
    return [(name, name, name) for name in common]


def _paired(before: Sequence[Round], after: Sequence[Round]) -> list[tuple[Round, Round]]:
    others = {one.round: one for one in after}
    return [(one, others[one.round]) for one in before if one.round in others]


def warnings(before: Result, after: Result) -> list[str]:
    doubts = []
    if before.stamp.machine != after.stamp.machine:
        doubts.append(f"A and B are of different machines: {before.stamp.machine} and {after.stamp.machine}")
    theirs = {one.package: one.version for one in after.stamp.versions}
    doubts += [
        f"A ran {one.package} {one.version}, B {theirs[one.package]}"
        for one in before.stamp.versions
        if theirs.get(one.package, one.version) != one.version
    ]
    counts = [{len(each.of(name)) for name in each.systems} for each in (before, after)]
    if counts[0] != counts[1]:
        doubts.append("A and B have different numbers of rounds; those that both have are compared")
    return doubts


_HEAD = ("system", "figure", "A", "B", "B less A", "interval", "of A", "rounds", "verdict")


def results(differences: Sequence[Difference], confidence: float) -> Results:
    return Results(
        (each.as_dict() for each in differences),
        [Table(_HEAD, [_row(each) for each in differences])],
        [f"{confidence:.1%} Student intervals of the mean difference over paired rounds"],
    )


def _row(one: Difference) -> tuple[str, ...]:
    change = one.after - one.before
    share = f"{change / one.before:+.1%}" if one.before else "-"
    interval = f"{one.low:+,.4g} to {one.high:+,.4g}" if math.isfinite(one.low) else "unknown"
    figures = (f"{one.before:,.4g}", f"{one.after:,.4g}", f"{change:+,.4g}")
    return (one.system, one.figure, *figures, interval, share, str(one.pairs), one.verdict)


def command(
    before: Annotated[Path, typer.Argument(metavar="A", help="A result.json of bench burst, or its place.")],
    after: Annotated[Path, typer.Argument(metavar="B", help="Another one, of the same work.")],
    confidence: Annotated[float, typer.Option(min=0.5, max=0.999, help="Of the intervals.")] = 0.95,
    as_json: JsonOption = False,
) -> None:
    """Report whether B differs from A, system by system: the paired rounds' difference, with its interval."""
    one, other = read_result(before), read_result(after)
    differences = compare(one, other, confidence)
    for warning in warnings(one, other):
        complain(warning)
    publish(results(differences, confidence), as_json=as_json)
