"""Small networks written as ONNX directly: no torch, so a test can afford many."""

import warnings
from dataclasses import replace
from itertools import product

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

import serfer
from serfer.core.checksum import CHECKSUM_BYTES
from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import PlanWarning
from serfer.core.exactness import relative_error
from serfer.core.plan import PackageLimit
from serfer.core.units import FLOAT_BYTES
from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from serfer.splitter.network.onnx_models import session_of
from serfer.splitter.network.source import Source
from serfer.splitter.package_fit import fit
from serfer.splitter.plan_dir.assemble import assemble
from serfer.splitter.plan_dir.check import run_tiles
from serfer.splitter.planning.planner import choices_of, prepare
from serfer.splitter.planning.search import LATENCY
from serfer.splitter.planning.split_options import Budget, SplitOptions
from serfer.splitter.split import split
from serfer.splitter.tiling.from_onnx import from_onnx
from tests.support.onnx_graph import Graph

FACTS = shipped_aws()
LIMIT = PackageLimit(1000 * 1024 * 1024, DEPENDENCY_ALLOWANCE)
BUDGET = Budget(LIMIT, FACTS, (1769,))


class Net(Graph):
    """A network of images of one size."""

    def __init__(self, channels, height, width, seed=0, opset=20, batch="N"):
        super().__init__(seed)
        self.size = (channels, height, width)
        self.opset, self.batch = opset, batch

    def floats(self, *shape):
        return self.random.standard_normal(shape).astype(np.float32)

    def conv(self, x, before, after, kernel, groups=1, **attributes):
        """Append a convolution; a kernel that is a number is square, and padding keeps the map's size."""
        if isinstance(kernel, int):
            attributes.setdefault("pads", [kernel // 2] * 4)
            kernel = [kernel, kernel]
        weight = self.floats(after, before // groups, *kernel) / np.sqrt(before // groups * np.prod(kernel))
        return self.op("Conv", x, weight, self.floats(after), group=groups, kernel_shape=kernel, **attributes)

    def linear(self, x, before, after):
        matrix = self.floats(before, after) / np.sqrt(before)
        return self.op("Gemm", x, matrix, self.floats(after))

    def flat(self, x):
        return self.op("Flatten", x, axis=1)

    def model(self, *outputs, name="x", dims=("N", "K"), domains=()):
        """Return the ONNX model; an output is a name, or a name with its element type and its rank."""
        made = [
            helper.make_tensor_value_info(output, TensorProto.FLOAT, dims)
            if isinstance(output, str)
            else helper.make_tensor_value_info(*output[:2], [None] * output[2])
            for output in outputs
        ]
        given = helper.make_tensor_value_info(name, TensorProto.FLOAT, [self.batch, *self.size])
        imports = [helper.make_opsetid("", self.opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
        body = helper.make_graph(self.nodes, "net", [given], made, self.constants)
        model = helper.make_model(body, opset_imports=imports, ir_version=10 if self.opset > 13 else 7)
        onnx.checker.check_model(model)
        return model

    def save(self, directory, *outputs, **options):
        return saved(directory, self.model(*outputs, **options))

    def graph(self, *outputs, **options):
        return from_onnx(self.model(*outputs, **options), *self.size[1:])

    def batch_of(self, count):
        return self.floats(count, *self.size)


def of(kind, *constants, **attributes):
    """Return a function (net, x) that appends an operator on a map and constants."""
    return lambda net, x: net.op(kind, x, *constants, **attributes)


def saved(directory, model):
    onnx.save(model, directory / "net.onnx")
    return directory / "net.onnx"


def unsplit(model, batch):
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {session.get_inputs()[0].name: batch})[0]


def cut(model, size, directory, grids="auto", stages=None, *, limit=LIMIT, budget=BUDGET, **options):
    """Write the plan of an ONNX model by the splitter's own steps, without its check."""
    graph = from_onnx(model, *size)
    source = Source("net", "random", model, lambda batch: unsplit(model, batch))
    budget = replace(budget, limit=limit)
    decision = fit(graph, SplitOptions(grids=grids, stages=stages, **options), budget, None, lambda _: None)
    for note in decision.notes:
        warnings.warn(note, PlanWarning, stacklevel=2)
    directory.mkdir(exist_ok=True)
    return assemble(decision, source, graph, budget, directory, lambda _: None)


def cut_net(net, output, directory, *arguments, **options):
    return cut(net.model(output), net.size[1:], directory, *arguments, **options)


def choose(graph, cuts, grids, stages, budget, storage=None, **options):
    """Return the fastest chain of stages, None where none keeps the limits."""
    chain = prepare(graph, cuts, grids, stages, budget, storage, **options).best(LATENCY)
    return choices_of(chain) if chain else None


def split_two_stages(home):
    """Split a convolution on 2x2 and a fully connected layer; return the plan and its directory."""
    net = Net(3, 8, 8)
    x = net.conv("x", 3, 4, 3)
    path = net.save(home, net.linear(net.flat(x), 256, 5))
    return split(path, out=home / "plan", grids=["2x2", "1"]), home / "plan"


def room_for(weights):
    """Return a limit that leaves room for so many bytes of weights and graphs."""
    return PackageLimit(weights + DEPENDENCY_ALLOWANCE, DEPENDENCY_ALLOWANCE)


def opened(directory):
    """Open a plan as users do: driver, workers in this process, a store in memory."""
    settings = Settings(cache_dir=directory.parent / "cache")
    return serfer.open(directory, store="memory://", settings=settings)


def through_the_store(directory, batch):
    """Run a plan as users do; return (logits, pipeline's last)."""
    with opened(directory) as pipeline:
        return pipeline.run(batch), pipeline.last


def check_every_answer(model, plan, directory, batch, most=1e-6, expected=None):
    """Compare every answer of a plan with the model's (or `expected`), for one image and for several.

    Answers are computed tile by tile on whole maps, through the store, and in one piece.
    """
    assert load_plan(directory) == plan
    expected = unsplit(model, batch) if expected is None else expected
    whole = session_of(directory / plan.unsplit.path)
    with opened(directory) as pipeline:  # which checks the artefacts
        ways = {
            "tiles": lambda batch: run_tiles(plan, directory, batch),
            "store": pipeline.run,
            "one piece": lambda batch: whole.run(None, {"input0": batch})[0],
        }
        for way, count in product(ways, (1, len(batch))):
            logits = ways[way](batch[:count])
            assert logits.shape == expected[:count].shape, way
            assert relative_error(logits, expected[:count]) <= most, way


def split_and_check(net, output, directory, grids="auto", *, batch=None, **options):
    """Write the plan of a network, as `cut` does, and compare its answers with the model's; return the plan."""
    plan = cut_net(net, output, directory, grids, **options)
    check_every_answer(net.model(output), plan, directory, net.batch_of(2) if batch is None else batch)
    return plan


def check_bytes_written(plan, directory, batch):
    """Check that each stage but the last puts its outputs into the store once."""
    _, last = through_the_store(directory, batch)
    for stage, run in zip(plan.stages[:-1], last.report.stages, strict=False):
        values = FLOAT_BYTES * len(batch) * sum(shape.elements for shape in stage.outputs)
        assert run.bytes_out == values + CHECKSUM_BYTES * sum(len(tile.cells) for tile in stage.tiles)


def plan_error(net, output, plan, directory):
    """Return how far the answers of a network's plan are from its own, for two images."""
    batch = net.batch_of(2)
    return relative_error(run_tiles(plan, directory, batch), unsplit(net.model(output), batch))


def worst_error(model, batch, directory, grids="auto", stages=None, expected=None, **options):
    plan = cut(model, batch.shape[2:], directory, grids, stages, **options)
    expected = unsplit(model, batch) if expected is None else expected
    return relative_error(run_tiles(plan, directory, batch), expected)


def split_error(net, output, directory, grids="auto", stages=None, **options):
    """Return how far the answers of a network in tiles are from its own, for two images.

    Its own are those to single images, since a shape may name the number of images in a batch.
    """
    model, batch = net.model(output), net.batch_of(2)
    expected = np.concatenate([unsplit(model, image[None]) for image in batch])
    return worst_error(model, batch, directory, grids, stages, expected, **options)
