"""A network that can be read at any size of its images, and what makes it one that windows can be cut of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import onnx
from onnx.helper import make_node
from onnx.numpy_helper import to_array

from serfer.core.errors import ModelError
from serfer.splitter.network.as_is import all_nodes
from serfer.splitter.network.description import Reduction
from serfer.splitter.network.external_weights import ExternalWeightsModel
from serfer.splitter.network.graph import COL_AXIS, ROW_AXIS, Graph
from serfer.splitter.network.ingest import prepared, simplified
from serfer.splitter.network.reductions import with_reduction
from serfer.splitter.network.source import Source
from serfer.splitter.network.unsupported import refuse
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.windows.global_statistics import part_of, with_statistics
from serfer.splitter.windows.positions import may_depend
from serfer.splitter.windows.sections import Section
from serfer.splitter.windows.strides import LONGER, Strides, check_local, check_shifts, strides

_Size = tuple[int, int]
_IF = "If"
_Branches = Mapping[str, bool]
"""The conditions of a file's If operators, by name, for images of a size."""


@dataclass(frozen=True)
class Network:
    """A network that can be read at any size: `at(height, width)` returns its graph for images of that size.

    A third argument is a size whose way through the module's Python, or the branches of a file (`branched`), is to be
    taken; `alike` returns whether images of two sizes go the same. `checked`, `larger` and `strides` return the part
    that makes the map or, with `number`, the part of that pass (global_statistics.py). Without `by_position`, operators
    that depend on a window's position are refused. With `sections`, passes and the map read maps that earlier passes
    keep (sections.py).
    """

    source: Source
    at: Callable[..., Graph]
    branched: Callable[[_Size], tuple[ExternalWeightsModel, _Branches]]
    number: int | None = None
    by_position: bool = True
    sections: tuple[Section, ...] = ()

    @property
    def section(self) -> Section:
        if not self.sections:
            return Section()
        return self.sections[-1 if self.number is None else self.number]

    @classmethod
    def of(cls, source: Source, reduction: Reduction | None) -> Network:
        @cache
        def branched(size: _Size) -> tuple[ExternalWeightsModel, _Branches]:
            return _with_branches(source.at(size), size)

        @cache
        def at(height: int, width: int, like: _Size | None = None) -> Graph:
            model, _ = branched(like or (height, width))
            return from_onnx(model, height, width, source.outputs, reduction, any_size=True)

        return cls(with_reduction(source, reduction), at, branched)

    def other_way(self, known: _Size, size: _Size) -> str:
        """Return in which way images of a size go another way than those of a `known` one, empty where they do not."""
        sized = self.source.sized
        if broken := sized and sized.of(known).guards.broken(size):
            return f"do not meet {broken}"
        return "" if self.branched(known)[1] == self.branched(size)[1] else "take other branches of an If"

    def going_as(self, size: _Size) -> Network:
        """Return the network that goes the way of images of a size, whatever is the size of its image."""
        return replace(self, at=lambda height, width, _=None: self.at(height, width, size))

    def checked(self, size: _Size) -> Graph:
        """Return the graph at an image's size; raises ModelError where it looks at more than neighbourhoods.

        What it has of the whole image are statistics alone, and then its result is one map.
        """
        given = self.of_maps(size)
        graph = self.cut(size)
        if graph.output in graph.fixed:
            last = given.nodes[-1]
            raise refuse(
                last.name, last.kind, "its result does not grow with the image, so no window makes a part of it"
            )
        check_local(graph)
        if graph.statistics and len(graph.outputs) > 1:
            raise ModelError(
                f"a network that looks at the whole image has one map, and this one has {_in_words_of(graph)}: of "
                "several make one, by torch.cat along their channels, or a plan for each"
            )
        if missing := {*self.section.reads, *self.section.keeps} - graph.shapes.keys():
            raise ModelError(f"images of this size go another way through the network, without {min(missing)!r}")
        return graph.once(part_of, self.number, self.section)

    def of_maps(self, size: _Size) -> Graph:
        graph = self.at(*size)
        if any(graph.shape(name).flat for name in graph.outputs):
            raise ModelError(
                f"a map plan needs outputs that are maps, (N, C, H, W) or (N, H, W), and this network has "
                f"{_in_words_of(graph)}"
            )
        return graph

    def larger(self, size: _Size) -> Graph:
        """Return the graph of an image of LONGER more rows and columns, which goes the way of one of this size."""
        height, width = size
        larger: Graph = self.at(height + LONGER, width + LONGER, size)
        return larger.once(with_statistics, self._other(size)).once(part_of, self.number, self.section)

    def cut(self, size: _Size) -> Graph:
        """Return the graph at a size without reductions over the whole image, those of all passes in their place."""
        graph: Graph = self.at(*size)
        if self._other(size) is None:
            return graph.once(with_statistics)
        height, width = size
        return graph.once(with_statistics, self.at(height + LONGER, width + LONGER, size))

    def _other(self, size: _Size) -> Graph | None:
        graph: Graph = self.at(*size)
        return graph if self.by_position and graph.once(may_depend) else None

    def strides(self, graph: Graph) -> tuple[Strides, Strides]:
        """Return the strides of rows and columns; raises ModelError for an operator that does not shift by them."""
        shape = graph.shape(graph.input)
        larger = self.larger((shape.height, shape.width))
        known = strides(graph, larger, ROW_AXIS), strides(graph, larger, COL_AXIS)
        for axis, axis_strides in zip((ROW_AXIS, COL_AXIS), known, strict=True):
            check_shifts(graph, axis, axis_strides)
        return known


def _in_words_of(graph: Graph) -> str:
    return ", ".join(f"{tensor.name} {list(tensor.dims)}" for tensor in graph.output_tensors)


def _with_branches(model: ExternalWeightsModel, size: _Size) -> tuple[ExternalWeightsModel, _Branches]:
    """Conditions that depend on the image itself are left for the reader to refuse; the way is returned, too."""
    taken: dict[str, bool] = {}
    bodies = (model.proto.graph.node, *(function.node for function in model.proto.functions))
    if not any(node.op_type == _IF for nodes in bodies for node in all_nodes(nodes)):
        return model, taken
    try:
        chosen = simplified(model)
        while found := _conditions(chosen, size):
            taken |= found
            chosen = simplified(_with_choices(chosen, found))
    except Exception:  # noqa: BLE001 - of many kinds, for a model that is not sound: the reader says why
        return model, {"a condition": True}  # which is not known to be the same for all sizes
    return chosen, taken


def _conditions(model: ExternalWeightsModel, size: _Size) -> dict[str, bool]:
    names = {f"{node.input[0]}.asked": node.input[0] for node in model.proto.graph.node if node.op_type == _IF}
    if not names:
        return {}
    asked, image = model.with_constants({}), model.inputs[0].name
    graph = asked.proto.graph
    graph.node.extend(make_node("Where", [name, image, image], [output]) for output, name in names.items())
    del graph.output[:]
    graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    read = prepared(asked, *size).proto.graph
    known = {tensor.name: tensor for tensor in read.initializer}
    asking = {names[node.output[0]]: node.input[0] for node in read.node if node.output[0] in names}
    return {name: bool(to_array(known[made]).item()) for name, made in asking.items() if made in known}


def _with_choices(model: ExternalWeightsModel, found: _Branches) -> ExternalWeightsModel:
    chosen = model.with_constants({f"{name}.taken": np.array(value) for name, value in found.items()})
    for node in chosen.proto.graph.node:
        if node.op_type == _IF and node.input[0] in found:
            node.input[0] += ".taken"
    return chosen
