"""What an image says of its pixels: which hold no data, how its rows lie, what is white. Applied, or noted."""

import numpy as np
import pytest
import rasterio
from PIL import Image, ImageOps

from serfer.core.errors import ImageTooLargeError
from serfer.core.geometry import Rect, Span
from serfer.raster import RasterLimits, open_raster
from tests.raster.files import UTM, WHERE, pixels, write

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")


def whole(path):
    with open_raster(path) as source:
        return source.read(Rect.whole(*source.size)), source.notes


@pytest.mark.parametrize("suffix", ["tif", "jpg"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_upright(tmp_path, orientation, suffix):
    (exif := Image.Exif())[274] = orientation
    given = {"tif": {"tiffinfo": {274: orientation}}, "jpg": {"exif": exif, "quality": 95}}[suffix]
    values = Image.fromarray(pixels(40, 60, 1)[0])
    values.save(path := tmp_path / f"a.{suffix}", **given)
    values.getexif()[274] = orientation
    with Image.open(path) as jpeg, open_raster(path) as source:
        upright = np.asarray(ImageOps.exif_transpose(jpeg if suffix == "jpg" else values))
        assert source.size == upright.shape
        np.testing.assert_array_equal(source.read(Rect.whole(*source.size))[0], upright)
        np.testing.assert_array_equal(source.read(Rect(Span(3, 21), Span(8, 17)))[0], upright[3:21, 8:17])
        if suffix == "tif":
            said = (f"it is read upright, by its orientation {orientation}",)
            assert source.notes == (said if orientation > 1 else ())


def test_a_georeferenced_image_keeps_its_rows_and_says_that_its_orientation_is_not_applied(tmp_path):
    path = write(tmp_path / "a.tif", values := pixels(40, 60, 1), crs=UTM, transform=WHERE)
    data = bytearray(path.read_bytes())
    at = int.from_bytes(data[4:8], "little")
    count = int.from_bytes(data[at : at + 2], "little")
    tags = {int.from_bytes(data[at + 2 + 12 * each :][:2], "little"): at + 2 + 12 * each for each in range(count)}
    data[tags[284] : tags[284] + 12] = np.array(
        [274, 3, 1, 0, 6, 0], "<u2"
    ).tobytes()  # in place of PlanarConfiguration
    path.write_bytes(data)
    read, notes = whole(path)
    np.testing.assert_array_equal(read, values)
    assert "its orientation 6 is not applied" in " ".join(notes)


def test_what_stores_white_as_zero_is_inverted_with_its_value_for_no_data(tmp_path):
    values = pixels(20, 30, 1)
    path = write(tmp_path / "a.tif", values, photometric="MINISWHITE", nodata=7)
    with open_raster(path) as source, Image.open(path) as image:
        np.testing.assert_array_equal(source.read(Rect.whole(20, 30))[0], np.asarray(image))
        assert (source.nodata, source.value(0)) == (248, 255)
        assert "inverted" in source.notes[0]


def test_bits_alpha_scale_and_offset_are_noted(tmp_path):
    path = write(tmp_path / "a.tif", pixels(20, 30, 3, "uint16"), nbits=12)
    with open_raster(path) as source:
        assert source.full == 4095
        assert "4,095 counts as full" in source.notes[0]
    path = write(tmp_path / "a.tif", pixels(40, 60, 4), photometric="RGB", alpha="YES")
    with open_raster(path) as source:
        assert (source.alpha, source.masked) == (3, False)
    path = write(tmp_path / "a.tif", values := pixels(20, 30, 2, "uint16"))
    with rasterio.open(path, "r+") as dataset:
        dataset.scales, dataset.offsets = (1e-4, 1e-4), (-0.1, -0.1)
    read, notes = whole(path)
    np.testing.assert_array_equal(read, values)
    assert notes == ("scale and offset of its bands (0.0001 x + -0.1) are not applied: values are the stored ones",)


@pytest.mark.parametrize("big", ["NO", "YES"])
def test_a_mask_inside_of_a_tiff_says_which_pixels_hold_no_data(tmp_path, big):
    mask = np.zeros((300, 400), "uint8")
    mask[20:, 30:] = 255
    with rasterio.Env(GDAL_TIFF_INTERNAL_MASK=True):
        path = write(tmp_path / "a.tif", pixels(300, 400), tiled=True, blockxsize=128, blockysize=128, BIGTIFF=big)
        with rasterio.open(path, "r+") as dataset:
            dataset.write_mask(mask)
    rect = Rect(Span(10, 200), Span(25, 390))
    with open_raster(path) as source:
        assert source.masked
        np.testing.assert_array_equal(source.read_masked(rect)[1], mask[10:200, 25:390] == 0)
    with pytest.raises(ImageTooLargeError, match="mask"):
        open_raster(path, RasterLimits(max_block_bytes=128 * 128 * 3 - 1))


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_colours_that_a_palette_hides_hold_no_data(tmp_path, suffix):
    indices = pixels(40, 50, 1) % 5
    if suffix == ".png":
        image = Image.fromarray(indices[0])
        image.putpalette([each for level in range(5) for each in (level * 40,) * 3])
        image.save(path := tmp_path / "a.png", transparency=2)
    else:
        path = write(tmp_path / "a.tif", indices, photometric="palette", nodata=2)
        with rasterio.open(path, "r+") as dataset:
            dataset.write_colormap(1, {each: (each * 40,) * 3 for each in range(5)})
    with open_raster(path) as source:
        np.testing.assert_array_equal(source.read_masked(Rect.whole(40, 50))[1], indices[0] == 2)
