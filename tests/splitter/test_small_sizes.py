"""Small and odd sizes of images by default options: a plan that verifies, or the one reason that the network has."""

import re

import numpy as np
import pytest
import torch

from serfer.core.errors import ModelError
from serfer.splitter.network import zoo
from serfer.splitter.network.onnx_models import session_of
from serfer.splitter.plan_dir.check import run_tiles
from serfer.splitter.split import split
from tests.splitter.models import Net, relative_error, unsplit

SIZES = ((32, 32), (48, 48), (64, 64), (96, 96), (97, 131))
A_COMMIT = {("alexnet", (32, 32)), ("squeezenet", (48, 48))}
EVERY = [
    pytest.param(
        name, size, id=f"{name}-{size[0]}x{size[1]}", marks=() if (name, size) in A_COMMIT else pytest.mark.weekly
    )
    for name in zoo.ZOO
    for size in SIZES
]


def images(count, size):
    return np.random.default_rng(count).standard_normal((count, 3, *size), dtype=np.float32)


def own_reason(name, size):
    """Return why a network itself does not take images of a size, as PyTorch says it; None where it takes them."""
    with torch.no_grad():
        try:
            zoo.find(name).build()(torch.from_numpy(images(1, size)))
        except RuntimeError as error:
            return str(error).splitlines()[0]
    return None


@pytest.mark.exact
@pytest.mark.parametrize(("name", "size"), EVERY)
def test_a_network_of_the_zoo_has_a_plan_or_does_not_take_the_size_itself(name, size, tmp_path):
    if reason := own_reason(name, size):
        with pytest.raises(ModelError, match=re.escape(reason[:60])):
            split(name, images(1, size), tmp_path / "plan")
        return
    plan = split(name, images(1, size), tmp_path / "plan")
    whole = session_of(tmp_path / "plan" / plan.unsplit.path).run(None, {"input0": images(2, size)})[0]
    assert relative_error(run_tiles(plan, tmp_path / "plan", images(2, size)), whole) < 1e-4


def text_classifier():
    """Return a network as those that classify lines of text are: strides of rows alone, 48 x 192 to 2 x 96."""
    net = Net(3, 48, 192)
    x = net.op("HardSwish", net.conv("x", 3, 8, [3, 3], strides=[2, 2], pads=[1, 1, 1, 1]))
    for _ in range(4):
        y = net.conv(x, 8, 8, [5, 5], groups=8, strides=[2, 1], pads=[2, 2, 2, 2])
        squeezed = net.op("Relu", net.conv(net.op("GlobalAveragePool", y), 8, 4, [1, 1]))
        y = net.op("Mul", y, net.op("HardSigmoid", net.conv(squeezed, 4, 8, [1, 1])))
        x = net.op("HardSwish", net.conv(y, 8, 8, [1, 1]))
    x = net.op("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    return net, net.linear(net.flat(net.op("GlobalAveragePool", x)), 8, 2)


@pytest.mark.exact
@pytest.mark.parametrize("gang", ["auto", "always"])
def test_lines_of_text_whose_maps_become_a_row_or_two_have_a_plan(tmp_path, gang):
    net, output = text_classifier()
    model, path = net.model(output), net.save(tmp_path, output)
    plan, batch = split(path, out=tmp_path / "plan", gang=gang), net.batch_of(2)
    assert relative_error(run_tiles(plan, tmp_path / "plan", batch), unsplit(model, batch)) < 1e-5
