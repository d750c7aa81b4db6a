"""Receptive fields, the rule that makes tiles exact: the input rows that an operator's output rows depend on.

For output rows [a, b) of a sliding window with kernel k, dilation d, stride s and leading padding p, they are

    [a*s - p,  (b - 1)*s - p + d*(k - 1) + 1)

clipped to the map; what was clipped is padding of that side, and only there. (SerFer's Appendix A adds (k - 1) / 2 on
every side instead, which is wrong for strides and for several layers in a row.) Ceil mode needs no case of its own:
its last window simply leaves the map.

Rows and columns never mix, so each axis is computed by itself, for all tiles at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.geometry import Span
from splitter.network.graph import ROW_AXIS, Graph, Node

Spans = NDArray[np.int64]
"""Rows (or columns) of several tiles: shape (2, tiles), each tile's first row and its last row plus one."""
ReceptiveField = Callable[[Spans], Spans]
"""From rows of an operator's output to the rows of one of its inputs that they depend on, not clipped to the map."""


def spans_of(parts: Sequence[Span]) -> Spans:
    """Return spans as one array."""
    return np.array([[part.start for part in parts], [part.stop for part in parts]])


def hull(one: Spans, other: Spans) -> Spans:
    """Return, for each tile, the smallest span that contains both."""
    result: Spans = np.minimum(one, other)
    np.maximum(one[1], other[1], out=result[1])
    return result


def clipped(spans: Spans, size: int) -> Spans:
    """Return the part of each span that lies in a map of `size` rows, or the row nearest to it where there is none."""
    low, high = _bounds(size)
    inside: Spans = np.minimum(np.maximum(spans, low), high)
    return inside


@lru_cache
def _bounds(size: int) -> tuple[Spans, Spans]:
    return np.array([[0], [1]]), np.array([[size - 1], [size]])


def same_rows(out: Spans) -> Spans:
    """Return the receptive field of an operator that reads, for each row, the same row."""
    return out


@lru_cache
def all_rows(size: int) -> ReceptiveField:
    """Return the receptive field of an operator that reads the whole map for every row."""
    whole = np.array([[0], [size]])
    return lambda out: np.repeat(whole, out.shape[1], axis=1)


def tabulated(first: NDArray[Any], stop: NDArray[Any]) -> ReceptiveField:
    """Return the receptive field of an operator whose output row r reads the rows [first[r], stop[r]).

    A row with first[r] >= stop[r] reads nothing; a tensor cannot be empty, so what reads nothing gets the first row.
    Output rows beyond the table are the padding of a later operator.
    """

    def rows(out: Spans) -> Spans:
        parts = [slice(*span) for span in clipped(out, len(first)).T.tolist()]
        spans = np.array([[first[part].min() for part in parts], [stop[part].max() for part in parts]], dtype=np.int64)
        spans[:, spans[0] >= spans[1]] = [[0], [1]]
        return spans

    return rows


@dataclass(frozen=True)
class Window:
    """One axis of a sliding window."""

    kernel: int
    stride: int
    dilation: int
    pad_before: int
    pad_after: int

    @property
    def reach(self) -> int:
        """Rows from the first to the last tap, inclusive."""
        return self.dilation * (self.kernel - 1) + 1

    def input_spans(self, out: Spans) -> Spans:
        """Return the input rows of output rows `out`, not clipped to the map."""
        rows: Spans = out * self.stride + self._offsets
        return rows

    @cached_property
    def _offsets(self) -> Spans:
        return np.array([[-self.pad_before], [self.reach - self.stride - self.pad_before]])


def window(node: Node, axis: int) -> Window:
    """Return the sliding window of a windowed operator along ROW_AXIS or COL_AXIS."""
    return _window(node.attributes, axis - ROW_AXIS)


def _window(attributes: Mapping[str, Any], index: int) -> Window:
    pads = attributes.get("pads") or [0, 0, 0, 0]
    return _known_window(
        attributes["kernel_shape"][index],
        (attributes.get("strides") or [1, 1])[index],
        (attributes.get("dilations") or [1, 1])[index],
        pads[index],
        pads[index + 2],
    )


_known_window = lru_cache(maxsize=1 << 12)(Window)  # equal windows are one, and so are their receptive fields


def explicit_pads(attributes: Mapping[str, Any], size: Sequence[int]) -> list[int]:
    """Return [top, left, bottom, right] for a window's attributes on a map of `size` (height, width)."""
    mode = bytes(attributes.get("auto_pad", b"NOTSET")).decode()
    if mode == "NOTSET":
        return list(attributes.get("pads") or [0, 0, 0, 0])
    before, after = [0, 0], [0, 0]
    if mode.startswith("SAME"):
        for index in (0, 1):
            axis = _window({**attributes, "pads": None}, index)
            outputs = -(-size[index] // axis.stride)
            total = max(0, (outputs - 1) * axis.stride + axis.reach - size[index])
            small, large = total // 2, total - total // 2
            before[index], after[index] = (small, large) if mode == "SAME_UPPER" else (large, small)
    return [*before, *after]


def transposed_attributes(attributes: Mapping[str, Any], size: Sequence[int], outputs: Sequence[int]) -> dict[str, Any]:
    """Return a transposed convolution's attributes with pads and output padding instead of `auto_pad` and sizes.

    `size` and `outputs` are the (height, width) of its input and output. An output larger than what windows
    are spread over has output padding; with both that and `auto_pad`, which runtimes read differently, all stays.
    """
    mode = bytes(attributes.get("auto_pad", b"NOTSET")).decode()
    given, more = attributes.get("output_shape"), attributes.get("output_padding") or [0, 0]
    if mode.startswith("SAME") and any(more) and not given:
        return dict(attributes)
    before, after, extra = [0, 0], [0, 0], [0, 0]
    for index, pad in enumerate((attributes.get("pads") or [0, 0])[:2]):
        taps = _window({**attributes, "pads": None}, index)
        spread = (size[index] - 1) * taps.stride + taps.reach
        if mode.startswith("SAME") or given:
            total = max(0, spread + more[index] - outputs[index])
            before[index] = total // 2 if mode == "SAME_UPPER" else total - total // 2
        elif mode == "NOTSET":
            before[index] = pad
        rest = spread - before[index] - outputs[index]
        after[index], extra[index] = max(0, rest), max(0, -rest)
    left_out = ("auto_pad", "output_shape", "output_padding")
    plain = {key: value for key, value in attributes.items() if key not in left_out}
    return {**plain, "pads": [*before, *after]} | ({"output_padding": extra} if any(extra) else {})


def floor_pads(attributes: Mapping[str, Any], size: Sequence[int], outputs: Sequence[int]) -> list[int] | None:
    """Return the pads with which a pool in floor mode has the windows of ceil mode that start on the map.

    None where all of them do; `outputs` counts what ceil mode has.
    """
    pads = explicit_pads(attributes, size)
    windows = [_window({**attributes, "pads": pads}, index) for index in (0, 1)]
    starts = [(outputs[index] - 1) * taps.stride - taps.pad_before for index, taps in enumerate(windows)]
    late = [start >= size[index] for index, start in enumerate(starts)]
    if not any(late):
        return None
    for index, taps in enumerate(windows):
        if not late[index]:
            pads[index + 2] = max(pads[index + 2], starts[index] + taps.reach - size[index])
    return pads


def average_scale(graph: Graph, node: Node, axis: int, out: Span) -> NDArray[np.float32]:
    """Return, for each output row of an AveragePool, kernel size / number of positions that its mean counts.

    With `count_include_pad` the declared padding counts, yet not what ceil mode adds beyond it (as torch has it).
    """
    include = bool(node.attributes.get("count_include_pad", 0))
    rows = np.arange(out.start, out.stop)
    return _scale(window(node, axis), graph.shapes[node.inputs[0]][axis], rows, include=include)


def _scale(taps: Window, size: int, rows: NDArray[Any], *, include: bool) -> NDArray[np.float32]:
    positions = (rows * taps.stride - taps.pad_before)[:, None] + taps.dilation * np.arange(taps.kernel)
    low, high = (-taps.pad_before, size + taps.pad_after) if include else (0, size)
    counted = ((positions >= low) & (positions < high)).sum(axis=1)
    return np.asarray(taps.kernel / np.maximum(counted, 1), dtype=np.float32)


def pool_scale(attributes: Mapping[str, Any], size: Sequence[int], outputs: Sequence[int]) -> NDArray[np.float32]:
    """Return (1, 1, outputs): by what a mean over each whole window is too small, on a map of `size`.

    Windows that start past the map are left out.
    """
    include = bool(attributes.get("count_include_pad", 0))
    pads = explicit_pads(attributes, size)
    windows = [_window({**attributes, "pads": pads}, index) for index in (0, 1)]
    starts = [np.arange(count) for count in outputs]
    on_map = [
        rows[rows * taps.stride - taps.pad_before < size[index]]
        for index, (rows, taps) in enumerate(zip(starts, windows, strict=True))
    ]
    scales = [_scale(taps, size[index], on_map[index], include=include) for index, taps in enumerate(windows)]
    return np.outer(*scales)[None, None]
