"""Maps of networks whose weights depend on where a window is: pyramid pooling, aligned corners, odd sizes."""

import numpy as np
import onnx
import pytest
import torch
from onnxscript import ir
from torch import nn
from torch.nn import functional

import serfer as package
from serfer.core.errors import ModelError
from serfer.plan_directory import load_plan
from serfer.splitter.network.source import load
from tests.mapping.whole import read
from tests.raster.files import UTM, WHERE, write

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's exporter, about torch
HEIGHTS, WIDTH = (149, 213), 187


class Pyramid(nn.Module):
    """PSPNet's head on a map of stride 4, in a U-Net whose maps are joined at the size of the larger one."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 8, 3, stride=2, padding=1)
        self.third = nn.Conv2d(8, 8, 3, stride=2, padding=1)
        self.pools = nn.ModuleList(
            nn.Sequential(nn.AdaptiveAvgPool2d(bins), nn.Conv2d(8, 3, 1), nn.ReLU()) for bins in (1, (2, 3), 6)
        )
        self.fourth, self.last = nn.Conv2d(8 + 17, 6, 3, padding=1), nn.Conv2d(12, 4, 3, padding=1)

    def forward(self, image):
        full = self.first(image).relu()
        half = self.second(full).relu()
        quarter = self.third(half).relu()
        pooled = [self.larger(pool(quarter), quarter) for pool in self.pools]
        again = self.fourth(torch.cat([self.larger(torch.cat([quarter, *pooled], 1), half), half], 1)).relu()
        return self.last(torch.cat([self.larger(again, full), full], 1))

    def larger(self, values, like):
        return functional.interpolate(values, size=like.shape[2:], mode="bilinear", align_corners=True)


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    """A network, its file, and its plan for images of two heights."""
    place, net = tmp_path_factory.mktemp("pyramid"), Pyramid().eval()
    source, _ = load(net, np.zeros((1, 3, 64, 64), np.float32), any_size=(160, 160))
    ir.save(source.onnx.whole(), file := place / "net.onnx")
    package.map_plan(file, [(height, WIDTH) for height in HEIGHTS], place / "plan", window=32, statistics="exact")
    return net, file, place / "plan"


@pytest.mark.exact
@pytest.mark.parametrize("height", HEIGHTS)
def test_the_map_is_that_of_the_network_on_the_whole_image(map_image, network, height, tmp_path):
    net, _, plan = network
    values = np.random.default_rng(0).standard_normal((3, height, WIDTH), dtype=np.float32)
    image = write(tmp_path / "image.tif", values, crs=UTM, transform=WHERE)
    map_image(image, plan, tmp_path / "map.tif")
    with torch.inference_mode():
        single = net.float()(torch.from_numpy(values)[None])[0].numpy()
        expected = net.double()(torch.from_numpy(values)[None].double())[0].numpy()
    off, own = (np.abs(each - expected).max() / np.ptp(expected) for each in (read(tmp_path / "map.tif"), single))
    assert off <= max(1e-5, 2 * own)


def test_the_sums_of_all_bins_come_from_one_pass(network):
    windows = load_plan(network[2]).windows
    assert [sum(each.stop - each.start for each in one.maps) for one in windows.passes] == [8 * (1 + 6 + 36)]


def test_bins_have_no_plan_for_any_size(network, tmp_path):
    with pytest.raises(ModelError, match=r"looks at the whole image.*have plans for certain sizes"):
        package.map_plan(network[1], "any", tmp_path / "plan")
    assert not (tmp_path / "plan").exists()


def test_bins_that_are_not_enlarged_linearly_are_refused_by_name(network, tmp_path):
    model = onnx.load(network[1])
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "mode" and node.op_type == "Resize":
                attribute.s = b"nearest"
            elif attribute.name == "coordinate_transformation_mode":
                attribute.s = b"asymmetric"
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(ModelError, match=r"\(Resize\)"):
        package.map_plan(tmp_path / "net.onnx", [(203, 187)], tmp_path / "plan", window=32)
