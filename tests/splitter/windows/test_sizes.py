"""Plans for images of several sizes, and constants that depend on the size or the place: exact, or refused."""

import random
from contextlib import suppress
from functools import partial, reduce
from itertools import permutations, product

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import serfer
from serfer.core.errors import ModelError
from serfer.core.exactness import relative_error
from serfer.core.plan import MapStatistics
from serfer.plan_directory import load_plan
from serfer.splitter.network.graph import STATISTICS, Graph, Node, Statistic
from serfer.splitter.network.onnx_models import model_of
from serfer.splitter.windows.sections import Prices, Section, _cheapest, sections_of
from tests.splitter.models import Net, saved
from tests.splitter.windows.random_maps import Drawn
from tests.splitter.windows.test_map_plan import image
from tests.splitter.windows.test_random_maps import by_windows, session

EXACT = 1e-5


def network():
    net = Drawn(random.Random(0))  # noqa: S311 - no secret
    net.channels = net.first = 3
    net.conv((3, 3), pads=[1, 1, 1, 1])
    return net


def pyramid(mode="linear"):
    """Two halvings, rounded up, and back to the size of what was halved."""
    net = network()
    first, channels = net.name, net.channels
    for _ in range(2):
        net.conv((3, 3), pads=[1, 1, 1, 1], strides=[2, 2])
    sides = [net.side(axis, first) for axis in (2, 3)]
    net.then("Resize", "", "", net.op("Concat", [1, net.channels], *sides, axis=0), mode=mode)
    net.then("Concat", first, axis=1)
    net.channels += channels
    net.conv((3, 3), pads=[1, 1, 1, 1])
    return net


def scaled(how, **attributes):
    """Multiply by 100 over the height, or over the larger side; or let a convolution's weights do so."""
    net = network()
    net.conv((1, 1), **attributes)
    height, width = (net.op("Cast", net.side(axis, "x"), to=TensorProto.FLOAT) for axis in (2, 3))
    number = net.op("Max", height, width) if how == "larger side" else height
    factor = net.op("Div", [100.0], number)
    if how == "large weights":
        weight = net.op("Mul", net.floats(40, net.channels, 3, 3), factor)
        net.then("Conv", weight, pads=[1, 1, 1, 1])
    else:
        net.then("Mul", factor)
    return net


def fitted():
    """Halve, rounded up, double, and pad by a negative number of rows and columns: even sizes have no such operator."""
    net = network()
    sides = [net.side(axis) for axis in (2, 3)]
    net.conv((3, 3), pads=[1, 1, 1, 1], strides=[2, 2])
    net.then("ConvTranspose", net.floats(net.channels, 2, 2, 2), strides=[2, 2])
    net.channels = 2
    more = [net.op("Sub", side, net.side(axis)) for axis, side in zip((2, 3), sides, strict=True)]
    net.then("Pad", net.op("Concat", [0, 0, 0, 0, 0, 0], *more, axis=0))
    net.conv((3, 3), pads=[1, 1, 1, 1])
    return net


def dead_lines(*lines):
    """Select all columns, some replaced by the ones before them."""
    net = network()
    numbers = net.op("Range", 0, net.op("Squeeze", net.side(3)), 1)
    for line in lines:
        numbers = net.op("Where", net.op("Equal", numbers, [line]), [line - 1], numbers)
    net.then("Gather", numbers, axis=3)
    return net


def planned(net, sizes, place, window=64, **options):
    return serfer.map_plan(saved(place, net.model()), sizes, place / "plan", window=window, **options)


def check(net, place):
    """Compare the maps of all sizes that the plan in `place` is for with the network's."""
    oracle, windows = session(place / "net.onnx"), load_plan(place / "plan").windows
    for height, width in product([axis.size for axis in windows.heights], [axis.size for axis in windows.widths]):
        batch = image(height, width, net.first)
        [expected] = oracle.run(None, {"x": batch})
        assert relative_error(by_windows(place / "plan", batch), expected) <= EXACT


@pytest.mark.parametrize("how", ["height", "larger side", "large weights"])
def test_each_size_has_the_constants_of_its_own(how, tmp_path):
    net = scaled(how)
    with pytest.warns(
        serfer.PlanWarning, match="maps by this plan are not compared with the network: what '(Mul|Conv)"
    ):
        planned(net, [(200, 90), (100, 250)], tmp_path)
    check(net, tmp_path)


@pytest.mark.parametrize("sizes", [*permutations([(320, 320), (310, 318)])])
def test_a_size_that_is_refused_alone_is_refused_beside_others_by_its_numbers(sizes, tmp_path):
    with pytest.raises(ModelError, match=r"images of 3\d\d x 3\d\d pixels: operator 'Resize_\d+_0' \(Resize\)"):
        planned(pyramid(mode="nearest"), sizes, tmp_path, window=32)
    assert not (tmp_path / "plan").exists()


@pytest.mark.parametrize(
    ("make", "sizes", "window", "kinds"),
    [
        *((pyramid, sizes, 128, None) for sizes in permutations([(320, 320), (310, 318)])),
        (pyramid, [(310, 318)], 128, None),
        (pyramid, [(256, 320), (384, 256), (512, 448)], 64, 9),
        (fitted, [(160, 168), (157, 164)], 32, None),
    ],
)
@pytest.mark.filterwarnings("ignore:maps by this plan are not compared")
def test_sizes_share_kinds_of_windows_where_their_graphs_are_equal(make, sizes, window, kinds, tmp_path):
    net = make()
    plan = planned(net, sizes, tmp_path, window=window)
    assert kinds in {None, len(plan.stages[0].tiles)}
    check(net, tmp_path)


@pytest.mark.filterwarnings("ignore:maps by this plan are not compared")
@pytest.mark.parametrize("lines", [(997,), (70, 300), (1, 64, 65, 700)])
def test_a_window_in_which_a_selection_has_an_exception_is_of_a_kind_of_its_own(lines, tmp_path):
    net = dead_lines(*lines)
    planned(net, [(64, 1000)], tmp_path)
    check(net, tmp_path)
    with pytest.raises(ModelError, match=r"'Gather_\d+_0' \(Gather\) .* depends on where in the image it is$"):
        planned(dead_lines(*range(70, 1000, 65)), [(64, 1000)], tmp_path)


def refusal(net, tmp_path, *outputs, size=(256, 256), window="auto"):
    model = net.model(outputs[0], dims=("N", "C", "Y", "X"))
    for name in outputs[1:]:
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None] * 4))
    with pytest.raises(ModelError) as caught:
        serfer.map_plan(saved(tmp_path, model), [size], tmp_path / "plan", window=window)
    return str(caught.value)


@pytest.fixture
def net():
    return Net(3, "H", "W")


@pytest.mark.exact
def test_an_operator_without_a_rule_is_not_said_to_look_at_the_whole_image(net, tmp_path):
    x = net.op("CumSum", net.conv("x", 3, 4, [3, 3]), 1)
    assert "(CumSum) cannot be split: there is no rule for windows of it" in refusal(net, tmp_path, x)


def test_an_operator_on_five_axes_says_so(net, tmp_path):
    x = net.op("Unsqueeze", net.conv("x", 3, 4, [3, 3]), [1])
    x = net.op("Conv", x, net.floats(1, 1, 3, 3, 3), kernel_shape=[3, 3, 3], pads=[1] * 6)
    x = net.op("Squeeze", x, [1])
    assert "there is no rule for windows of tensors of 5 axes" in refusal(net, tmp_path, x)


@pytest.mark.exact
def test_the_mean_of_each_row_looks_at_the_whole_image(net, tmp_path):
    x = net.conv("x", 3, 4, [3, 3])
    text = refusal(net, tmp_path, net.op("Mul", x, net.op("ReduceMean", x, [3])))
    assert "(ReduceMean) cannot be split: it looks at the whole image" in text


def test_images_that_are_too_small_and_outputs_that_are_not_maps_or_end_far_apart(net, tmp_path):
    text = refusal(net, tmp_path, net.op("Relu", net.conv("x", 3, 4, [3, 3], strides=[8, 8])), size=(8, 8))
    assert "the image is too small" in text
    x = net.conv("x", 3, 4, [3, 3])
    text = refusal(net, tmp_path, x, net.op("Flatten", net.op("GlobalAveragePool", x)))
    assert "a map plan needs outputs that are maps, (N, C, H, W) or (N, H, W), and this network has" in text
    cut = net.op("Slice", x, [0], [-150], [2])
    text = refusal(net, tmp_path, net.op("Relu", x), cut, size=(600, 300), window=64)
    assert "the outputs cover parts of the image that are too different" in text


def test_a_size_whose_blocks_do_not_fit_is_refused_as_the_network_refuses_it(net, tmp_path):
    x = net.op("SpaceToDepth", net.conv("x", 3, 4, [3, 3]), blocksize=2)
    text = refusal(net, tmp_path, x, size=(256, 255))
    assert "(SpaceToDepth) cannot be served: it takes maps whose sides are multiples of 2, not 254 x 253" in text


SIDE = 8


def graph_of(nodes, statistics=(), weights=None, output=None):
    shapes = dict.fromkeys(("x", *(node.output for node in nodes)), (1, 1, SIDE, SIDE))
    shapes |= {node.output: (1, 1) for node in nodes if node.kind == "Slice"} | {STATISTICS: (1, len(statistics))}
    fixed = frozenset({STATISTICS, *(node.output for node in nodes if node.kind == "Slice")})
    outputs = (output or nodes[-1].output,)
    return Graph(tuple(nodes), weights or {}, "x", outputs, shapes, 21, statistics=tuple(statistics), fixed=fixed)


@st.composite
def networks(draw):
    """A few operators, each of one or two maps before it, with a price of each map and each operator."""
    nodes = []
    for number in range(draw(st.integers(2, 6))):
        before = ["x", *(f"t{each}" for each in range(number))]
        inputs = draw(st.lists(st.sampled_from(before), min_size=1, max_size=2, unique=True))
        nodes.append(Node(f"t{number}", "Sum", tuple(inputs), f"t{number}"))
    target = nodes[-1].output
    earlier = draw(st.sets(st.sampled_from([node.output for node in nodes[:-1]])))
    price = st.integers(1, 9)
    read = {name: draw(price) for name in sorted({"x", *earlier})}
    compute = {node.output: draw(price) for node in nodes}
    return graph_of(nodes), target, read, compute


def price_of(graph, target, reads, read, compute):
    """What reading some maps, and computing all else that the target needs, costs; None where something is missing."""
    needed, cost = {target}, sum(read[name] for name in reads)
    for node in reversed(graph.nodes):
        if node.output in needed and node.output not in reads:
            needed.update(node.inputs)
            cost += compute[node.output]
    return None if "x" in needed and "x" not in reads else cost


@settings(max_examples=150)
@given(networks())
def test_no_other_choice_of_maps_is_cheaper(network):
    graph, target, read, compute = network
    found = _cheapest(graph, [target], read, lambda node: compute[node.output])
    ways = [
        [name for name, chosen in zip(read, bits, strict=True) if chosen]
        for bits in product((False, True), repeat=len(read))
    ]
    prices = [price_of(graph, target, way, read, compute) for way in ways]
    assert price_of(graph, target, found, read, compute) == min(each for each in prices if each is not None)


def test_a_map_is_kept_by_the_pass_that_computes_it_and_never_read_before():
    statistics = [Statistic(f"c{number}", number, MapStatistics(number, 1, ("mean",))) for number in range(3)]
    nodes, weights, before = [], {}, "x"
    for number in range(3):
        weights |= {f"at{number}": np.array([number]), f"to{number}": np.array([number + 1]), "axis": np.array([1])}
        nodes += [
            Node(f"c{number}", "Conv", (before,), f"c{number}"),
            Node(f"s{number}", "Slice", (STATISTICS, f"at{number}", f"to{number}", "axis"), f"s{number}"),
            Node(f"n{number}", "Sub", (f"c{number}", f"s{number}"), f"n{number}"),
        ]
        before = f"n{number}"
    nodes.append(Node("skip", "Add", ("n2", "n0"), "skip"))
    graph = graph_of(nodes, statistics, weights)
    free = sections_of(graph, 3, Prices(lambda _: 1.0, lambda _: 0.0, lambda _: 0.0))
    assert free == (
        Section((), ("c0",)),
        Section(("c0",), ("n0", "c1")),  # what the skip reads is known in this pass, not in the one of its source
        Section(("c1",), ("c2",)),
        Section(("n0", "c2"), ()),
    )
    dear = sections_of(graph, 3, Prices(lambda _: 1e-3, lambda _: 10.0, lambda _: 10.0))
    assert dear == (Section(),) * 4


@pytest.mark.parametrize(
    ("kind", "attributes", "sides", "named"),
    [
        ("BatchNormalization", {"training_mode": 1}, ("h", "w"), r"'last' \(BatchNormalization\).* training mode"),
        ("MeanVarianceNormalization", {}, ("h", "w"), r"'last' \(MeanVarianceNormalization\)"),
        ("Relu", {}, (512, 512), "images of 512 x 512 alone, .* free height and width"),
    ],
)
def test_refusal_names_the_users_operator_or_size(kind, attributes, sides, named, tmp_path):
    with pytest.raises(ModelError, match=named):
        plan_of_two(kind, attributes, sides, tmp_path)


def test_operator_that_ends_otherwise_at_odd_sizes_is_named(tmp_path):
    attributes = {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}
    plan = plan_of_two("MaxPool", attributes, ("h", "w"), tmp_path)
    assert "'last' (MaxPool)" in plan.windows.rules.refused


def chosen(net, condition):
    """Multiply by 2 where a condition on the height or width is met, by 1 where it is not."""
    net.then("Mul", net.op("Where", condition, [2.0], [1.0]))


@pytest.mark.parametrize(
    ("choose", "named"),
    [
        (lambda net, high, _: chosen(net, net.op("Equal", net.op("Mod", high, [1_000_003]), [5])), "Mul"),
        (lambda net, _, wide: chosen(net, net.op("Not", net.op("Greater", wide, [1_999_999]))), "Mul"),
        (lambda net, high, wide: chosen(net, net.op("Equal", net.op("Sub", high, wide), [7])), "Mul"),
        (lambda net, high, wide: chosen(net, net.op("Less", net.op("Mul", high, wide), [500_000])), "Mul"),
        (
            lambda net, high, wide: chosen(
                net, net.op("And", net.op("Equal", high, [304]), net.op("Equal", wide, [500]))
            ),
            "Mul",
        ),
        (
            lambda net, high, _: chosen(net, net.op("Equal", net.op("Expand", net.op("Squeeze", high), [1]), [304])),
            "Mul",
        ),
        (
            lambda net, high, _: net.then(
                "Pad", net.op("Mul", net.op("Div", high, [1_000_003]), [0, 0, 0, 0, 0, 0, 2, 0])
            ),
            "Pad",
        ),
        (lambda net, high, _: chosen(net, net.op("Equal", net.op("Mod", high, [8]), [9])), None),
        (lambda net, high, _: chosen(net, net.op("Equal", high, [-1])), None),
    ],
)
def test_a_file_is_for_any_size_only_where_its_numbers_follow_it(choose, named, tmp_path):
    net = network()
    sides = [net.side(axis) for axis in (2, 3)]
    net.conv((3, 3), pads=[1, 1, 1, 1])
    choose(net, *sides)
    net.conv((3, 3), pads=[1, 1, 1, 1])
    if named is None:
        planned(net, "any", tmp_path)
        return
    with pytest.raises(ModelError, match=rf"\({named}\) .*what it computes depends on the image's size.*HEIGHTxWIDTH"):
        planned(net, "any", tmp_path)


BOUND = st.integers(1, 400) | st.integers(1, 2_100_000)
FACTORS, DIVISOR = st.sampled_from([(1, 0), (0, 1), (1, -1), (1, 1)]), st.sampled_from([1 << 40, 2, 5, 1_000_003])
TERMS = st.tuples(FACTORS, DIVISOR, BOUND, st.just(1) | BOUND)


def meets(terms, sides):
    high, wide = sides
    return all(
        least <= (down * high + across * wide) % by < least + count for (down, across), by, least, count in terms
    )


class Choosing(nn.Conv2d):
    def forward(self, x):
        return super().forward(x) * (2 if meets(self.terms, x.shape[2:]) else 1)


@pytest.mark.parametrize("kind", ["file", pytest.param("module", marks=pytest.mark.slow)])
@settings(max_examples=9)
@given(terms=st.lists(TERMS, min_size=1, max_size=2))
def test_no_plan_for_any_size_takes_two_images_of_which_one_meets_a_condition(kind, terms, tmp_path_factory):
    place, net, module, bands = tmp_path_factory.mktemp("any"), network(), Choosing(3, 3, 3, padding=1).eval(), []
    module.terms = terms
    for factors, divisor, least, count in terms:
        sides = [net.op("Mul", net.side(axis, "x"), [factor]) for axis, factor in zip((2, 3), factors, strict=True)]
        value = net.op("Mod", net.op("Add", *sides), [divisor])
        bands += [net.op("GreaterOrEqual", value, [least]), net.op("Less", value, [least + count])]
    chosen(net, reduce(partial(net.op, "And"), bands))
    model = module if kind == "module" else saved(place, net.model())
    ends = [end + more for _, by, low, count in terms for end in (by + low, low, low + count) for more in (-1, 0)]
    near = {side + more for side in (*ends, 304, 2_000_000) for more in (-304, 0, 304)} & {*range(304, 2_000_001)}
    with suppress(ModelError):
        rules = serfer.map_plan(model, "any", place / "plan", window=64).windows.rules.sides[-1]
        taken = [[side for side in near if rule.end_of(side)] for rule in (rules.rows, rules.cols)]
        assert len({meets(terms, size) for size in product(*taken)}) == 1


def plan_of_two(kind, attributes, sides, directory):
    """Return the plan for any size of a convolution and an operator after it."""
    vectors = ["b", "b", "b", "b"] if kind == "BatchNormalization" else []
    extra = ["mean", "variance"] if vectors else []
    model = model_of(
        [
            helper.make_node("Conv", ["x", "k"], ["a"], name="first", kernel_shape=[3, 3], pads=[1] * 4),
            helper.make_node(kind, ["a", *vectors], ["y", *extra], name="last", **attributes),
        ],
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, *sides])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, None, None])],
        [
            numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "k"),
            *([numpy_helper.from_array(np.ones(4, np.float32), "b")] if vectors else []),
        ],
    )
    return serfer.map_plan(saved(directory, model), "any", directory / "plan", window=64)
