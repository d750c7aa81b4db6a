"""`serfer map` by plans of `serfer.map_plan`: networks with strides, on images of odd sizes, are the whole image."""

import numpy as np
import pytest
import rasterio
import torch

import serfer as package
from tests.exports import for_any_size
from tests.mapping.plans import PREPROCESS
from tests.mapping.whole import assert_equal, read
from tests.raster.files import UTM, WHERE, pixels, write


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
    mean, std = (np.array(each, np.float32)[:, None, None] for each in (PREPROCESS.mean, PREPROCESS.std))
    with torch.no_grad():
        return network(torch.from_numpy((image.astype(np.float32) / 255 - mean) / std)[None])[0].numpy()


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
