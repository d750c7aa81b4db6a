"""ONNX networks that tests write operator by operator."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Graph:
    """A network of images (N, channels, rows, cols); `op` returns the name of an operator's output."""

    def __init__(self, seed=0):
        self.random = np.random.default_rng(seed)
        self.nodes, self.constants = [], []

    def constant(self, value, name=None):
        """Return the name of a constant; numbers with a fraction are float32."""
        array = np.asarray(value, order="C")
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        self.constants.append(numpy_helper.from_array(array, name or f"c{len(self.constants)}"))
        return self.constants[-1].name

    def normal(self, *shape, deviation=0.3):
        return self.constant(self.random.normal(0, deviation, shape))

    def op(self, kind, *inputs, output=None, outputs=1, others=(), **attributes):
        """Append an operator on tensors, by name, and on constants, by value.

        `others` name its outputs behind the first, which alone is returned; with `outputs`, a number, all are.
        """
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        first = output or f"{kind}_{len(self.nodes)}_0"
        made = [first, *others, *(f"{kind}_{len(self.nodes)}_{number}" for number in range(1, outputs))]
        self.nodes.append(helper.make_node(kind, names, made, first, **attributes))
        return first if outputs == 1 else made

    def model(self, outputs, *, image="image", channels=3, size=("h", "w"), opset=20, metadata=None):
        """Return the network as an ONNX model; `outputs` are channels by name, or (channels, type of values)."""
        described = [helper.make_tensor_value_info(image, TensorProto.FLOAT, ["n", channels, *size])]
        for name, said in outputs.items():
            count, kind = said if isinstance(said, tuple) else (said, TensorProto.FLOAT)
            described.append(helper.make_tensor_value_info(name, kind, ["n", count, f"{name}h", f"{name}w"]))
        graph = helper.make_graph(self.nodes, "net", described[:1], described[1:], self.constants)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        helper.set_model_props(model, metadata or {})
        return model

    def save(self, path, outputs, **described):
        onnx.save(self.model(outputs, **described), path)
        return path
