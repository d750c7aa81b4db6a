"""Windows of images of every kind that is read, against the arrays that they were written from."""

import functools
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import rasterio
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from serfer.core.errors import ImageError, ImageTooLargeError, InputError, UsageError
from serfer.core.geometry import Rect, Span
from serfer.packaging.manifest import CONTENTS
from serfer.raster import RasterLimits, open_raster
from tests.raster.files import UTM, WHERE, pixels, write

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

HEIGHT, WIDTH = 83, 119
TILES = {"tiled": True, "blockxsize": 32, "blockysize": 16}
KINDS = {
    "tiled": ("uint8", 3, TILES),
    "striped": ("uint8", 3, {}),
    "striped, bands apart": ("uint16", 2, {"interleave": "band", "compress": "lzw"}),
    "deflate, predictor": ("int16", 4, {**TILES, "compress": "deflate", "predictor": 2}),
    "floats": ("float32", 1, {**TILES, "compress": "zstd", "predictor": 3}),
    "bands apart": ("uint16", 5, {**TILES, "interleave": "band", "compress": "lzw"}),
    "BigTIFF": ("uint8", 1, {**TILES, "BIGTIFF": "YES"}),
    "big-endian": ("uint16", 3, {**TILES, "ENDIANNESS": "BIG"}),
    "one strip": ("uint8", 3, {"blockysize": HEIGHT, "compress": "deflate"}),
    "signed bytes": ("int8", 2, TILES),
    "32 bits": ("uint32", 1, {"compress": "packbits"}),
    "doubles": ("float64", 1, TILES),
    "COG": ("uint8", 3, {"driver": "COG", "compress": "deflate", "blocksize": 128}),
    "PNG": ("uint8", 3, {"driver": "PNG"}),
    "grey PNG of 16 bits": ("uint16", 1, {"driver": "PNG"}),
    "PNG of 16 bits": ("uint16", 3, {"driver": "PNG"}),
    "PNG with alpha": ("uint8", 4, {"driver": "PNG"}),
}


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    folder, sources = tmp_path_factory.mktemp("images"), []

    @functools.cache
    def kind(name):
        dtype, bands, profile = KINDS[name]
        values = pixels(HEIGHT, WIDTH, bands, dtype)
        sources.append(open_raster(write(folder / name, values, **profile)))
        return values, sources[-1]

    yield kind
    for source in sources:
        source.close()


def spans(size):
    return st.integers(0, size - 1).flatmap(
        lambda start: st.integers(start + 1, size).map(lambda end: Span(start, end))
    )


@settings(max_examples=150)
@given(kind=st.sampled_from([*KINDS]), rect=st.builds(Rect, spans(HEIGHT), spans(WIDTH)))
def test_a_window_is_that_part_of_the_whole(opened, kind, rect):
    values, source = opened(kind)
    rows, cols = rect.slices
    window = source.read(rect)
    assert window.dtype == values.dtype
    np.testing.assert_array_equal(window, values[:, rows, cols])


@pytest.mark.parametrize("kind", KINDS)
def test_an_image_says_what_it_is(opened, kind):
    values, source = opened(kind)
    assert (source.bands, *source.size) == values.shape
    assert source.dtype == values.dtype.name
    assert source.nodata is None
    assert source.identity["size"] == [HEIGHT, WIDTH]


def test_a_jpeg_is_decoded_as_everywhere_in_serfer_and_read_by_windows(tmp_path):
    values = pixels(HEIGHT, WIDTH)
    path = write(tmp_path / "a.jpg", values, "JPEG", quality=95)
    with Image.open(path) as image, open_raster(path) as source:
        decoded = np.asarray(image).transpose(2, 0, 1)
        np.testing.assert_array_equal(source.read(Rect(Span(10, 60), Span(7, 100))), decoded[:, 10:60, 7:100])


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize("orientation", [1, 6, 7])
def test_a_jpeg_that_is_too_large_to_be_decoded_whole_is_decoded_by_gdal_and_says_so(tmp_path, orientation):
    exif = Image.Exif()
    exif[274] = orientation
    Image.fromarray(pixels(HEIGHT, WIDTH).transpose(1, 2, 0)).save(tmp_path / "a.jpg", exif=exif)
    with rasterio.open(tmp_path / "a.jpg") as dataset, Image.open(tmp_path / "a.jpg") as image:
        stored = Image.fromarray(dataset.read().transpose(1, 2, 0))
        stored.getexif().update(image.getexif())
        wanted = np.asarray(ImageOps.exif_transpose(stored)).transpose(2, 0, 1)
    with open_raster(tmp_path / "a.jpg", RasterLimits(max_whole_pixels=99), scratch=tmp_path) as source:
        assert source.size == wanted.shape[1:]
        np.testing.assert_array_equal(source.read(Rect(Span(3, 70), Span(7, 60))), wanted[:, 3:70, 7:60])
        assert any("decoded by GDAL" in note for note in source.notes)
        assert [path.name for path in tmp_path.iterdir()] == ["a.jpg"]


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_palette_becomes_its_colours_and_one_bit_black_and_white(tmp_path, suffix):
    image = Image.fromarray(pixels(40, 50, 1)[0])
    for bands, stored in ((3, image.quantize(7)), (1, image.convert("1"))):
        stored.save(tmp_path / f"a{suffix}")
        with open_raster(tmp_path / f"a{suffix}") as source:
            assert (source.bands, source.dtype) == (bands, "uint8")
            expected = np.asarray(stored.convert("RGB" if bands == 3 else "L")).reshape(40, 50, bands)
            np.testing.assert_array_equal(source.read(Rect.whole(40, 50)), expected.transpose(2, 0, 1))
            if suffix == ".tif":
                break


def test_georeference_and_nodata_are_read(tmp_path):
    path = write(tmp_path / "a.tif", pixels(20, 30), crs=UTM, transform=WHERE, nodata=7)
    with open_raster(path) as source:
        assert source.nodata == 7
        assert isinstance(source.nodata, int)
        assert rasterio.CRS.from_wkt(source.georeference.crs) == rasterio.CRS.from_string(UTM)
        assert source.georeference.transform == tuple(WHERE)[:6]
        assert source.georeference.not_kept == ()


def test_ground_control_points_are_named_as_not_kept(tmp_path):
    points = [rasterio.control.GroundControlPoint(r, c, r + c, r - c) for r, c in ((0, 0), (0, 9), (9, 0), (9, 9))]
    path = write(tmp_path / "a.tif", pixels(20, 30), gcps=points, crs=UTM)
    with open_raster(path) as source:
        assert source.georeference.not_kept == ("its ground control points",)


def test_files_beside_an_image_change_nothing(tmp_path):
    path = write(tmp_path / "a.tif", values := pixels(20, 30))
    (tmp_path / "a.tfw").write_text("1\n0\n0\n-1\n5\n6\n")
    (tmp_path / "a.tif.aux.xml").write_text("<PAMDataset><SRS>EPSG:4326</SRS></PAMDataset>")
    write(tmp_path / "a.tif.ovr", pixels(10, 15))
    write(tmp_path / "a.tif.msk", pixels(20, 30, 1))
    with open_raster(path) as source:
        assert source.georeference.crs is None
        assert source.georeference.transform is None
        np.testing.assert_array_equal(source.read(Rect.whole(20, 30)), values)


@pytest.mark.parametrize(
    ("image", "beside"), [("a.tif", "a.tfw"), ("a.jpg", "a.jgw"), ("a.png", "a.pgw"), ("a.tif", "a.tif.aux.xml")]
)
def test_world_file_beside_an_image_is_named_in_a_note(tmp_path, image, beside):
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(tmp_path / image)
    with open_raster(tmp_path / image) as source:
        assert source.notes == ()
    (tmp_path / beside).write_text("0.5\n0\n0\n-0.5\n1\n2\n")
    with open_raster(tmp_path / image) as source:
        assert any(beside in note for note in source.notes)


@pytest.mark.parametrize("name", ["zip+file:x!a.tif", "a?b#c.tif", "GTIFF_DIR:2:a.tif", "ümläut \N{SNOWMAN}.tif"])
def test_any_name_is_only_a_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    values = pixels(20, 30)
    write(tmp_path / "plain.tif", values).rename(name)
    with open_raster(name) as source:
        np.testing.assert_array_equal(source.read(Rect.whole(20, 30)), values)


@pytest.mark.two_at_once
def test_several_threads_read_at_once(opened):
    values, source = opened("deflate, predictor")
    rects = [Rect(Span(row, row + 9), Span(col, col + 13)) for row in range(0, 70, 3) for col in range(0, 100, 7)]

    def right(rect):
        rows, cols = rect.slices
        return bool((source.read(rect) == values[:, rows, cols]).all())

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(right, rects))


@pytest.mark.parametrize(
    "rect", [Rect(Span(0, 0), Span(0, 5)), Rect(Span(-1, 5), Span(0, 5)), Rect(Span(0, 84), Span(0, 5))]
)
def test_a_window_must_lie_in_the_image(opened, rect):
    with pytest.raises(UsageError, match="is not a rectangle within"):
        opened("tiled")[1].read(rect)


def test_a_window_is_bounded(tmp_path):
    path = write(tmp_path / "a.tif", pixels(HEIGHT, WIDTH))
    limits = RasterLimits(max_read_bytes=3 * 40 * 50)
    with open_raster(path, limits) as source:
        source.read(Rect(Span(0, 40), Span(0, 50)))
        with pytest.raises(UsageError, match="read smaller windows"):
            source.read(Rect(Span(0, 40), Span(0, 51)))


def test_file_that_is_replaced_is_read_as_it_was_opened_and_one_that_changes_is_named(tmp_path):
    path = write(tmp_path / "a.tif", values := pixels(HEIGHT, WIDTH))
    with open_raster(path) as source:
        source.check_unchanged()
        write(tmp_path / "b.tif", values).replace(path)
        np.testing.assert_array_equal(source.read(Rect.whole(HEIGHT, WIDTH)), values)
        with pytest.raises(InputError, match="was changed while it was read"):
            source.check_unchanged()
    with open_raster(path) as source:
        path.write_bytes(path.read_bytes()[:900])
        with pytest.raises(InputError, match="was changed while it was read"):
            source.read(Rect.whole(HEIGHT, WIDTH))


def test_identity_tells_versions_of_a_file_apart(tmp_path):
    path = write(tmp_path / "a.tif", pixels(HEIGHT, WIDTH))
    with open_raster(path) as source:
        before = source.identity
    with open_raster(path) as source:
        assert source.identity == before
    times = path.stat()
    with path.open("r+b") as file:  # altered in place, and its times put back
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with open_raster(path) as source:
        assert source.identity != before


def test_closing_leaves_no_descriptor_open(tmp_path):
    path = write(tmp_path / "a.tif", pixels(HEIGHT, WIDTH))
    before = len([*Path("/proc/self/fd").iterdir()])
    with open_raster(path) as source:
        source.read(Rect.whole(HEIGHT, WIDTH))
    (tmp_path / "broken.tif").write_bytes(b"II*\0 nothing of a TIFF")
    with pytest.raises(ImageError):
        open_raster(tmp_path / "broken.tif")
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_rasterio_is_imported_when_an_image_is_opened_and_not_before():
    code = "import sys, serfer, serfer.raster; assert 'rasterio' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_package_of_a_function_has_rasterio():
    for contents in CONTENTS.values():
        assert not {*contents.distributions} & {"rasterio", "affine", "cligj", "click-plugins"}
    for package in ("worker", "runner"):
        assert not [name for name, _ in CONTENTS[package].our_files() if name.startswith("serfer/raster")]


@pytest.mark.parametrize(
    "profile",
    [{"tiled": True, "blockxsize": 16, "blockysize": 32}, {"blockysize": 7}, {"blockysize": 1}, {"interleave": "band"}],
)
@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize("most", [1, 3 * 16 * 32 * 2, 50_000, 10**9])
def test_the_blocks_of_a_pass_cover_an_image_once(tmp_path, profile, most):
    image = write(tmp_path / "image.tif", pixels(75, 110), **profile)
    with rasterio.open(image) as dataset:
        rows, cols = dataset.block_shapes[0]
    with open_raster(image) as source:
        seen = np.zeros(source.size, int)
        for rect in source.blocks(most):
            seen[rect.slices] += 1
            assert source.read(rect).nbytes <= max(most, 3 * rows * cols)
        assert (seen == 1).all()


def whole(path):
    with open_raster(path) as source:
        return source.read(Rect.whole(*source.size)), source.notes


@pytest.mark.parametrize("suffix", ["tif", "jpg", "png"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_upright(tmp_path, orientation, suffix):
    (exif := Image.Exif())[274] = orientation
    given = {"tiffinfo": {274: orientation}} if suffix == "tif" else {"exif": exif}
    values = Image.fromarray(pixels(40, 60, 1)[0])
    values.save(path := tmp_path / f"a.{suffix}", **given)
    values.getexif()[274] = orientation
    with Image.open(path) as stored, open_raster(path) as source:
        upright = np.asarray(ImageOps.exif_transpose(values if suffix == "tif" else stored))
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
        assert source.white == 4095
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
