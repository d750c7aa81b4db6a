"""Which elements of what a window of a pass makes are its own, where windows of images of any size overlap.

How many units at its beginning windows before it own depends on the image's size: so it is not a constant of the graph
but the last values of the vector that each window has beside its pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from onnx import TensorProto

from serfer.core.geometry import Rect, Span
from serfer.core.plan.statistics import MAX, MIN, SKIPPED
from serfer.splitter.network.graph import STATISTICS, Axes, Graph
from serfer.splitter.plan_dir.emit import input_name
from serfer.splitter.tiling.onnx_builder import OnnxBuilder
from serfer.splitter.tiling.tiling_rule import append_slice

_NOTHING = {MAX: -np.inf, MIN: np.inf}
"""What stands in place of elements of another window; 0 in means, sums and variances."""
_Units = tuple[int, int]


def with_skipped(graph: Graph) -> Graph:
    """Return a graph whose vector of statistics ends in what windows before a window own; itself without statistics."""
    if not graph.statistics:
        return graph
    _, values = graph.shapes[STATISTICS]
    return replace(graph, shapes={**graph.shapes, STATISTICS: (1, values + SKIPPED)})


@dataclass(frozen=True)
class OwnedElements:
    """The elements of a part of a tensor that a window owns: a `mask` (N, 1, rows, 1, ..) & (N, 1, 1, cols) of them.

    `count` (N, 1) are how many they are in a channel, and `mean_count` the same with all axes of the tensor.
    """

    builder: OnnxBuilder
    mask: str
    count: str
    mean_count: str

    @classmethod
    def of(
        cls, builder: OnnxBuilder, graph: Graph, part: str, rank: int, axes: Axes, made: Rect, units: _Units
    ) -> OwnedElements:
        """Append what a window owns of the tensor `part`, of which it makes `made`; `units` are rows and columns."""
        sides, counts = [], []
        for number, (axis, size, unit) in enumerate(zip(axes, (made.rows.size, made.cols.size), units, strict=True)):
            name = f"{part}.side{number}"
            at = graph.shapes[STATISTICS][1] - SKIPPED + number
            skipped = append_slice(builder, input_name(1), f"{name}.units", 1, Span(at, at + 1))
            first = builder.append(
                "Mul", [skipped, builder.constant(f"{name}.unit", np.array(unit, np.float32))], f"{name}.first"
            )
            places = builder.constant(f"{name}.places", np.arange(size, dtype=np.float32)[None])
            own = builder.append("GreaterOrEqual", [places, first], f"{name}.own")
            shape = [0, *(size if position == axis else 1 for position in range(1, rank))]
            sides.append(
                builder.append("Reshape", [own, builder.constant(f"{name}.shape", np.array(shape))], f"{name}.mask")
            )
            ones = builder.append("Cast", [own], f"{name}.ones", {"to": TensorProto.FLOAT})
            along = builder.constant(f"{name}.along", np.array([1]))
            counts.append(builder.append("ReduceSum", [ones, along], f"{name}.count", {"keepdims": 1}))
        mask = builder.append("And", sides, f"{part}.mask")
        count = builder.append("Mul", counts, f"{part}.count")
        form = builder.constant(f"{part}.count.form", np.array([0, *[1] * (rank - 1)]))
        return cls(builder, mask, count, builder.append("Reshape", [count, form], f"{part}.count.all"))

    def only(self, tensor: str, kind: str, name: str) -> str:
        """Append a tensor of the part's form with nothing of other windows' elements for a statistic of a kind."""
        nothing = self.builder.constant(f"{name}.nothing", np.array(_NOTHING.get(kind, 0), np.float32))
        return self.builder.append("Where", [self.mask, tensor, nothing], f"{name}.only")
