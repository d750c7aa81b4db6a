"""Windows that slide over a map, as convolutions and pools have them: their padding, and what their means count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.geometry import Span
from serfer.splitter.network.graph import ROW_AXIS, Graph, Node


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


def window(node: Node, axis: int) -> Window:
    return _window(node.attributes, axis - ROW_AXIS)


def _window(attributes: Mapping[str, Any], index: int) -> Window:
    pads = attributes.get("pads") or [0, 0, 0, 0]
    return Window(
        attributes["kernel_shape"][index],
        (attributes.get("strides") or [1, 1])[index],
        (attributes.get("dilations") or [1, 1])[index],
        pads[index],
        pads[index + 2],
    )


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
