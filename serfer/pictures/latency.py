"""Latencies of a load as charts: curves over axes, few enough points to draw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from serfer.pictures.pareto import Scale, scale_of

Point = tuple[float, float]
_MOST_POINTS = 300
_AIR = 1.04


@dataclass(frozen=True, slots=True)
class Curve:
    """Points of one round of a system, by what they are called; curves of one name share a colour."""

    name: str
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over two axes, as lines, or as `dots`."""

    title: str
    across_name: str
    down_name: str
    across: Scale
    down: Scale
    curves: tuple[Curve, ...]
    dots: bool = False


def from_zero(values: Iterable[float]) -> Scale:
    """Return an even scale from 0 on that has all values."""
    return Scale(0.0, max(values, default=1.0) * _AIR or 1.0, log=False)


def across_of(curves: Sequence[Curve]) -> list[float]:
    """Return the first coordinates of all points."""
    return [x for x, _ in chain.from_iterable(curve.points for curve in curves)]


def down_of(curves: Sequence[Curve]) -> list[float]:
    """Return the second coordinates of all points."""
    return [y for _, y in chain.from_iterable(curve.points for curve in curves)]


def order_chart(curves: Sequence[Curve]) -> Chart:
    """Chart each query's latency in the order in which queries were answered."""
    thin = tuple(map(thinned, curves))
    scales = from_zero(across_of(thin)), from_zero(down_of(thin))
    return Chart("latency in order of completion", "queries answered", "ms", *scales, thin)


def time_chart(curves: Sequence[Curve]) -> Chart:
    """Chart each query's latency over when it was due."""
    thin = tuple(map(thinned, curves))
    scales = from_zero(across_of(thin)), scale_of(down_of(thin) or [1.0])
    return Chart("latency over time", "seconds", "ms", *scales, thin, dots=True)


def share_chart(curves: Sequence[Curve]) -> Chart:
    """Chart the share of queries that were answered within a time; `curves` are those of `time_chart`."""
    shares = tuple(thinned(_shares(curve)) for curve in curves)
    scales = scale_of(across_of(shares) or [1.0]), Scale(0.0, 1.0, log=False)
    return Chart("share of queries answered within", "ms", "share", *scales, shares)


def _shares(curve: Curve) -> Curve:
    times = sorted(time for _, time in curve.points)
    return Curve(curve.name, tuple((time, number / len(times)) for number, time in enumerate(times, 1)))


def thinned(curve: Curve, most: int = _MOST_POINTS) -> Curve:
    """Return a curve of at most `most` of its points, evenly chosen, its first and last among them."""
    count = len(curve.points)
    if count <= most:
        return curve
    chosen = (round(number * (count - 1) / (most - 1)) for number in range(most))
    return Curve(curve.name, tuple(curve.points[index] for index in chosen))
