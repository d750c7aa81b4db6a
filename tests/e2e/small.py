"""A network that splits in a second: what most tests here run instead of one of the zoo."""

from dataclasses import replace

import numpy as np
import onnx
from onnx import helper

import serfer
from serfer.core.costs.aws import shipped_aws
from serfer.core.plan import CACHE, INLINE, OBJECTS, Preprocess, sealed
from serfer.plan_directory import file_sha256, load_plan, write_plan
from tests.support.onnx_graph import Graph

SIZE = 34
CLASSES = 7
LABELS = tuple(f"label-{number}" for number in range(CLASSES))
PREPROCESS = Preprocess(
    resize=36, interpolation="bilinear", channels="RGB", scale=1 / 255, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.25)
)
GRIDS = [(2, 2), (2, 2), (1, 1)]


SAME = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}


def small_onnx(seed=0):
    """Three convolutions, one of them with a stride, average pooling and a linear layer: (1, 3, 34, 34) to (1, 7)."""
    net = Graph(seed)
    relu1 = net.op("Relu", net.op("Conv", "input", net.normal(8, 3, 3, 3), **SAME), output="relu1")
    conv2 = net.op("Conv", relu1, net.normal(8, 8, 3, 3, deviation=0.2), strides=[2, 2], **SAME)
    relu2 = net.op("Relu", conv2, output="relu2")
    relu3 = net.op("Relu", net.op("Conv", relu2, net.normal(12, 8, 3, 3, deviation=0.2), **SAME))
    flat = net.op("Flatten", net.op("GlobalAveragePool", relu3, output="pool"))
    layer = [net.normal(*shape, deviation=1.0) for shape in ((CLASSES, 12), (CLASSES,))]
    net.op("Gemm", flat, *layer, output="logits", transB=1)
    return model_of(net, "small", {"logits": ("float32", (CLASSES,))})


def model_of(net, name, outputs):
    """Return the model of a network of images (N, 3, SIZE, SIZE) "input"; `outputs` are types and shapes by name."""
    given, *made = (
        helper.make_tensor_value_info(tensor, helper.np_dtype_to_tensor_dtype(np.dtype(dtype)), ["N", *dims])
        for tensor, (dtype, dims) in {"input": ("float32", (3, SIZE, SIZE)), **outputs}.items()
    )
    graph = helper.make_graph(net.nodes, name, [given], made, net.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    return model


def slow_starts():
    """Return facts of AWS by which small networks take as long to fetch as large ones do: a cold plan helps them."""
    facts = shipped_aws()
    return replace(facts, functions=replace(facts.functions, bandwidth=2e4, load_rate=1e6, init=0.1))


def split_small(directory, *, seed=0, **settings):
    """Split the small network into `directory`/plan, its stages handing on through the store; return that path."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "small.onnx"
    onnx.save(small_onnx(seed), path)
    chosen = {"grids": GRIDS, "preprocess": PREPROCESS, "labels": LABELS, "activation": "softmax", **settings}
    serfer.split(str(path), out=directory / "plan", **chosen)
    return hand_on(directory / "plan", inline=())


def hand_on(directory, inline, objects=()):
    """Let the stages in `inline`, and no others but the last, hand their output on inside answers and payloads.

    Those in `objects` do so through the object store, where there is one.
    """
    plan = load_plan(directory)
    last = len(plan.stages) - 1
    known = {**dict.fromkeys(objects, OBJECTS), **dict.fromkeys([*inline, last], INLINE)}
    paths = [known.get(number, CACHE) for number in range(last + 1)]
    stages = [replace(stage, path=path) for stage, path in zip(plan.stages, paths, strict=True)]
    write_plan(sealed(replace(plan, stages=tuple(stages))), directory)
    return directory


def put_weights_in(directory, *places):
    """Have a plan's stages keep their weights in these places, or all of them in the one that is given."""
    plan = load_plan(directory)
    each = places if len(places) > 1 else places * len(plan.stages)
    stages = [replace(stage, weights_in=place) for stage, place in zip(plan.stages, each, strict=True)]
    write_plan(sealed(replace(plan, stages=tuple(stages))), directory)
    return directory


def give_nan(directory):
    """Make the weights of a plan's first two stages NaN, and the plan sound again."""
    plan = load_plan(directory)
    stages = []
    for stage in plan.stages:
        functions = []
        for function in stage.functions:
            path = directory / function.weights.path
            if len(stages) < 2:
                path.write_bytes(b"\xff" * path.stat().st_size)
            functions.append(replace(function, weights=replace(function.weights, sha256=file_sha256(path))))
        stages.append(replace(stage, functions=tuple(functions)))
    write_plan(sealed(replace(plan, stages=tuple(stages))), directory)
    return directory


def batch(count=1, seed=0):
    return np.random.default_rng(seed).standard_normal((count, 3, SIZE, SIZE), dtype=np.float32)
