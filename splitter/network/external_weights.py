"""An ONNX model with its large constants beside it.

On its way to a graph a model is copied and serialised many times, which protobuf does up to 2 GB: none of that needs
the weights.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace

import onnx
from onnx import ValueInfoProto, helper, numpy_helper
from onnxscript import ir
from onnxscript.ir.passes.common import LiftConstantsToInitializersPass

from serfer.splitter.network.graph import INLINE_BYTES, Weights

_PLAIN = frozenset(ir.DataType[name] for name in ("FLOAT", "DOUBLE", "FLOAT16", "INT8", "UINT8", "INT32", "INT64"))
"""The types that numpy has and that weights come in; other constants stay where they are."""


@dataclass(frozen=True)
class ExternalWeightsModel:
    """An ONNX model: `proto` reads the constants in `large` as inputs, and keeps small ones (shapes, axes) itself."""

    proto: onnx.ModelProto
    large: Weights

    @classmethod
    def of(cls, model: ir.Model) -> ExternalWeightsModel:
        """Separate a model's large constants; the model is not modified, and the arrays are its own, not copies."""
        model = model.clone()
        LiftConstantsToInitializersPass(lift_all_constants=False, size_limit=0)(model)
        graph, large = model.graph, Weights()
        graph.inputs[:] = [value for value in graph.inputs if value.name not in graph.initializers]
        model.ir_version = max(4, model.ir_version)  # before, every constant had to be an input as well
        for name, value in list(graph.initializers.items()):
            tensor = value.const_value
            if tensor is not None and tensor.dtype in _PLAIN and tensor.nbytes > INLINE_BYTES:
                large[name] = tensor.numpy()
                value.const_value, value.dtype, value.shape = None, tensor.dtype, ir.Shape(tensor.shape.numpy())
                graph.inputs.append(graph.initializers.pop(name))
        return cls(ir.to_proto(ir.external_data.load_to_model(model)), large)  # what is left is small

    def whole(self) -> ir.Model:
        model = ir.from_proto(self.proto)
        inputs = list(model.graph.inputs)
        model.graph.inputs[:] = [value for value in inputs if value.name not in self.large]
        for value in inputs:
            if value.name in self.large:
                value.const_value = ir.tensor(self.large[value.name], name=value.name)
                model.graph.register_initializer(value)
        return model

    def copied(self) -> ExternalWeightsModel:
        return replace(self, proto=deepcopy(self.proto))

    def with_constants(self, values: Weights) -> ExternalWeightsModel:
        proto = deepcopy(self.proto)
        large = {name: value for name, value in values.items() if value.nbytes > INLINE_BYTES}
        for name, value in large.items():
            kind = helper.np_dtype_to_tensor_dtype(value.dtype)
            proto.graph.input.append(helper.make_tensor_value_info(name, kind, value.shape))
        small = {name: value for name, value in values.items() if name not in large}
        proto.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in small.items())
        return ExternalWeightsModel(proto, self.large | large)

    @property
    def inputs(self) -> list[ValueInfoProto]:
        return [value for value in self.proto.graph.input if value.name not in self.large]
