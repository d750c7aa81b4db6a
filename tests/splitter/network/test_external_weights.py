"""Weights are not copied on their way to a graph, wherever a model keeps them."""

import tracemalloc

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxscript import ir

from serfer.splitter.network import ingest
from serfer.splitter.network.external_weights import ExternalWeightsModel
from serfer.splitter.network.source import load
from serfer.splitter.tiling.from_onnx import from_onnx
from tests.splitter.models import Net, unsplit, worst_error

SIZE = (16, 16)
FEATURES = 8 * 256
SHARE = 0.1
"""Of the weights' bytes, what may be copied or serialised."""


def network(opset=20):
    """A network whose matrix is most of its 4 MB."""
    net = Net(3, *SIZE, opset=opset)
    x = net.op("Relu", net.conv("x", 3, 8, [3, 3], pads=[1, 1, 1, 1]))
    return net, net.op("Relu", net.linear(net.flat(x), FEATURES, 512))


def quantised():
    """The same with its matrix in 8 bits: what it stands for is computed when the network is read."""
    net, x = network()
    matrix = net.constant(net.random.integers(-128, 127, (512, 512), dtype=np.int8))
    scale = net.constant(np.float32(0.01))
    return net, net.op("MatMul", x, net.op("DequantizeLinear", matrix, scale))


def size_of(model):
    return sum(numpy_helper.to_array(tensor).nbytes for tensor in model.graph.initializer)


@pytest.fixture
def serialised(monkeypatch):
    """How many bytes each of the models has that shape inference and ONNX Runtime are given."""
    sizes = []
    infer, session = ingest.shape_inference.infer_shapes, ort.InferenceSession
    monkeypatch.setattr(
        ingest.shape_inference,
        "infer_shapes",
        lambda model, **more: sizes.append(model.ByteSize()) or infer(model, **more),
    )
    monkeypatch.setattr(
        ort, "InferenceSession", lambda data, *a, **more: sizes.append(len(data)) or session(data, *a, **more)
    )
    return sizes


@pytest.mark.parametrize("form", [network, quantised])
def test_reading_a_network_copies_and_serialises_almost_nothing(form, serialised):
    net, x = form()
    model = net.model(x)
    before = model.SerializeToString()
    light, weights = ExternalWeightsModel.of(ir.from_proto(model)), size_of(model)
    computed = 512 * 512 * 4 if form is quantised else 0
    tracemalloc.start()
    graph = from_onnx(light, *SIZE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(serialised) == (3 if form is quantised else 1)
    assert max(serialised) < SHARE * weights
    assert peak - computed < SHARE * weights
    assert sum(value.nbytes for value in graph.weights.values()) >= weights
    from_onnx(model, *SIZE)
    assert model.SerializeToString() == before


def test_an_exported_module_shares_its_weights_with_the_plan():
    import torch  # noqa: PLC0415 - slow to import

    module = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), torch.nn.Flatten(), torch.nn.Linear(16 * 14 * 14, 10)
    ).eval()
    source, _ = load(module, np.zeros((1, 3, *SIZE), np.float32))
    graph = from_onnx(source.onnx, *SIZE)
    for layer in (module[0], module[2]):
        weight = layer.weight.detach().numpy()
        assert any(np.shares_memory(weight, value) for value in graph.weights.values())


def test_a_files_external_weights_of_any_size_are_memory_mapped(tmp_path):
    net, x = network()
    x = net.op("Reshape", x, net.constant(np.array([0, 2, 16, 16])))
    model = net.model(net.linear(net.flat(x), 512, 5))
    batch, size = net.batch_of(2), size_of(model)
    expected = unsplit(model, batch)
    onnx.save(model, tmp_path / "net.onnx", save_as_external_data=True, location="net.bin", size_threshold=0)
    tracemalloc.start()
    source, _ = load(tmp_path / "net.onnx", net.batch_of(1))
    graph = from_onnx(source.onnx, *SIZE)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert sum(value.nbytes for value in graph.weights.values()) >= SHARE * size
    assert peak < SHARE * size
    assert worst_error(source.onnx, batch, tmp_path / "plan", ["2x2", "1"], expected=expected) <= 1e-6


def as_nodes(model):
    """Write initializers as Constant nodes."""
    tensors = list(model.graph.initializer)
    nodes = [helper.make_node("Constant", [], [tensor.name], value=tensor) for tensor in tensors]
    rest = list(model.graph.node)
    del model.graph.initializer[:], model.graph.node[:]
    model.graph.node.extend([*nodes, *rest])


def as_inputs(model):
    """Declare initializers as inputs too, as ONNX's first versions did."""
    model.graph.input.extend(
        helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims) for tensor in model.graph.initializer
    )
    model.ir_version = 3


@pytest.mark.parametrize(("form", "opset"), [(as_nodes, 20), (as_inputs, 20), (as_nodes, 13), (as_inputs, 8)])
def test_constants_are_read_from_every_place_that_onnx_allows(form, opset, tmp_path):
    net, x = network(opset)
    values = [net.constant(np.abs(net.floats(512))) for _ in range(4)]
    model = net.model(net.op("BatchNormalization", x, *values))
    batch = net.batch_of(2)
    expected = unsplit(model, batch)
    form(model)
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    source, _ = load(tmp_path / "net.onnx", None)
    assert source.onnx.proto.ByteSize() < SHARE * sum(value.nbytes for value in source.onnx.large.values())
    assert worst_error(source.onnx, batch, tmp_path / "plan", ["2x2", "1"], expected=expected) <= 1e-6


@pytest.mark.parametrize("kind", [TensorProto.BFLOAT16, TensorProto.INT4])
def test_weights_of_types_that_numpy_lacks_are_converted(kind, tmp_path):
    net, x = network()
    net.opset = 21
    whole = net.random.integers(-7, 7, (512, 64))
    net.weights.append(helper.make_tensor("odd", kind, whole.shape, whole.flatten().astype(np.float32)))
    if kind == TensorProto.INT4:
        matrix = net.op("DequantizeLinear", "odd", net.constant(np.float32(0.5)))
    else:
        matrix = net.op("Cast", "odd", to=TensorProto.FLOAT)
    model = net.model(net.op("MatMul", x, matrix))
    batch = net.batch_of(2)
    assert worst_error(model, batch, tmp_path / "plan", ["2x2", "1"]) <= 1e-6
