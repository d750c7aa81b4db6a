"""Exponential tails above a floor, fitted to times: of invocations, and of starts, which have two of them."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np

_LONGEST, _POINTS = 20.0, 400  # of an integral: means of the longer tail, after which nothing is left
_ROUNDS, _CLOSE = 40, 1e-6


def floor_and_tail(seconds: Sequence[float]) -> tuple[float, float]:
    """Fit an exponential time above a floor to times, by its unbiased estimators; the tail of one time is 0.

    Those of least variance (Johnson, Kotz and Balakrishnan, Continuous Univariate Distributions 1, chapter 19).
    """
    least, count = min(seconds), len(seconds)
    if count == 1:
        return least, 0.0
    tail = (fmean(seconds) - least) * count / (count - 1)
    return least - tail / count, tail


def start_tail(seconds: Sequence[float], invoke_tail: float) -> float:
    """Return the mean of what starts take on top of the fastest possible one, 0 where that is lost in `invoke_tail`.

    A start takes a constant and two exponential times: one of mean `invoke_tail`, as any invocation, and one of the
    mean that is looked for. The mean of n starts, less the least of them, is the sum of both means less what the least
    one is expected to have of them (`_least_of_sums`). The tail that solves this is right on average. It has the
    standard error of a mean of n exponential times, 1 / sqrt(n), and more where `invoke_tail` is as long.
    """
    above = fmean(seconds) - min(seconds) - invoke_tail
    tail, before = max(above, 0.0), -1.0
    for _ in range(_ROUNDS):
        if abs(tail - before) <= _CLOSE * tail:
            break
        tail, before = max(above + _least_of_sums(invoke_tail, tail, len(seconds)), 0.0), tail
    return tail


def _least_of_sums(mean: float, other: float, count: int) -> float:
    """Return the expected least of so many sums of two exponential times of these means.

    It is the integral of P(sum > t) ** count, where the sum has a hypoexponential distribution: some sqrt(pi / 2 *
    mean * other / count), and not mean / count as of one exponential time.
    """
    short, long = sorted((mean, other))
    in_long = _LONGEST * np.linspace(0.0, 1.0, _POINTS) ** 2  # dense where few are left
    at, later = long * in_long, np.exp(-in_long)
    if short > _CLOSE * long:
        apart = at * (1 / short - 1 / long)
        later *= 1 + in_long * np.divide(-np.expm1(-apart), apart, out=np.ones(_POINTS), where=apart > 0)
    return float(np.trapezoid(later**count, at))
