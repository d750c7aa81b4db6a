"""A network with a loop of any length."""

import numpy as np
from onnx import TensorProto, helper, numpy_helper

SIZE = (3, 8, 8)
CLASSES = 10
MANY = 10**8
INT64 = TensorProto.INT64
FLOAT = TensorProto.FLOAT


def network(*nodes, weights=(), last=None, functions=(), opset=18, domains=(), inputs=()):
    """Return the bytes of a classifier of SIZE; `last` is a tensor whose maximum is added to its scores."""
    scores = [
        helper.make_node("GlobalAveragePool", ["x"], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("MatMul", ["flat", "w"], ["scores"]),
    ]
    ends = [helper.make_node("Identity", ["scores"], ["y"])]
    if last is not None:
        ends = [
            helper.make_node("ReduceMax", [last], ["most"], keepdims=0),
            helper.make_node("Add", ["scores", "most"], ["y"]),
        ]
    matrix = numpy_helper.from_array(np.ones((SIZE[0], CLASSES), np.float32), "w")
    x = helper.make_tensor_value_info("x", FLOAT, ["N", *SIZE])
    y = helper.make_tensor_value_info("y", FLOAT, ["N", CLASSES])
    graph = helper.make_graph([*scores, *nodes, *ends], "net", [x, *inputs], [y], [matrix, *weights])
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10).SerializeToString()


def integers(name, *values):
    return numpy_helper.from_array(np.array(values, np.int64), name)


def scalar(name, value):
    return numpy_helper.from_array(np.array(value, np.int64), name)


TRUE = numpy_helper.from_array(np.array([True])[0], "true")


def body(nodes, carried="carried", result="next", kind=FLOAT, dims=(1,)):
    """A loop's body that carries one tensor."""
    return helper.make_graph(
        [*nodes, helper.make_node("Identity", ["condition"], ["goes on"])],
        "body",
        [
            helper.make_tensor_value_info("number", INT64, []),
            helper.make_tensor_value_info("condition", TensorProto.BOOL, []),
            helper.make_tensor_value_info(carried, kind, dims),
        ],
        [
            helper.make_tensor_value_info("goes on", TensorProto.BOOL, []),
            helper.make_tensor_value_info(result, kind, dims),
        ],
    )


def loop(times, *nodes, dims=(1,)):
    """A loop over the mean of the image, so that nothing folds it before it runs."""
    steps = nodes or (helper.make_node("Cos", ["carried"], ["next"]),)
    return network(
        helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0),
        helper.make_node("Reshape", ["mean", "one"], ["start"]),
        helper.make_node("Loop", ["times", "true", "start"], ["bomb"], body=body(steps, dims=dims)),
        weights=[integers("one", 1), scalar("times", times), TRUE],
        last="bomb",
    )
