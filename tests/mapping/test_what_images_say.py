"""What an image says of its pixels reaches the result, or the report says that it does not."""

import json

import numpy as np
import pytest
import rasterio
from PIL import Image

from tests.mapping.whole import HEIGHT, WIDTH, assert_equal, expected, read
from tests.raster.files import UTM, WHERE, pixels, write

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
HOLE = np.zeros((HEIGHT, WIDTH), bool)
HOLE[10:33, 12:41] = True


@pytest.fixture
def mapped(serfer, plan, tmp_path):
    """Map an image: its report, the result, and what was said beside it."""

    def run(image, *options):
        out = tmp_path / "result.tif"
        done = serfer("map", image, "--plan", plan, "--out", out, "--workers", "inprocess", "--json", *options)
        assert done.code == 0, done.err
        return json.loads(done.out), read(out), done.err

    return run


def check(report, result, values, hole=HOLE, scale=1 / 255):
    """The hole and nothing else holds no data, each pixel of it is counted once, and the network saw 0 there."""
    assert report["no_data_pixels"] == hole.sum()
    np.testing.assert_array_equal(np.isnan(result).all(axis=0), hole)
    assert_equal(result[:, ~hole], expected(values, scale, hole)[:, ~hole])


def test_masked_pixels_hold_no_data(mapped, tmp_path):
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        image = write(tmp_path / "image.tif", values := pixels(HEIGHT, WIDTH), crs=UTM, transform=WHERE)
        with rasterio.open(image, "r+") as dataset:
            dataset.write_mask((~HOLE * 255).astype("uint8"))
    report, result, said = mapped(image)
    check(report, result, values)
    assert "pixels that its mask or palette hides count as without data" in said
    report, result, said = mapped(image, "--no-data", "none", "--overwrite")
    assert_equal(result, expected(values))
    assert report["no_data_pixels"] == 0
    assert "pixels that its mask or palette hides are taken as they are" in said


def test_transparent_pixels_hold_no_data_unless_the_network_takes_their_alpha(mapped, tmp_path):
    values = pixels(HEIGHT, WIDTH, 4)
    values[3] = np.where(HOLE, 0, np.maximum(values[3], 1))
    image = write(tmp_path / "image.tif", values, photometric="RGB", alpha="YES")
    report, result, said = mapped(image, "--bands", "1,2,3")
    check(report, result, values[:3])
    assert "its band 4 is alpha: pixels of alpha 0 count as without data" in said
    report, result, said = mapped(image, "--bands", "4,3,2", "--overwrite")
    assert_equal(result, expected(values[[3, 2, 1]]))
    assert "which the network takes as a channel" in said


def test_a_pixel_may_hold_no_data_where_one_of_its_bands_has_none(mapped, tmp_path):
    values = np.maximum(pixels(HEIGHT, WIDTH), 1)
    values[1, HOLE] = 0
    image = write(tmp_path / "image.tif", values, nodata=0)
    report, result, said = mapped(image)
    assert_equal(result, expected(values))
    assert f"{HOLE.sum():,} pixels have the value for no data in some of the bands alone" in report["notes"][-1]
    assert report["notes"][-1] in said
    check(*mapped(image, "--set", "no_data_bands=any", "--overwrite")[:2], values)


def test_white_is_what_the_bits_of_a_sample_hold(mapped, tmp_path):
    image = write(tmp_path / "image.tif", values := pixels(HEIGHT, WIDTH, 3, "uint16") * 16, nbits=12)
    _, result, said = mapped(image)
    assert_equal(result, expected(values, 1 / 4095))
    assert "4,095 counts as full" in said


def test_pages_are_no_bands_and_no_band_is_offered_three_times_in_their_place(serfer, plan, tmp_path):
    page = Image.fromarray(pixels(HEIGHT, WIDTH, 1)[0])
    page.save(tmp_path / "a.tif", save_all=True, append_images=[page, page])
    done = serfer("map", tmp_path / "a.tif", "--plan", plan, "--out", tmp_path / "b.tif", "--workers", "inprocess")
    assert done.code == 3
    assert "3 pages, of which the first is read" in done.err
    assert "1,1,1" not in done.err


def test_how_many_pixels_hold_no_data_is_said_and_notes_come_before_a_dry_run(serfer, plan, tmp_path):
    values = np.maximum(pixels(HEIGHT, WIDTH), 1)
    values[:, HOLE] = 0
    image = write(tmp_path / "image.tif", values, nodata=0, nbits=7)
    command = ("map", image, "--plan", plan, "--out", tmp_path / "b.tif", "--workers", "inprocess")
    assert "127 counts as full" in serfer(*command, "--dry-run").err
    assert f"{HOLE.sum():,} pixels of the image ({HOLE.mean():.2%}) count as without data" in serfer(*command).out
