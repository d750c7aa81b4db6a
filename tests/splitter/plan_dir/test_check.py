"""The comparison of a plan with its network where noise, which it is checked on first, is answered with rounding."""

import numpy as np
import pytest

from serfer.core.errors import PlanWarning, WrongAnswerError
from serfer.core.exactness import difference, runtime_noise
from serfer.splitter.plan_dir import check
from serfer.splitter.split import split
from tests.splitter.models import Net


def detector_of_surfaces():
    """A map of probabilities that is 1 on bright surfaces and within rounding of 0 on noise."""
    net = Net(3, 64, 64, seed=4)
    statistics = np.abs(net.floats(16)) + 0.5, *net.floats(2, 16), np.abs(net.floats(16)) + 0.5
    x = net.op("Relu", net.op("BatchNormalization", net.conv("x", 3, 16, 3), *statistics))
    x = net.conv(net.op("AveragePool", x, kernel_shape=[9, 9], pads=[4] * 4), 16, 1, 3)
    return net, net.op("Sigmoid", net.op("Sub", net.op("Mul", x, np.float32(10)), np.float32(37)))


@pytest.mark.exact
@pytest.mark.parametrize("wrong_by", [0, 1e-3])
def test_network_that_answers_noise_with_rounding_is_compared_on_surfaces(wrong_by, tmp_path, monkeypatch):
    parts = check.run_tiles
    monkeypatch.setattr(check, "run_tiles", lambda *given: parts(*given) * (1 + wrong_by))
    net, x = detector_of_surfaces()
    path = net.save(tmp_path, x, dims=("N", 1, "H", "W"))
    if wrong_by:
        with pytest.raises(WrongAnswerError):
            split(path, out=tmp_path / "plan", grids=(2, 2))
        return
    assert len(split(path, out=tmp_path / "plan", grids=(2, 2)).stages[0].tiles) == 4


def probabilities(net, x):
    return net.op("Sigmoid", net.op("Sub", net.op("Mul", x, np.float32(0.01)), np.float32(11)))


def large_and_alike(net, x):
    return net.op("Add", net.op("Mul", x, np.float32(1e-4)), np.float32(1000))


def what_is_left(net, x):
    """The difference of two sums of the same numbers, in another order."""
    order, weights = net.random.permutation(16), net.floats(4, 16, 3, 3)
    sums = [
        net.op("Conv", x, weights, pads=[1] * 4),
        net.op("Conv", net.op("Gather", x, order, axis=1), weights[:, order], pads=[1] * 4),
    ]
    return net.op("Sub", *sums)


@pytest.mark.exact
@pytest.mark.parametrize(
    ("answer", "rounding", "wrong"),
    [(probabilities, 1.2e-7, 1e-6), (large_and_alike, 2**-14, 5 * 2**-14), (what_is_left, 1e-5, 1e-3)],
)
def test_rounding_of_answers_that_are_nearly_constant_is_no_difference(answer, rounding, wrong, tmp_path, monkeypatch):
    net = Net(3, 64, 64, seed=4)
    x = net.conv(net.op("Relu", net.conv("x", 3, 16, 3)), 16, 16, 3)
    path = net.save(tmp_path, answer(net, x), dims=("N", 4 if answer is what_is_left else 16, "H", "W"))
    parts, off = check.run_tiles, [rounding]
    monkeypatch.setattr(check, "run_tiles", lambda *given: parts(*given) + np.float32(off[0]))
    with pytest.warns(PlanWarning, match="nearly alike"):
        split(path, out=tmp_path / "plan", grids=(2, 2))
    off[0] = wrong
    with pytest.raises(WrongAnswerError):
        split(path, out=tmp_path / "wrong", grids=(2, 2))


@pytest.mark.exact
def test_what_another_answer_may_be_has_a_bound_however_far_kernels_are_apart():
    """Errors that grow in a network are none of rounding, and a class in a hundred may be another one."""
    whole, images = np.linspace(-1, 1, 200, dtype=np.float32), np.full(3, 2, np.float32)
    assert runtime_noise(whole, whole, images) == (2.0**-23,)
    assert runtime_noise(whole, whole + np.float32(1e-6), images)[0] == pytest.approx(4e-6, rel=0.1)
    assert runtime_noise(whole, whole * 2, images) == (2 * 2.0**-15,)
    classes = np.arange(200)
    assert runtime_noise(classes, classes + 1, images) == (0.01,)
    assert not difference(classes, np.where(classes < 6, 9, classes), (0.01,)).exact
