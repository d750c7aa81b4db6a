"""Constants that exporters compute at run time, and their indirect forms of operators."""

import tracemalloc

import numpy as np
import pytest
from onnx import TensorProto, helper

from serfer.core.errors import ModelError
from serfer.splitter.tiling.from_onnx import from_onnx
from tests.splitter.models import worst_error
from tests.splitter.network.test_ingest import network

EXACT = 2e-6
SIZE = (8, 10)
MIB = 1024 * 1024


def integers(net, *values):
    return net.constant(np.array(values))


def torchscript_pads(net, left, right, top, bottom):
    """Write the amounts of F.pad as torch's older exporter does: last axis first, in pairs, turned round."""
    given = net.op("Constant", value=helper.make_tensor("pad", TensorProto.INT64, [4], [left, right, top, bottom]))
    zeros = net.op("ConstantOfShape", integers(net, 4), value=helper.make_tensor("zero", TensorProto.INT64, [1], [0]))
    pairs = net.op("Reshape", net.op("Concat", given, zeros, axis=0), integers(net, -1, 2))
    turned = net.op("Slice", pairs, *(integers(net, value) for value in (-1, np.iinfo(np.int64).min + 1, 0, -1)))
    flat = net.op("Reshape", net.op("Transpose", turned, perm=[1, 0]), integers(net, -1))
    return net.op("Cast", flat, to=TensorProto.INT64)


def test_padding_in_the_older_exporters_form_is_constant(tmp_path):
    net, x = network()
    x = net.op("Pad", x, torchscript_pads(net, 0, 1, 2, 0), net.constant(np.float32(0.5)), mode="constant")
    model = net.model(net.flat(net.conv(x, 4, 4, [3, 3], strides=[2, 2])))
    assert [node.kind for node in from_onnx(model, *SIZE).nodes] == ["Conv", "Relu", "Pad", "Conv", "Flatten"]
    assert worst_error(model, net.batch_of(2), tmp_path, ["2x2", "1"]) <= EXACT


def many_large_ones(net):
    parts = [net.op("ConstantOfShape", integers(net, 2 + index, 1 << 26)) for index in range(4)]
    return net.op("Sum", *(net.op("ReduceMax", part, integers(net, 0, 1), keepdims=0) for part in parts))


FORMS = [
    lambda net: net.op("ConstantOfShape", integers(net, 1 << 18, 1 << 18)),
    lambda net: net.op("Expand", net.constant(np.float32(1)), integers(net, 1 << 18, 1 << 18)),
    lambda net: net.op("Range", *(net.constant(np.float32(value)) for value in (0, 1 << 36, 1))),
    many_large_ones,
]


@pytest.mark.parametrize("form", FORMS)
def test_a_constant_larger_than_memory_is_refused(form):
    net, x = network()
    x = net.op("Add", x, net.op("ReduceMax", form(net), keepdims=0))
    model = net.model(net.flat(x))
    tracemalloc.start()
    with pytest.raises(ModelError, match="more than 2,147,483,648 bytes"):
        from_onnx(model, *SIZE)
    assert tracemalloc.get_traced_memory()[1] < 64 * MIB
    tracemalloc.stop()


@pytest.mark.parametrize("shape", [(1, 4, 1, 1), (1, 4)], ids=["map", "vector"])
def test_a_view_of_all_values_in_order_is_a_reshape(shape, tmp_path):
    """ConvNeXt's pooled features, as torch.export has them."""
    net, x = network()
    mean = net.op("Reshape", net.op("ReduceMean", x, integers(net, -1, -2)), integers(net, -1))
    other = net.op("Gather", mean, net.constant(np.array([[0, 2, 1, 3]])), axis=0)
    with pytest.raises(ModelError, match=r"\(Reshape\).*images of a batch"):
        from_onnx(net.model(net.linear(other, 4, 5)), *SIZE)
    x = net.op("Gather", mean, net.constant(np.arange(4).reshape(shape)), axis=0)
    model = net.model(net.linear(net.op("Reshape", x, integers(net, 1, 4)), 4, 5))
    batch = net.batch_of(1)
    assert worst_error(model, batch, tmp_path, ["2x2", "1"]) <= EXACT
    assert "Gather" not in {node.kind for node in from_onnx(model, *SIZE).nodes}
