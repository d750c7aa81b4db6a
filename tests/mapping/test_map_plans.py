"""`serfer map` by plans of `serfer.map_plan`: networks with strides, on images of odd sizes, are the whole image."""

import numpy as np
import onnx
import pytest
import rasterio
import torch
from onnxscript import ir
from torch import nn
from torch.nn import functional

import serfer as package
from serfer.core.errors import ModelError
from serfer.plan_directory import load_plan
from serfer.splitter.network.source import load
from tests.exports import for_any_size
from tests.mapping.plans import PREPROCESS, assert_equal, normal, read
from tests.raster.files import UTM, WHERE, pixels, write

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's exporter, about torch


class Net(torch.nn.Module):
    """An encoder-decoder with a skip, of stride 4; with `half`, its map has half the image's rows and columns."""

    def __init__(self, *, half=False):
        super().__init__()
        torch.manual_seed(1)
        conv = torch.nn.Conv2d
        self.first, self.second = conv(3, 6, 3, padding=1), conv(6, 8, 3, stride=2, padding=1)
        self.third, self.last = conv(8, 8, 3, stride=2, padding=1), conv(14, 4, 3, padding=1)
        self.half = half

    def forward(self, x):
        one = torch.relu(self.first(x))
        two = torch.relu(self.second(one))
        if self.half:
            return two
        three = torch.relu(self.third(two))
        up = torch.nn.functional.interpolate(three, size=one.shape[2:], mode="nearest")
        return self.last(torch.cat([one, up], 1))


def whole(network, image):
    with torch.no_grad():
        return network(torch.from_numpy(normal(image)))[0].numpy()


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    def plan(network, sizes, **given):
        directory = tmp_path_factory.mktemp("map") / "plan"
        package.map_plan(network, sizes, directory, preprocess=PREPROCESS, **given)
        return directory

    return plan


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return for_any_size(Net(), tmp_path_factory.mktemp("network") / "net.onnx")


@pytest.mark.exact
def test_windows_of_two_sizes_give_the_network_on_the_whole_image(map_image, make, exported, tmp_path):
    network, results = Net(), []
    for window in (32, 48):
        plan = make(exported, [(152, 204), (96, 204)], window=window)
        for height in (152, 96):
            image = write(tmp_path / f"image-{height}.tif", pixels(height, 204), crs=UTM, transform=WHERE)
            out = tmp_path / f"result-{height}-{window}.tif"
            map_image(image, plan, out)
            assert_equal(read(out), whole(network, pixels(height, 204)))
            results.append(read(out))
    assert np.abs(results[0] - results[2]).max() < 1e-5 * np.ptp(results[0])


@pytest.mark.exact
def test_a_map_of_half_the_size_lies_where_its_image_does(map_image, make, tmp_path):
    network = Net(half=True).eval()
    image = write(tmp_path / "image.tif", pixels(151, 203), crs=UTM, transform=WHERE)
    plan = make(network, [(151, 203)], window=40)
    map_image(image, plan, tmp_path / "result.tif")
    result = read(tmp_path / "result.tif")
    assert result.shape == (8, 76, 102)
    assert_equal(result, whole(network, pixels(151, 203)))
    with rasterio.open(tmp_path / "result.tif") as dataset:
        assert dataset.transform == WHERE @ rasterio.Affine.scale(2)


@pytest.mark.exact
def test_classes_are_a_palette_image_whose_largest_value_is_no_data(map_image, make, exported, tmp_path):
    network = Net()
    plan = make(exported, [(96, 204)], window=32, reduce="argmax", labels=("sea", "land", "ice", "cloud"))
    values = np.maximum(pixels(96, 204), 1)
    values[:, :40, :70] = 0
    image = write(tmp_path / "image.tif", values, nodata=0, crs=UTM, transform=WHERE)
    report = map_image(image, plan, tmp_path / "classes.tif")
    assert (report["dtype"], report["channels"], report["empty"]) == ("uint8", 1, 2)
    with rasterio.open(tmp_path / "classes.tif") as dataset:
        assert dataset.nodata == 255
        assert dataset.colorinterp[0] == rasterio.enums.ColorInterp.palette
        classes = dataset.read(1)
    assert (classes[:40, :70] == 255).all()
    np.testing.assert_array_equal(classes[60:, 100:], whole(network, values)[:, 60:, 100:].argmax(0))


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
def pyramid(tmp_path_factory):
    """A pyramid, its file, and its plan for images of two heights."""
    place, net = tmp_path_factory.mktemp("pyramid"), Pyramid().eval()
    source, _ = load(net, np.zeros((1, 3, 64, 64), np.float32), any_size=(160, 160))
    ir.save(source.onnx.whole(), file := place / "net.onnx")
    package.map_plan(file, [(height, WIDTH) for height in HEIGHTS], place / "plan", window=32, statistics="exact")
    return net, file, place / "plan"


@pytest.mark.exact
@pytest.mark.parametrize("height", HEIGHTS)
def test_the_map_is_that_of_the_network_on_the_whole_image(map_image, pyramid, height, tmp_path):
    net, _, plan = pyramid
    values = np.random.default_rng(0).standard_normal((3, height, WIDTH), dtype=np.float32)
    image = write(tmp_path / "image.tif", values, crs=UTM, transform=WHERE)
    map_image(image, plan, tmp_path / "map.tif")
    with torch.inference_mode():
        single = net.float()(torch.from_numpy(values)[None])[0].numpy()
        expected = net.double()(torch.from_numpy(values)[None].double())[0].numpy()
    off, own = (np.abs(each - expected).max() / np.ptp(expected) for each in (read(tmp_path / "map.tif"), single))
    assert off <= max(1e-5, 2 * own)


def test_the_sums_of_all_bins_come_from_one_pass(pyramid):
    windows = load_plan(pyramid[2]).windows
    assert [sum(each.stop - each.start for each in one.maps) for one in windows.passes] == [8 * (1 + 6 + 36)]


def test_bins_have_no_plan_for_any_size(pyramid, tmp_path):
    with pytest.raises(ModelError, match=r"looks at the whole image.*have plans for certain sizes"):
        package.map_plan(pyramid[1], "any", tmp_path / "plan")
    assert not (tmp_path / "plan").exists()


def test_bins_that_are_not_enlarged_linearly_are_refused_by_name(pyramid, tmp_path):
    model = onnx.load(pyramid[1])
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.name == "mode" and node.op_type == "Resize":
                attribute.s = b"nearest"
            elif attribute.name == "coordinate_transformation_mode":
                attribute.s = b"asymmetric"
    onnx.save(model, tmp_path / "net.onnx")
    with pytest.raises(ModelError, match=r"\(Resize\)"):
        package.map_plan(tmp_path / "net.onnx", [(203, 187)], tmp_path / "plan", window=32)
