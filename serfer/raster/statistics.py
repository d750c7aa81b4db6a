"""Percentiles, means and deviations of an image that no memory holds, in passes over it.

Percentiles are exact, those of `numpy.percentile` (its linear interpolation) of all values at once. Each pass counts
16 bits of the values, of those that begin as the looked for ranks do by the passes before: values of 8 and 16 bits take
one pass, of 32 bits two, of 64 bits four.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = Sequence[NDArray[Any]]
"""Some values (n,) of each of the groups that statistics are wanted of, such as an image's bands; all of one type."""
Passes = Callable[[], Iterator[Values]]
"""Reads all values once each time that it is called, a block at a time."""
_DIGIT = 16
_GROUPS = 32
"""Groups that are counted in one pass: each takes half a MiB for a rank, of which two percentiles have four."""


def percentiles(passes: Passes, dtype: str, groups: int, percents: Sequence[float]) -> NDArray[np.float64]:
    """Return percentiles (groups, percents) of finite values of a `dtype`; NaN for groups without values."""
    found = np.full((groups, len(percents)), np.nan)
    for first in range(0, groups, _GROUPS):
        some = slice(first, min(first + _GROUPS, groups))
        found[some] = _percentiles(passes, some, np.dtype(dtype), percents)
    return found


def _percentiles(passes: Passes, some: slice, dtype: np.dtype[Any], percents: Sequence[float]) -> NDArray[np.float64]:
    bits = 8 * dtype.itemsize
    digit = min(_DIGIT, bits)
    searches = [_Search(percents, digit) for _ in range(some.start, some.stop)]
    for shift in range(bits - digit, -1, -digit):
        for values in passes():
            for search, of_group in zip(searches, values[some], strict=True):
                search.count(_ordered(of_group), shift)
        for search in searches:
            search.narrow()
    return np.array([search.interpolated(dtype) for search in searches])


@dataclass
class _Search:
    """Finds the values of some ranks among the keys of one group, `digit` bits further with each pass.

    `counts` are of the next digit, for each `prefix` of a key that a rank may have; `left` are ranks within theirs.
    """

    percents: Sequence[float]
    digit: int
    counts: dict[int, NDArray[np.int64]] = field(default_factory=dict)
    prefixes: dict[int, int] = field(default_factory=dict)
    left: dict[int, int] = field(default_factory=dict)
    total: int = 0

    def count(self, keys: NDArray[Any], shift: int) -> None:
        bins, mask = 1 << self.digit, keys.dtype.type((1 << self.digit) - 1)
        digits = ((keys >> keys.dtype.type(shift)) & mask) if shift or keys.itemsize * 8 > self.digit else keys
        if not self.prefixes:
            self.counts[0] = self.counts.get(0, 0) + np.bincount(digits, minlength=bins)
            return
        above = keys >> keys.dtype.type(shift + self.digit)
        for prefix in {*self.prefixes.values()}:
            counted = np.bincount(digits[above == keys.dtype.type(prefix)], minlength=bins)
            self.counts[prefix] = self.counts.get(prefix, 0) + counted

    def narrow(self) -> None:
        if not self.counts:
            return
        if not self.prefixes:
            self.total = int(self.counts[0].sum())
            wanted = {rank for percent in self.percents for rank in self._ranks(percent)[:2]} if self.total else set()
            self.prefixes, self.left = dict.fromkeys(wanted, 0), {rank: rank for rank in wanted}
        below = {prefix: counts.cumsum() for prefix, counts in self.counts.items()}
        for rank, prefix in self.prefixes.items():
            digit = int(np.searchsorted(below[prefix], self.left[rank], side="right"))
            self.left[rank] -= int(below[prefix][digit - 1]) if digit else 0
            self.prefixes[rank] = (prefix << self.digit) | digit
        self.counts = {}

    def interpolated(self, dtype: np.dtype[Any]) -> list[float]:
        if not self.total:
            return [float("nan")] * len(self.percents)
        return [self._between(dtype, *self._ranks(percent)) for percent in self.percents]

    def _ranks(self, percent: float) -> tuple[int, int, float]:
        at = (self.total - 1) * (percent / 100)
        low = min(int(at), self.total - 1)
        return low, min(low + 1, self.total - 1), at - low

    def _between(self, dtype: np.dtype[Any], low: int, high: int, part: float) -> float:
        one, other = (_value(self.prefixes[rank], dtype) for rank in (low, high))
        step = other - one
        return one + step * part if part < 0.5 else other - step * (1 - part)  # noqa: PLR2004 - as numpy's _lerp


def _ordered(values: NDArray[Any]) -> NDArray[Any]:
    if values.dtype.kind == "u":
        return values
    keys = np.ascontiguousarray(values).view(f"u{values.itemsize}")
    sign = keys.dtype.type(1 << (8 * keys.itemsize - 1))
    if values.dtype.kind == "i":
        signed: NDArray[Any] = keys ^ sign
        return signed
    ordered: NDArray[Any] = np.where(keys & sign, ~keys, keys | sign)
    return ordered


def _value(key: int, dtype: np.dtype[Any]) -> float:
    if dtype.kind == "u":
        return float(key)
    bits = 8 * dtype.itemsize
    sign = 1 << (bits - 1)
    if dtype.kind == "i":
        return float(key - sign)
    stored = key ^ sign if key & sign else key ^ ((1 << bits) - 1)
    return float(np.array(stored, f"u{dtype.itemsize}").view(dtype)[()])


def moments(passes: Passes, groups: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the means and the standard deviations (groups,) of finite values, in one pass; NaN for none.

    Blocks are merged as Chan, Golub and LeVeque do, so that nothing is lost where the mean is large.
    """
    count, mean, squares = np.zeros(groups), np.zeros(groups), np.zeros(groups)
    for values in passes():
        for group, of_group in enumerate(values):
            if not of_group.size:
                continue
            block = of_group.astype(np.float64)
            added = block.mean()
            both, apart = count[group] + block.size, added - mean[group]
            block -= added
            squares[group] += np.dot(block, block) + apart**2 * count[group] * block.size / both
            mean[group] += apart * block.size / both
            count[group] = both
    with np.errstate(invalid="ignore"):
        return np.where(count > 0, mean, np.nan), np.sqrt(squares / count)
