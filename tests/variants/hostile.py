"""ONNX files that take hours, all memory, or the process that reads them: some of a hundred bytes."""

import numpy as np
import onnx
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


def huge(*dims):
    """A constant of a shape that no memory holds."""
    return network(
        helper.make_node("ConstantOfShape", ["shape"], ["bomb"]), weights=[integers("shape", *dims)], last="bomb"
    )


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


def nested_loops(depth, times):
    nodes = (helper.make_node("Cos", ["carried"], ["next"]),)
    for _ in range(depth - 1):
        nodes = (helper.make_node("Loop", ["times", "true", "carried"], ["next"], body=body(nodes)),)
    return loop(times, *nodes)


def endless():
    """A loop without a number of turns, whose condition stays true."""
    return network(
        helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0),
        helper.make_node("Reshape", ["mean", "one"], ["start"]),
        helper.make_node(
            "Loop", ["", "true", "start"], ["bomb"], body=body([helper.make_node("Cos", ["carried"], ["next"])])
        ),
        weights=[integers("one", 1), TRUE],
        last="bomb",
    )


def doubled(operator, times, axis=0):
    """A tensor that is joined with itself again and again."""
    nodes = [helper.make_node("Identity", ["x"], ["d0"])]
    for number in range(times):
        inputs = [f"d{number}"] * 2
        more = {"axis": axis} if operator == "Concat" else {}
        nodes.append(helper.make_node(operator, inputs, [f"d{number + 1}"], **more))
    return network(*nodes, last=f"d{times}")


def called_twice(depth):
    """Functions of which each calls the one before it twice."""
    functions = [helper.make_function("f", "f0", ["a"], ["b"], [helper.make_node("Cos", ["a"], ["b"])], _sets())]
    for number in range(1, depth + 1):
        calls = [
            helper.make_node(f"f{number - 1}", ["a"], ["c"], domain="f"),
            helper.make_node(f"f{number - 1}", ["c"], ["b"], domain="f"),
        ]
        functions.append(helper.make_function("f", f"f{number}", ["a"], ["b"], calls, _sets()))
    call = helper.make_node(f"f{depth}", ["x"], ["bomb"], domain="f")
    return network(call, functions=functions, domains=["f"], last="bomb")


def chain_of_functions(length):
    functions = [helper.make_function("f", "f0", ["a"], ["b"], [helper.make_node("Cos", ["a"], ["b"])], _sets())]
    functions += [
        helper.make_function(
            "f", f"f{number}", ["a"], ["b"], [helper.make_node(f"f{number - 1}", ["a"], ["b"], domain="f")], _sets()
        )
        for number in range(1, length)
    ]
    call = helper.make_node(f"f{length - 1}", ["x"], ["bomb"], domain="f")
    return network(call, functions=functions, domains=["f"], last="bomb")


def recursive(*names):
    """Functions that call one another in a circle."""
    following = dict(zip(names, (*names[1:], names[0]), strict=True))
    functions = [
        helper.make_function("f", name, ["a"], ["b"], [helper.make_node(other, ["a"], ["b"], domain="f")], _sets())
        for name, other in following.items()
    ]
    call = helper.make_node(names[0], ["x"], ["bomb"], domain="f")
    return network(call, functions=functions, domains=["f"], last="bomb")


def _sets():
    return [helper.make_opsetid("", 18), helper.make_opsetid("f", 1)]


def nested_ifs(depth):
    branch = [helper.make_node("Identity", ["x"], ["out"])]
    out = helper.make_tensor_value_info("out", FLOAT, ["N", *SIZE])
    for _ in range(depth):
        graphs = [helper.make_graph(branch, name, [], [out]) for name in ("then", "else")]
        branch = [helper.make_node("If", ["true"], ["out"], then_branch=graphs[0], else_branch=graphs[1])]
    branch[0].output[0] = "bomb"
    return network(*branch, weights=[TRUE], last="bomb")


def line(count):
    """Operators one after the other."""
    nodes = [helper.make_node("Cos", [f"c{number}" if number else "x"], [f"c{number + 1}"]) for number in range(count)]
    return network(*nodes, last=f"c{count}")


def one(operator, *inputs, weights=(), **attributes):
    """One operator over the image, and what it needs."""
    node = helper.make_node(operator, ["x", *inputs], ["bomb"], **attributes)
    return network(node, weights=weights, last="bomb")


def external(location, where="weight"):
    """Weights in another file: in a weight, a node's constant, or a function's."""
    tensor = TensorProto(name="far", data_type=FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    if where == "weight":
        return network(helper.make_node("Add", ["x", "far"], ["bomb"]), weights=[tensor], last="bomb")
    constant = helper.make_node("Constant", [], ["far"], value=tensor)
    if where == "constant":
        return network(constant, helper.make_node("Add", ["x", "far"], ["bomb"]), last="bomb")
    nodes = [constant, helper.make_node("Add", ["a", "far"], ["b"])]
    function = helper.make_function("f", "f0", ["a"], ["b"], nodes, _sets())
    call = helper.make_node("f0", ["x"], ["bomb"], domain="f")
    return network(call, functions=[function], domains=["f"], last="bomb")


def weight_of(dims, raw=b""):
    """A weight that says it has other dimensions than it has values."""
    tensor = TensorProto(name="odd", data_type=FLOAT, dims=dims, raw_data=raw)
    return network(helper.make_node("ReduceMax", ["odd"], ["bomb"]), weights=[tensor], last="bomb")


def altered(change):
    model = onnx.ModelProto.FromString(network())
    change(model)
    return model.SerializeToString()


def scan(length):
    """A recurrence over a long sequence that a constant makes."""
    step = helper.make_graph(
        [helper.make_node("Cos", ["state"], ["next"]), helper.make_node("Identity", ["item"], ["same"])],
        "step",
        [helper.make_tensor_value_info("state", FLOAT, [1]), helper.make_tensor_value_info("item", FLOAT, [1])],
        [helper.make_tensor_value_info("next", FLOAT, [1]), helper.make_tensor_value_info("same", FLOAT, [1])],
    )
    return network(
        helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0),
        helper.make_node("Reshape", ["mean", "one"], ["start"]),
        helper.make_node("ConstantOfShape", ["shape"], ["items"]),
        helper.make_node("Scan", ["start", "items"], ["bomb", "all"], body=step, num_scan_inputs=1),
        weights=[integers("one", 1), integers("shape", length, 1)],
        last="bomb",
    )


def outer(side):
    """A column times a row."""
    return network(
        helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0),
        helper.make_node("Expand", ["mean", "column"], ["a"]),
        helper.make_node("Expand", ["mean", "row"], ["b"]),
        helper.make_node("MatMul", ["a", "b"], ["bomb"]),
        weights=[integers("column", side, 1), integers("row", 1, side)],
        last="bomb",
    )


def growing():
    """A loop whose tensor is twice as large after each turn."""
    return loop(60, helper.make_node("Concat", ["carried", "carried"], ["next"], axis=0), dims=("n",))


def ranged(limit):
    weights = [scalar("from", 0), scalar("to", limit), scalar("by", 1)]
    return network(
        helper.make_node("Range", ["from", "to", "by"], ["many"]),
        helper.make_node("Cast", ["many"], ["bomb"], to=FLOAT),
        weights=weights,
        last="bomb",
    )


def cyclic(model):
    model.graph.node.append(helper.make_node("Add", ["round", "x"], ["about"]))
    model.graph.node.append(helper.make_node("Add", ["about", "x"], ["round"]))


def many_inputs(model):
    model.graph.input.extend(helper.make_tensor_value_info(f"x{number}", FLOAT, [1]) for number in range(20_000))


RESIZED = numpy_helper.from_array(np.array([1, 1, 30_000, 30_000], np.float32), "scales")
FILES = {
    "loop-1e8": lambda: loop(MANY),
    "loop-max": lambda: loop(2**63 - 1),
    "loop-endless": endless,
    "loop-nested-2": lambda: nested_loops(2, 100_000),
    "loop-nested-4": lambda: nested_loops(4, 1_000),
    "loop-nested-20": lambda: nested_loops(20, 50),
    "loop-growing": growing,
    "loop-over-a-chain": lambda: loop(
        10**7,
        *(helper.make_node("Cos", [f"k{n}" if n else "carried"], [f"k{n + 1}"]) for n in range(50)),
        helper.make_node("Identity", ["k50"], ["next"]),
    ),
    "scan-1e8": lambda: scan(MANY),
    "scan-1e12": lambda: scan(10**12),
    "constant-1e10": lambda: huge(100_000, 100_000),
    "constant-1e12": lambda: huge(10**12),
    "constant-2e63": lambda: huge(2**62, 2),
    "constant-overflow": lambda: huge(2**32, 2**32),
    "constant-negative": lambda: huge(-5),
    "constant-many-dims": lambda: huge(*[2] * 60),
    "tile-1e9": lambda: one("Tile", "repeats", weights=[integers("repeats", 1, 1, 30_000, 30_000)]),
    "tile-max": lambda: one("Tile", "repeats", weights=[integers("repeats", 2**40, 2**20, 1, 1)]),
    "tile-negative": lambda: one("Tile", "repeats", weights=[integers("repeats", -1, 1, 1, 1)]),
    "expand-1e10": lambda: one("Expand", "to", weights=[integers("to", 10**8, 1, 1, 1, 1)]),
    "expand-max": lambda: one("Expand", "to", weights=[integers("to", 2**62, 1, 1, 1, 1)]),
    "pad-1e10": lambda: one("Pad", "pads", weights=[integers("pads", 0, 0, 50_000, 50_000, 0, 0, 50_000, 50_000)]),
    "pad-max": lambda: one("Pad", "pads", weights=[integers("pads", 0, 0, 2**62, 0, 0, 0, 2**62, 0)]),
    "resize-30000": lambda: one("Resize", "", "scales", weights=[RESIZED]),
    "resize-sizes": lambda: one(
        "Resize", "", "", "sizes", mode="linear", weights=[integers("sizes", 1, 3, 100_000, 100_000)]
    ),
    "transposed-stride": lambda: one(
        "ConvTranspose",
        "k",
        strides=[20_000, 20_000],
        weights=[numpy_helper.from_array(np.ones((3, 1, 1, 1), np.float32), "k")],
    ),
    "outer-1e10": lambda: outer(100_000),
    "outer-1e14": lambda: outer(10**7),
    "range-1e10": lambda: ranged(10**10),
    "range-max": lambda: ranged(2**63 - 1),
    "eye-1e10": lambda: network(
        helper.make_node("ConstantOfShape", ["shape"], ["small"]),
        helper.make_node("Expand", ["small", "to"], ["wide"]),
        helper.make_node("EyeLike", ["wide"], ["bomb"], dtype=FLOAT),
        weights=[integers("shape", 1, 1), integers("to", 100_000, 100_000)],
        last="bomb",
    ),
    "random-1e10": lambda: network(
        helper.make_node("RandomNormal", [], ["bomb"], shape=[100_000, 100_000]), last="bomb"
    ),
    "one-hot-1e10": lambda: network(
        helper.make_node("ArgMax", ["x"], ["at"], axis=1),
        helper.make_node("OneHot", ["at", "depth", "values"], ["bomb"]),
        weights=[scalar("depth", 10**10), numpy_helper.from_array(np.array([0, 1], np.float32), "values")],
        last="bomb",
    ),
    "concat-2e40": lambda: doubled("Concat", 40),
    "concat-channels-2e30": lambda: doubled("Concat", 30, axis=1),
    "functions-2e30": lambda: called_twice(30),
    "functions-2e60": lambda: called_twice(60),
    "functions-chain-40": lambda: chain_of_functions(40),
    "functions-chain-5000": lambda: chain_of_functions(5_000),
    "function-of-itself": lambda: recursive("f"),
    "functions-in-a-circle": lambda: recursive("f", "g", "h"),
    "ifs-14": lambda: nested_ifs(14),
    "nodes-60000": lambda: line(60_000),
    "external-relative": lambda: external("weights.bin"),
    "external-above": lambda: external("../../../../etc/passwd"),
    "external-absolute": lambda: external("/etc/passwd", "constant"),
    "external-in-a-function": lambda: external("/proc/self/environ", "function"),
    "weight-of-1e14": lambda: weight_of([10**7, 10**7]),
    "weight-overflow": lambda: weight_of([2**32, 2**32]),
    "weight-negative": lambda: weight_of([-1, 5], b"\0" * 20),
    "weight-cut": lambda: weight_of([1000], b"\0" * 7),
    "empty": lambda: b"",
    "text": lambda: b"<html>not found</html>",
    "noise": lambda: np.random.default_rng(0).bytes(5_000),
    "cut-off": lambda: network()[:-40],
    "opset-999": lambda: network(opset=999),
    "no-operator": lambda: network(helper.make_node("Teapot", ["x"], ["bomb"]), last="bomb"),
    "other-domain": lambda: network(
        helper.make_node("Cos", ["x"], ["bomb"], domain="evil"), domains=["evil"], last="bomb"
    ),
    "missing-input": lambda: network(helper.make_node("Add", ["x", "nothing"], ["bomb"]), last="bomb"),
    "cycle": lambda: altered(cyclic),
    "inputs-20000": lambda: altered(many_inputs),
    "two-of-a-name": lambda: network(
        helper.make_node("Cos", ["x"], ["bomb"]), helper.make_node("Sin", ["x"], ["bomb"]), last="bomb"
    ),
    "not-the-classes": lambda: network(
        helper.make_node("Reshape", ["x", "to"], ["bomb"]), weights=[integers("to", 7)], last="bomb"
    ),
}
HARMLESS = network()
