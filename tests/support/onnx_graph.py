"""ONNX networks that tests write operator by operator."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Graph:
    """A network of images (N, channels, rows, cols); `op` returns the names of an operator's outputs."""

    def __init__(self, seed=0):
        self.random = np.random.default_rng(seed)
        self.nodes, self.constants = [], []

    def constant(self, values):
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values, order="C"), name))
        return name

    def normal(self, *shape, deviation=0.3):
        """Return a constant of random weights."""
        return self.constant(self.random.normal(0, deviation, shape).astype(np.float32))

    def op(self, kind, *inputs, output=None, outputs=1, **attributes):
        names = [output] if output else [f"{kind}_{len(self.nodes)}_{number}" for number in range(outputs)]
        self.nodes.append(helper.make_node(kind, [*inputs], names, names[0], **attributes))
        return names[0] if outputs == 1 else names

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
