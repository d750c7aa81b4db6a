"""A fully connected head is located, and the loss of its replacement is measured, not assumed."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from serfer.core.errors import ModelError
from serfer.core.exactness import relative_error
from serfer.splitter.head import fine_tune
from serfer.splitter.head.batched_inference import answers, pooled_and_logits
from serfer.splitter.head.calibration import Calibration
from serfer.splitter.head.find import Linear, find_head, with_linear_head
from serfer.splitter.head.gap import divide, replace_head, replace_head_blind
from serfer.splitter.head.torch_interpreter import Trainable, unknown_kinds
from serfer.splitter.network.source import mean_matrix
from tests.splitter.models import Net, of, unsplit

BINARY = ["Add", "Sub", "Mul", "Div", "Max", "Min", "Sum"]
UNARY = [
    *("Relu", "Sigmoid", "Tanh", "HardSwish", "HardSigmoid", "LeakyRelu", "Elu", "Mish", "Softplus", "Softsign"),
    *("Exp", "Abs", "Neg", "Erf", "Gelu", "Identity", "GlobalAveragePool", "GlobalMaxPool"),
]


def trunk(size=12):
    net = Net(3, size, size)
    return net, net.op("Relu", net.conv("x", 3, 6, 3))


def fully_connected(net, x, values):
    x = net.linear(net.flat(x), values, 16)
    return net.linear(net.op("Relu", x), 16, 4)


def test_a_head_begins_after_the_last_map_and_its_bytes_are_counted():
    net, x = trunk()
    end = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2], output="end")
    graph = net.graph(fully_connected(net, end, 6 * 36))
    head = find_head(graph)
    assert (head.trunk_end, head.layers) == ("end", 2)
    assert head.bytes == 4 * (216 * 16 + 16 + 16 * 4 + 4)
    assert head.logits == graph.output


@pytest.mark.parametrize("uneven", [False, True])
def test_averaging_before_the_head_belongs_to_the_head(uneven):
    net, x = trunk(size=11 if uneven else 12)
    if uneven:
        pooled = net.op("MatMul", mean_matrix(11, 4), net.op("MatMul", x, mean_matrix(11, 4).T))
    else:
        pooled = net.op("AveragePool", x, kernel_shape=[3, 3], strides=[3, 3])
    assert find_head(net.graph(fully_connected(net, pooled, 6 * 16))).trunk_end == x


def with_softmax(net, x):
    logits = fully_connected(net, x, 6 * 144)
    return net.op("Softmax", logits, axis=1), logits, 2


def with_gates(net, x):
    """A bias that is added apart, and branches on vectors."""
    inner = net.op("MatMul", net.flat(x), net.floats(6 * 144, 16))
    gated = net.op("Mul", inner, net.op("Sigmoid", inner))
    scores = net.op("MatMul", gated, net.floats(16, 4))
    logits = net.op("Add", scores, net.floats(4))
    return logits, logits, 2


def of_one_layer(net, x):
    logits = net.linear(net.flat(x), 6 * 144, 4)
    return logits, logits, 1


@pytest.mark.parametrize("form", [with_softmax, with_gates, of_one_layer])
def test_a_head_is_all_that_follows_the_map_up_to_the_logits(form):
    net, x = trunk()
    output, logits, layers = form(net, x)
    graph = net.graph(output)
    head = find_head(graph)
    assert (head.layers, head.trunk_end, head.logits) == (layers, x, logits)
    if form is with_softmax:
        pooled = with_linear_head(graph, head, Linear(net.floats(4, 6), net.floats(4)))
        assert pooled.nodes[-1].kind == "Softmax"
        assert answers(pooled, net.batch_of(3)).sum(axis=1) == pytest.approx(1, abs=1e-5)


def pooled_and_one_layer(net, x):
    return net.linear(net.flat(net.op("GlobalAveragePool", x)), 6, 4)


@pytest.mark.parametrize(
    "form",
    [
        pooled_and_one_layer,
        lambda net, x: net.flat(net.op("GlobalAveragePool", x)),
        lambda net, _: fully_connected(net, net.op("Relu", "x"), 3 * 144),
        lambda net, x: net.op(
            "Add", fully_connected(net, x, 6 * 144), net.linear(net.flat(net.op("GlobalAveragePool", "x")), 3, 4)
        ),
        lambda net, x: net.op("Relu", fully_connected(net, x, 6 * 144)),
    ],
    ids=["pooled", "pooled alone", "of the image", "of two maps", "of an activation"],
)
def test_other_ends_are_not_a_head_to_replace(form):
    net, x = trunk()
    assert find_head(net.graph(form(net, x))) is None


def test_the_pooled_network_is_its_trunk_then_means_then_one_layer():
    net, x = trunk()
    graph = net.graph(fully_connected(net, x, 6 * 144))
    head, layer, images = find_head(graph), Linear(net.floats(4, 6), net.floats(4)), net.batch_of(5)
    replaced = with_linear_head(graph, head, layer)
    maps = unsplit(net.model(x, dims=("N", 6, 12, 12)), images)
    expected = maps.mean(axis=(2, 3)) @ layer.weight.T + layer.bias
    assert relative_error(answers(replaced, images), expected) < 1e-5
    pooled, logits = pooled_and_logits(graph, head.trunk_end, head.logits, images, lambda _: None)
    assert relative_error(logits, unsplit(net.model(graph.output), images)) < 1e-5
    assert np.allclose(pooled, maps.mean(axis=(2, 3)), atol=1e-6)
    assert set(replaced.weights) == {name for node in replaced.nodes for name in replaced.constants(node)}
    assert find_head(replaced) is None


def torch_error(net, output):
    """Return how far torch is from ONNX Runtime on a network whose scores depend on every position of a map."""
    flat, images = net.flat(output), net.batch_of(3)
    graph = net.graph(net.linear(flat, unsplit(net.model(flat), images).shape[1], 5))
    assert unknown_kinds(graph.nodes) == []
    with torch.no_grad():
        logits = Trainable(graph, graph.nodes)(torch.from_numpy(images)).numpy()
    return relative_error(logits, answers(graph, images))


def uneven(net):
    return net.conv("x", 3, 4, [3, 2], pads=[1, 0, 1, 1])


def squeeze_and_excite(net, x):
    squeezed = net.op("ReduceMean", x, [2, 3], keepdims=1)
    return net.op("Mul", x, net.op("HardSigmoid", net.conv(squeezed, 4, 4, 1), alpha=0.3))


def shuffle(net, x):
    first, second = (net.op("Slice", x, [start], [stop], [1]) for start, stop in ((0, 2), (2, 4)))
    return net.op("Concat", second, first, axis=-3)


def roots(net, x):
    x = net.op("Exp", x)
    return net.op("Concat", net.op("Reciprocal", x), net.op("Log", x), net.op("Sqrt", x), axis=1)


FORMS = {
    **{kind: of(kind) for kind in UNARY},
    **{kind: lambda net, x, kind=kind: net.op(kind, x, net.op("Exp", uneven(net))) for kind in BINARY},
    "MaxPool": of("MaxPool", kernel_shape=[3, 2], strides=[2, 3], pads=[1, 0, 0, 1], ceil_mode=1),
    "AveragePool": of("AveragePool", kernel_shape=[3, 2], strides=[2, 2], pads=[1, 0, 1, 1]),
    "AveragePool that counts": of(
        "AveragePool", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4, count_include_pad=1, ceil_mode=1
    ),
    "PRelu": of("PRelu", [[[0.1]], [[-0.2]], [[0.3]], [[0.4]]]),
    "Clip": of("Clip", -0.5, 0.7),
    "Clip from below": of("Clip", -0.5),
    "Reshape": of("Reshape", [0, 2, 18, 10]),
    "LRN": of("LRN", size=3, alpha=0.1, beta=0.6, bias=1.5),
    "Pad": of("Pad", [0, 1, 1, 0, 0, 0, 2, 3], 0.5),
    "Conv": lambda net, x: net.conv(x, 4, 6, [3, 2], 2, strides=[2, 1], dilations=[1, 2], pads=[0, 2, 1, 1]),
    "BatchNormalization": of(
        "BatchNormalization", *np.float32([[1, 2, 3, 4], [-1, 0, 1, 2], [0.5, -1, 2, 0], [1, 2, 0.5, 3]]), epsilon=1e-3
    ),
    "Concat": lambda net, x: net.op("Concat", x, net.op("Relu", x), axis=1),
    "matrices": lambda net, x: net.op("MatMul", mean_matrix(9, 4), net.op("MatMul", x, mean_matrix(10, 3).T)),
    "squeeze and excite": squeeze_and_excite,
    "shuffle": shuffle,
    "roots": roots,
}


@pytest.mark.parametrize("form", FORMS)
def test_torch_equals_onnx_runtime(form):
    net = Net(3, 9, 10)
    assert torch_error(net, FORMS[form](net, uneven(net))) < 1e-5


def test_only_convolutions_move_and_gradients_reach_the_first():
    net, x = trunk()
    graph = net.graph(fully_connected(net, x, 6 * 144))
    network = Trainable(graph, graph.nodes)
    assert {value.ndim for value in network.parameters.values()} == {4, 1}
    network(torch.from_numpy(net.batch_of(2))).sum().backward()
    assert all(value.grad.abs().sum() > 0 for value in network.parameters.values())


CLASSES = 3


def lines(count, seed):
    """Return images of one thick line (across, down or aslant) somewhere, and which it is."""
    random = np.random.default_rng(seed)
    labels = np.arange(count, dtype=np.int64) % CLASSES
    images = random.standard_normal((count, 1, 12, 12), dtype=np.float32) * 0.3
    rows, cols = np.indices((12, 12))
    for image, label in zip(images, labels, strict=True):
        place = random.integers(3, 9)
        distance = (rows - place, cols - place, rows + cols - 3 - place)[label]
        image[0] += 2.0 * (np.abs(distance) < 2)
    return images, labels


@pytest.fixture(scope="module")
def solved():
    """A network with a fully connected head, fitted to lines: random convolutions, a ridge on its flattened map."""
    net = Net(1, 12, 12, seed=1)
    x = net.op("Relu", net.conv("x", 1, 8, 3))
    x = net.op("MaxPool", net.op("Relu", net.conv(x, 8, 12, 3)), kernel_shape=[3, 3], strides=[3, 3])
    images, labels = lines(600, 5)
    maps = unsplit(net.model(x, dims=("N", 12, 4, 4)), images).reshape(len(images), -1)
    targets = np.eye(CLASSES, dtype=np.float32)[labels]
    matrix = np.linalg.solve(maps.T @ maps + 20 * np.eye(maps.shape[1]), maps.T @ targets).astype(np.float32)
    hidden = net.op("Gemm", net.flat(x), matrix * 8)
    logits = net.op("Gemm", net.op("Identity", hidden), np.eye(CLASSES, dtype=np.float32))
    return net.graph(logits)


def test_a_fitted_head_keeps_the_accuracy_and_is_the_same_each_time(solved, monkeypatch):
    monkeypatch.setattr(fine_tune, "_STEPS", 60)
    calibration = Calibration(*lines(240, 7))
    before, given = torch.random.get_rng_state(), {name: value.copy() for name, value in solved.weights.items()}
    (graph, fit), (again, fit_again) = (replace_head(solved, calibration, seed=3) for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert fit == fit_again
    assert all(np.array_equal(graph.weights[name], again.weights[name]) for name in graph.weights)
    assert all(np.array_equal(given[name], solved.weights[name]) for name in given)
    assert fit.accuracy_before > 0.8
    assert fit.accuracy_after > fit.accuracy_before - 0.1
    assert fit.held_out == 48
    assert fit.bytes_after < fit.bytes_before
    fresh, labels = lines(300, 11)
    assert (answers(graph, fresh).argmax(axis=1) == labels).mean() > 0.8


IMAGES, LINES = lines(240, 7)


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (IMAGES[LINES < 2], LINES[LINES < 2], r"1 of the network's 3 classes .* \(2\), 1 of them none"),
        (IMAGES, (LINES + 1) % CLASSES, r"right on \d+\.\d% of the 240 .* mislabelled"),
        (IMAGES, np.random.default_rng(0).permutation(LINES), "other classes"),
        (IMAGES[:, :, :6], LINES, "the network takes 1 x 12 x 12"),
        (IMAGES, LINES + 1, r"class 3, .* 3 classes"),
        (IMAGES[:3], LINES[:3], "3 classes have fewer than 2"),
    ],
    ids=["a class without images", "shifted labels", "mixed labels", "shape", "class", "few images"],
)
def test_images_that_do_not_fit_the_network_are_refused(solved, images, labels, words):
    with pytest.raises(ModelError, match=words):
        replace_head(solved, Calibration(images, labels))


def test_a_trunk_without_a_torch_equivalent_keeps_the_logistic_fit(solved):
    nodes = [replace(node, kind="Celu") if node.kind == "Relu" else node for node in solved.nodes]
    _, fit = replace_head(replace(solved, nodes=tuple(nodes)), Calibration(*lines(240, 7)))
    assert fit.how == "logistic"
    assert "Celu" in fit.note


def test_blind_replacement_agrees_above_chance_and_is_marked_as_unmeasured(solved):
    graph, fit = replace_head_blind(solved, 0)
    assert (fit.accuracy_before, fit.accuracy_after, fit.how) == (None, None, "blind")
    assert "not measured" in fit.note
    assert fit.agreement > 0.5
    assert answers(graph, lines(4, 0)[0]).shape == (4, CLASSES)
    again, fit_again = replace_head_blind(solved, 0)
    assert fit == fit_again
    assert all(np.array_equal(graph.weights[name], again.weights[name]) for name in graph.weights)
    net, x = trunk()
    with pytest.raises(ModelError, match="no fully connected head"):
        replace_head_blind(net.graph(pooled_and_one_layer(net, x)), 0)


def test_the_validation_part_never_removes_a_class():
    labels = np.repeat(np.arange(4), [1, 2, 3, 40])
    fit, chosen_by = divide(labels, 0)
    assert np.array_equal(np.sort(np.concatenate([fit, chosen_by])), np.arange(len(labels)))
    assert set(labels[fit]) == {0, 1, 2, 3}
    assert set(labels[chosen_by]) == {2, 3}
