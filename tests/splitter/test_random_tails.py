"""Any network of which some operators cannot be split: those run as they are, and its answers are the file's own."""

import tempfile
from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnx
import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper
from onnxscript import ir

from serfer.core.exactness import relative_error
from serfer.core.plan import AS_IS
from serfer.splitter.network.external_weights import ExternalWeightsModel
from serfer.splitter.network.onnx_models import session_of
from serfer.splitter.network.source import Source
from serfer.splitter.network.unsupported import CannotSplitError
from serfer.splitter.plan_dir.assemble import assemble
from serfer.splitter.plan_dir.check import run_tiles, whole_runner
from serfer.splitter.planning.planner import Choice, Decision
from serfer.splitter.planning.stage_costs import StageEnumerator
from serfer.splitter.tiling.cuts import all_cuts
from serfer.splitter.tiling.from_onnx import from_onnx, split_graph, whole_graph
from serfer.splitter.tiling.global_pooling import with_tile_pools
from serfer.splitter.tiling.grids import ONE, parse_grid
from tests.splitter.models import BUDGET, Net
from tests.splitter.test_random_networks import USUAL

EXACT = 1e-5
GRID = parse_grid("2x2")
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


class Tailed(Net):
    """Some convolutions on a small map, and behind them operators that cannot be split, drawn by a seed."""

    def __init__(self, seed, tail=None):
        self.draw = np.random.default_rng(seed)
        super().__init__(2, *(int(side) for side in self.draw.integers(8, 14, 2)), seed=seed)
        self.outputs, self.domains = [], []
        x, self.shape = "x", (2, *self.size[1:])
        for _ in range(self.draw.integers(0, 3)):
            x = self.step_conv(x)
        if self.draw.random() < 0.3 and x != "x":
            self.outputs.append((self.op("Sigmoid", x), FLOAT, 4))
        self.before = x
        self.tail = tail or self.draw.choice(TAILS)
        getattr(self, f"tail_{self.tail}")(x)

    def whole(self):
        return self.model(*self.outputs, domains=self.domains)

    def step_conv(self, x):
        channels, stride = int(self.draw.integers(2, 5)), int(self.draw.integers(1, 3))
        before, height, width = self.shape
        made = self.op("Relu", self.conv(x, before, channels, 3, strides=[stride, stride]))
        self.shape = (channels, -(-height // stride), -(-width // stride))
        return made

    def then(self, x):
        """End with a map that what could not be split gave: more operators, the map from before among them."""
        if self.draw.random() < 0.5:
            x = self.op("Add", x, self.before) if self.before != "x" else self.op("Neg", x)
        if self.draw.random() < 0.7:
            x = self.step_conv(x)
        if self.draw.random() < 0.4:
            x = self.flat(self.op("GlobalAveragePool", x))
        self.outputs.append((x, FLOAT, 4 if "Flatten" not in self.nodes[-1].op_type else 2))

    def recurrent(self, x, kind, gates):
        """Read the rows of a map one after the other, in one direction or both."""
        directions, (channels, height, width) = int(self.draw.integers(1, 3)), self.shape
        rows = self.op("Reshape", self.op("Transpose", x, perm=[2, 0, 1, 3]), [height, 1, channels * width])
        weights = [self.floats(directions, 3 * gates, size) / 4 for size in (channels * width, 3)]
        direction = "bidirectional" if directions > 1 else "forward"
        states, last = self.op(kind, rows, *weights, outputs=2, hidden_size=3, direction=direction)
        self.outputs += [(states, FLOAT, 4)] + [(last, FLOAT, 3)] * int(self.draw.integers(0, 2))

    def tail_lstm(self, x):
        self.recurrent(x, "LSTM", 4)

    def tail_gru(self, x):
        self.recurrent(x, "GRU", 3)

    def tail_attention(self, x):
        channels, height, width = self.shape
        flat = self.op("Reshape", x, [0, channels, height * width])
        places = self.op("Transpose", flat, perm=[2, 0, 1])
        left, right = (self.op("Transpose", places, perm=perm) for perm in ([1, 0, 2], [1, 2, 0]))
        mixed = self.op("MatMul", self.op("Softmax", self.op("MatMul", left, right), axis=-1), left)
        ordered = self.op("Transpose", mixed, perm=[1, 0, 2])
        self.outputs.append((self.op("ReduceMean", ordered, [0], keepdims=0), FLOAT, 2))

    def tail_folded(self, x):
        """Channels are folded into the images, as window attention does, and come back."""
        channels, height, width = self.shape
        folded = self.op("Reshape", x, [channels, 1, height, width])
        worked = self.op("Softmax", folded, axis=int(self.draw.integers(2, 4)))
        self.then(self.op("Reshape", worked, [1, channels, height, width]))

    def tail_mean_of_batch(self, x):
        self.then(self.op("Sub", x, self.op("ReduceMean", x, [0], keepdims=1)))

    def tail_sum_of_batch(self, x):
        self.then(self.op("CumSum", x, 0, reverse=int(self.draw.integers(0, 2))))

    def tail_loop(self, x):
        shape = [1, *self.shape]
        body = helper.make_graph(
            [helper.make_node("Mul", ["state", "half"], ["next"]), helper.make_node("Identity", ["go"], ["on"])],
            "body",
            [
                helper.make_tensor_value_info("turn", INT64, []),
                helper.make_tensor_value_info("go", BOOL, []),
                helper.make_tensor_value_info("state", FLOAT, shape),
            ],
            [helper.make_tensor_value_info("on", BOOL, []), helper.make_tensor_value_info("next", FLOAT, shape)],
            [onnx.numpy_helper.from_array(np.float32(0.5), "half")],
        )
        self.then(self.op("Loop", self.draw.integers(1, 4), np.ones((), bool), x, body=body))

    def tail_branch(self, x):
        scale = self.constant(self.floats(1, self.shape[0], 1, 1))

        def branch(kind, name):
            nodes = [helper.make_node(kind, [x, scale], [name], name=name)]
            return helper.make_graph(nodes, name, [], [helper.make_tensor_value_info(name, FLOAT, [1, *self.shape])])

        total = self.op("ReduceSum", x, keepdims=0)
        positive = self.op("Greater", total, 0.0)
        self.then(self.op("If", positive, then_branch=branch("Mul", "then"), else_branch=branch("Sub", "else")))

    def tail_places(self, x):
        found = self.op("NonZero", self.op("Relu", x))
        self.outputs.append((self.op("Transpose", found, perm=[1, 0]), INT64, 2))

    def tail_order(self, x):
        """The second result of an operator, whole numbers."""
        values, at = self.op("TopK", x, [2], outputs=2, axis=1)
        self.outputs += [(values, FLOAT, 4), (at, INT64, 4)]

    def tail_8_bits(self, x):
        channels, height, width = self.shape
        quantised, scale, zero = self.op("DynamicQuantizeLinear", self.flat(x), outputs=3)
        weight = self.draw.integers(0, 9, (channels * height * width, 4), dtype=np.uint8)
        sums = self.op("Cast", self.op("MatMulInteger", quantised, weight, zero), to=FLOAT)
        self.outputs.append((self.op("Mul", sums, scale), FLOAT, 2))

    def tail_unpooled(self, x):
        pooled, at = self.op("MaxPool", x, outputs=2, kernel_shape=[2, 2], strides=[2, 2])
        self.then(self.op("MaxUnpool", pooled, at, [1, *self.shape], kernel_shape=[2, 2], strides=[2, 2]))

    def tail_foreign(self, x):
        self.domains = ["com.microsoft"]
        self.then(self.op("QuickGelu", x, domain="com.microsoft"))

    def tail_sequence(self, x):
        self.then(self.op("ConcatFromSequence", self.op("SplitToSequence", x, axis=1), axis=1))


TAILS = [name.removeprefix("tail_") for name in dir(Tailed) if name.startswith("tail_")]


def source_of(model):
    session = session_of(model)

    def run(batch):
        values, names = session.run(None, {"x": batch}), [value.name for value in model.graph.output]
        return dict(zip(names, values, strict=True)) if len(values) > 1 else values[0]

    return Source("net", "random", ExternalWeightsModel.of(ir.from_proto(model)), run, exported=False)


def read(source, sample):
    """Return the network's graph, and its source as a plan computes it; most go without ONNX's slow optimizer."""
    with patch("onnxscript.optimizer.optimize_ir"):
        try:
            return from_onnx(source.onnx, *sample.shape[2:]), source
        except CannotSplitError as refusal:
            return split_graph(source, sample, refusal)


def decide(graph):
    """Cut at the last place before the part up to which a 2x2 grid can be; None where there is no such place."""
    graph = with_tile_pools(graph)
    part = next((index for index, node in enumerate(graph.nodes) if node.kind == AS_IS), len(graph.nodes))
    cuts = all_cuts(graph)
    last = cuts[-1].position
    stages = StageEnumerator(graph, cuts, BUDGET.profiles)
    stops = {work.stop for work in stages.tiled(GRID) if work.start == 0 and work.stop <= part and work.stop < last}
    if not stops:
        return None
    stop = max(stops)
    choices = [
        Choice(0, stop, GRID, 1769, 0.0, 0.0, path="cache"),
        Choice(stop, last, ONE, 1769, 0.0, 0.0, path="inline"),
    ]
    return Decision(graph, [cut for cut in cuts if cut.position in (0, stop, last)], choices)


def check(seed):
    net = Tailed(seed)
    note(f"seed {seed}: {net.tail}, {[node.op_type for node in net.nodes]}")
    model = net.whole()
    batch = net.batch_of(3)
    source = source_of(model)
    graph, alone = read(source, batch[:1])
    expected = alone.run(batch)
    assert relative_error(whole_runner(graph)(batch), expected) <= EXACT
    whole, as_given = whole_graph(source, batch[:1])
    assert relative_error(whole_runner(whole)(batch), as_given.run(batch)) == 0
    decision = decide(graph)
    if decision:
        with tempfile.TemporaryDirectory() as place:
            plan = assemble(decision, alone, graph, BUDGET, Path(place), lambda _: None)
            assert [stage.grid.tiles for stage in plan.stages] == [4, 1]
            assert relative_error(run_tiles(plan, Path(place), batch), expected) <= EXACT


@pytest.mark.exact
@given(st.integers(0, 2**31))
@settings(USUAL, max_examples=36)
def test_any_network_with_a_tail_that_cannot_be_split_has_the_files_own_answers(seed):
    check(seed)


@pytest.mark.exact
@pytest.mark.slow
@given(st.integers(0, 2**31))
@settings(USUAL, max_examples=100)
def test_a_hundred_networks_with_tails(seed):
    check(seed)


@pytest.mark.exact
@pytest.mark.weekly
@given(st.integers(0, 2**31))
@settings(USUAL, max_examples=2000, derandomize=False)
def test_two_thousand_networks_with_tails(seed):
    check(seed)


@pytest.mark.exact
def test_every_kind_of_tail_is_drawn():
    assert {Tailed(seed).tail for seed in range(200)} == {*TAILS}
