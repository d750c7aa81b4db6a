"""The comparison of a plan with its network where noise, which it is checked on first, is answered with rounding."""

import numpy as np
import pytest

from serfer.core.errors import WrongAnswerError
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
