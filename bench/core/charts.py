"""Charts: curves over two axes, few enough points to draw. `charts_figure.py` draws them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

Point = tuple[float, float]
_MAX_POINTS = 300
_WIDE = 5.0  # largest to smallest value, from which on an axis is logarithmic


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one round of a system; curves of one name share a colour, and may be `dashed`."""

    name: str
    points: tuple[Point, ...]
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over two axes, as lines, or as `dots`.

    An axis is logarithmic or begins at 0, the second one at `y_min`; it ends where the values do, or at `x_max` and
    `y_max`. `bands` are parts of
    the first axis that are shaded.
    """

    title: str
    x_label: str
    y_label: str
    curves: tuple[Curve, ...]
    dots: bool = False
    x_log: bool = False
    y_log: bool = False
    x_max: float | None = None
    y_min: float = 0.0
    y_max: float | None = None
    bands: tuple[tuple[float, float], ...] = ()


def is_wide(values: Iterable[float]) -> bool:
    low, high = min(kept := [*values]), max(kept)
    return low > 0 and high > _WIDE * low


def order_chart(curves: Sequence[Curve]) -> Chart:
    return Chart("latency in order of completion", "queries answered", "ms", tuple(map(thinned, curves)))


def time_chart(curves: Sequence[Curve]) -> Chart:
    log = is_wide(y for _, y in _points(curves) or [(0.0, 0.0)])
    return Chart("latency over time", "seconds", "ms", tuple(map(thinned, curves)), dots=True, y_log=log)


def share_chart(curves: Sequence[Curve]) -> Chart:
    shares = tuple(thinned(_shares(curve)) for curve in curves)
    log = is_wide(x for x, _ in _points(shares) or [(0.0, 0.0)])
    return Chart("share of queries answered within", "ms", "share", shares, x_log=log, y_max=1.0)


def _points(curves: Sequence[Curve]) -> list[Point]:
    return [*chain.from_iterable(curve.points for curve in curves)]


def _shares(curve: Curve) -> Curve:
    times = sorted(time for _, time in curve.points)
    return Curve(curve.name, tuple((time, number / len(times)) for number, time in enumerate(times, 1)))


def thinned(curve: Curve, max_points: int = _MAX_POINTS) -> Curve:
    """Return a curve of at most `max_points` of its points, evenly chosen, its first and last among them."""
    count = len(curve.points)
    if count <= max_points:
        return curve
    chosen = (round(number * (count - 1) / (max_points - 1)) for number in range(max_points))
    return replace(curve, points=tuple(curve.points[index] for index in chosen))
