"""Spans that are computed once: a network repeats its blocks, and its grids share rows, so that most walks repeat.

Equal arrays are one array here (hash consing). So what follows from them is found by their identity, which is much
faster than by their contents.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from serfer.splitter.tiling.receptive_field import ReceptiveField, Spans, clipped, hull

Integers = NDArray[np.int64]


class InternedSpans:
    """Returns the same array for equal spans, sizes and views; arguments are arrays that it has returned."""

    def __init__(self) -> None:
        self._arrays: dict[tuple[tuple[int, ...], bytes], Integers] = {}
        self._read: dict[tuple[ReceptiveField, int | None, int], Spans] = {}
        self._hulls: dict[tuple[int, int], Spans] = {}
        self._sizes: dict[int, Integers] = {}
        self._views: dict[tuple[int, ...], Integers] = {}

    def one(self, array: Integers) -> Integers:
        """Return the array that stands for all equal ones; it stays alive with this object."""
        return self._arrays.setdefault((array.shape, array.tobytes()), array)

    def read(self, field: ReceptiveField, size: int | None, out: Spans) -> Spans:
        """Return what spans of an operator's output read of an input, clipped to `size` rows, None for all."""
        key = field, size, id(out)
        known = self._read.get(key)
        if known is None:
            rows = field(out)
            known = self._read[key] = self.one(rows if size is None else clipped(rows, size))
        return known

    def hull(self, one: Spans, other: Spans) -> Spans:
        """Return, for each tile, the smallest span that contains both."""
        if one is other:
            return one
        key = id(one), id(other)
        known = self._hulls.get(key)
        if known is None:
            known = self._hulls[key] = self.one(hull(one, other))
        return known

    def sizes(self, spans: Spans) -> Integers:
        known = self._sizes.get(id(spans))
        if known is None:
            known = self._sizes[id(spans)] = self.one(spans[1] - spans[0])
        return known

    def views(self, several: Sequence[Spans]) -> Integers:
        """Return several spans of each tile, relative to its first one's first row: an array (tiles, spans, 2)."""
        key = tuple(map(id, several))
        known = self._views.get(key)
        if known is None:
            relative = np.array(several) - several[0][0]
            known = self._views[key] = self.one(np.ascontiguousarray(relative.transpose(2, 0, 1)))
        return known
