"""Results from their parts: the same values in every format, whole or not there."""

import errno
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import rasterio
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from serfer.core.errors import InputError, UnavailableError, UsageError
from serfer.core.geometry import Rect
from serfer.core.zarr import Axis, ChunkedArray
from serfer.raster import Georeference, ResultOptions, ResultParts, check_result, check_space, open_raster, write_result
from serfer.raster.palette import DepthScale, mask_image, palette
from serfer.raster.results import tiff_result
from tests.moto_server import ACCESS, MotoServer
from tests.once import one_each
from tests.raster.files import UTM, WHERE, depth_values, pixels, read_depth
from tests.results.stored import array_of, dense

NOWHERE, COLOURS = Georeference(), np.array(palette(), np.uint8)


def form_of(height, width, channels, dtype="uint8", grid=(3, 2)):
    return array_of("scores", dense(channels, height, width, dtype), 1, grid)


def kept(folder, values, array=None):
    channels, height, width = values.shape
    parts = ResultParts.create_or_resume(
        folder, {"job": 1}, array or form_of(height, width, channels, values.dtype.name)
    )
    for number, rect in enumerate(parts.rects):
        parts.put(number, values[:, *rect.slices])
    return parts


def written(tmp_path, name, values, array=None, georeference=NOWHERE, **options):
    with kept(tmp_path / "parts", values, array) as parts:
        write_result(tmp_path / name, parts, georeference=georeference, options=ResultOptions(**options))
        parts.remove()
    assert sorted(path.name for path in tmp_path.iterdir()) == [name]
    return tmp_path / name


def read(path):
    with rasterio.open(path) as dataset:
        return dataset.read()


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
class TestTiff:
    @one_each(
        "compression",
        ["deflate", "zstd", "none"],
        (("dtype", "channels"), [("uint8", 1), ("uint8", 3), ("int8", 1), ("uint16", 2), ("int32", 1), ("float32", 6)]),
    )
    def test_a_result_has_the_values_of_its_parts(self, tmp_path, dtype, channels, compression):
        values = pixels(700, 1100, channels, dtype)
        if dtype == "float32":
            values[0, 3, 4:7] = np.nan, np.inf, -np.inf
        path = written(tmp_path, "a.tif", values, compression=compression)
        np.testing.assert_array_equal(read(path), values)
        with rasterio.open(path) as dataset:
            assert dataset.block_shapes[0] == (512, 512)
            assert (dataset.compression is None) == (compression == "none")
        if compression != "zstd":  # of which tifffile needs another package
            theirs = tifffile.imread(path)
            [ours] = [form for form in (values[0], values, values.transpose(1, 2, 0)) if form.shape == theirs.shape]
            np.testing.assert_array_equal(theirs, ours)

    def test_georeference_nodata_names_and_tags_are_kept(self, tmp_path):
        georeference = Georeference(rasterio.CRS.from_string(UTM).to_wkt(), tuple(WHERE)[:6])
        tags = {"PLAN": "abc", "NOTE": "ü"}
        path = written(
            tmp_path,
            "a.tif",
            pixels(40, 50, 2),
            georeference=georeference.scaled(4, 4),
            nodata=255,
            names=("road", "house"),
            tags=tags,
        )
        with rasterio.open(path) as dataset:
            assert dataset.crs.to_string() == UTM
            assert dataset.transform == WHERE @ rasterio.Affine.scale(4)
            assert dataset.nodata == 255
            assert dataset.descriptions == ("road", "house")
            assert tags.items() <= dataset.tags().items()

    def test_pixels_that_are_points_stay_where_they_are(self, tmp_path):
        georeference = Georeference(rasterio.CRS.from_string(UTM).to_wkt(), tuple(WHERE)[:6], point=True)
        with open_raster(written(tmp_path, "a.tif", pixels(40, 50), georeference=georeference)) as source:
            assert source.georeference.transform == georeference.transform
            assert source.georeference.point

    def test_a_mask_has_the_colours_of_its_classes(self, tmp_path):
        values = pixels(40, 50, 1)
        path = written(tmp_path, "a.tif", values, mask=True)
        np.testing.assert_array_equal(read(path), values)
        with open_raster(path) as source:
            np.testing.assert_array_equal(source.read(Rect.whole(40, 50)).transpose(1, 2, 0), COLOURS[values[0]])

    def test_more_than_four_gigabytes_are_a_bigtiff(self):
        mosaic = SimpleNamespace(array=form_of(40_000, 40_000, 3))
        assert tiff_result._profile(mosaic, Georeference(), ResultOptions())["BIGTIFF"] == "YES"

    def test_what_the_disk_did_not_keep_is_noticed(self, tmp_path, monkeypatch):
        real = tiff_result._write

        def altering(path, *given):
            checksums = real(path, *given)
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.write_bytes(data)
            return checksums

        monkeypatch.setattr(tiff_result, "_write", altering)
        with pytest.raises(UnavailableError, match="are not what was written: all 6 parts are kept in"):
            written(tmp_path, "a.tif", pixels(512, 512), compression="none")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["parts"]


cuts = st.lists(st.integers(1, 1299), max_size=4, unique=True)


@settings(max_examples=15)
@given(rows=cuts, cols=cuts, channels=st.sampled_from([1, 3, 5]))
def test_parts_may_lie_anyhow_between_blocks(tmp_path_factory, rows, cols, channels):
    height, width = 700, 1300
    down, across = (
        Axis((0, *sorted(cut for cut in cuts if cut < size), size)) for cuts, size in ((rows, height), (cols, width))
    )
    array = ChunkedArray("x", "uint8", (channels, height, width), 1, channels, down, across, flat=False)
    values = pixels(height, width, channels)
    path = written(tmp_path_factory.mktemp("result"), "a.npy", values, array)
    np.testing.assert_array_equal(np.load(path), values)


class TestOtherFormats:
    @pytest.mark.parametrize("dtype", ["uint8", "int16", "float64"])
    def test_npy(self, tmp_path, dtype):
        values = pixels(700, 90, 3, dtype)
        loaded = np.load(written(tmp_path, "a.npy", values))
        assert loaded.dtype == values.dtype
        np.testing.assert_array_equal(loaded, values)

    @pytest.mark.parametrize(("channels", "mode"), [(1, "L"), (3, "RGB"), (4, "RGBA")])
    def test_png_of_pictures(self, tmp_path, channels, mode):
        values = pixels(700, 90, channels)
        with Image.open(written(tmp_path, "a.png", values)) as image:
            assert image.mode == mode
            np.testing.assert_array_equal(np.asarray(image).reshape(700, 90, channels).transpose(2, 0, 1), values)

    def test_png_of_masks_and_of_16_bits(self, tmp_path):
        deep = pixels(70, 90, 1, "uint16") * np.uint16(200)
        np.testing.assert_array_equal(np.asarray(Image.open(written(tmp_path, "b.png", deep))), deep[0])
        (tmp_path / "b.png").unlink()
        values = pixels(700, 90, 1)
        with Image.open(written(tmp_path, "a.png", values, mask=True)) as image:
            assert image.mode == "P"
            np.testing.assert_array_equal(np.asarray(image), values[0])
            np.testing.assert_array_equal(np.asarray(image.convert("RGB")), COLOURS[values[0]])

    def test_png_of_depth_keeps_its_values_to_16_bits(self, tmp_path):
        values = pixels(700, 90, 1, "float32") / 7 - 20
        values[0, 5, 5:7] = np.nan, -9999
        found = read_depth(written(tmp_path, "a.png", values, nodata=-9999))
        assert np.isnan(found[5, 5:7]).all()
        found[5, 5:7] = values[0, 5, 5:7] = 0
        assert np.abs(found - values[0]).max() <= (values.max() - values.min()) / 131_068 * 1.01


class TestRefusals:
    @pytest.mark.parametrize(
        ("name", "form", "options", "match"),
        [
            ("a.jpg", (10, 10, 1), {}, "a result ends in .tif, .tiff, .png, .npy, not in .jpg"),
            ("a", (10, 10, 1), {}, "not in nothing"),
            ("a.png", (10, 10, 2), {}, "write a TIFF"),
            ("a.png", (10, 10, 3, "float32"), {}, "write a TIFF"),
            ("a.png", (12_000, 12_000, 1), {}, "write a TIFF"),
            ("a.tif", (10, 10, 1, "int64"), {}, "not int64"),
            ("a.tif", (10, 10, 3), {"mask": True}, "a mask is one channel of uint8"),
            ("a.tif", (10, 10, 1), {"nodata": 256}, "no value of uint8 is 256"),
            ("a.tif", (10, 10, 1), {"nodata": 0.5}, "no value of uint8 is 0.5"),
            ("none/a.tif", (10, 10, 1), {}, "cannot be written"),
            ("http://x/a.tif", (10, 10, 1), {}, "neither a path nor"),
        ],
    )
    def test_impossible_result_is_refused_before_work_begins(self, tmp_path, monkeypatch, name, form, options, match):
        monkeypatch.chdir(tmp_path)
        with pytest.raises((UsageError, InputError), match=match):
            check_result(name, form_of(*form), ResultOptions(**options))

    def test_a_result_that_exists_is_kept_unless_it_may_be_overwritten(self, tmp_path):
        values = pixels(40, 50)
        path = tmp_path / "a.npy"
        path.write_bytes(b"precious")
        with pytest.raises(InputError, match=r"a.npy exists"):
            written(tmp_path, "a.npy", values)
        assert path.read_bytes() == b"precious"
        shutil.rmtree(tmp_path / "parts")
        np.testing.assert_array_equal(np.load(written(tmp_path, "a.npy", values, overwrite=True)), values)

    def test_a_result_that_appears_meanwhile_is_kept(self, tmp_path, monkeypatch):
        path, real = tmp_path / "a.npy", os.link

        def link(*given):
            path.write_bytes(b"of another")
            real(*given)

        monkeypatch.setattr(os, "link", link)
        with pytest.raises(InputError, match=r"a.npy exists"):
            written(tmp_path, "a.npy", pixels(40, 50))
        assert path.read_bytes() == b"of another"

    def test_missing_parts_are_named_and_nothing_is_written(self, tmp_path):
        values = pixels(40, 50)
        with kept(tmp_path / "parts", values) as parts:
            path = parts.directory / "c.0.0.2.0"
            data = bytearray(path.read_bytes())
            data[-100] ^= 1
            path.write_bytes(data)
            with pytest.raises(UnavailableError, match=r"1 of 6 parts in .* are missing, part 4 first"):
                write_result(tmp_path / "a.tif", parts)
            assert parts.done() == {0, 1, 2, 3, 5}
        assert not (tmp_path / "a.tif").exists()

    @pytest.mark.parametrize("name", ["a.tif", "a.npy", "a.png"])
    def test_a_part_that_is_altered_while_others_are_read_leaves_no_result(self, tmp_path, monkeypatch, name):
        with kept(tmp_path / "parts", pixels(600, 700)) as parts:
            monkeypatch.setattr(ResultParts, "rows", altering(ResultParts.rows))
            with pytest.raises(UnavailableError, match=r"1 of 6 parts in .* are missing, part 5 first"):
                write_result(tmp_path / name, parts)
            assert parts.done() == {0, 1, 2, 3, 4}
        assert [path.name for path in tmp_path.iterdir()] == ["parts"]

    @pytest.mark.parametrize(("name", "channels"), [("a.tif", 3), ("a.tif", 5), ("a.npy", 3), ("a.png", 3)])
    def test_each_value_of_a_part_is_read_once(self, tmp_path, monkeypatch, name, channels):
        counts, real = [], os.preadv

        def preadv(*given):
            counts.append(real(*given))
            return counts[-1]

        values = pixels(600, 700, channels)
        with kept(tmp_path / "parts", values) as parts:
            monkeypatch.setattr(os, "preadv", preadv)
            monkeypatch.setattr(ResultParts, "verify", None)
            write_result(tmp_path / name, parts)
        assert sum(counts) == values.nbytes


def altering(rows):
    def read(parts, number, *given):
        path = parts.path(5)
        if not number and path.read_bytes()[10] != 1:
            path.write_bytes(path.read_bytes()[:10] + b"\1" + path.read_bytes()[11:])
        return rows(parts, number, *given)

    return read


LIMITED = """
import resource, signal, sys
from pathlib import Path
from serfer.core.errors import UnavailableError
from serfer.raster import write_result
from tests.raster.files import pixels
from tests.raster.test_results import kept
place = Path(sys.argv[1])
with kept(place.with_suffix(".parts"), pixels(600, 700, 1)) as parts:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
    try:
        write_result(place, parts)
    except UnavailableError as error:
        print(error)
"""


class TestFullDisks:
    @pytest.mark.parametrize("name", ["a.tif", "a.npy"])
    def test_a_full_disk_leaves_the_parts_and_no_result(self, tmp_path, monkeypatch, name):
        def fsync(number):
            if "/parts/" not in str(Path(f"/proc/self/fd/{number}").readlink()):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        values = pixels(600, 700)
        with kept(tmp_path / "parts", values) as parts:
            with monkeypatch.context() as patch:
                patch.setattr(os, "fsync", fsync)
                with pytest.raises(UnavailableError, match=r"no room .* all 6 parts are kept in"):
                    write_result(tmp_path / name, parts)
            assert [path.name for path in tmp_path.iterdir()] == ["parts"]
            write_result(tmp_path / name, parts)
        assert (tmp_path / name).exists()

    @pytest.mark.parametrize("name", ["a.tif", "a.npy", "a.png"])
    def test_a_limit_of_files_sizes_is_named_and_leaves_the_parts(self, tmp_path, name):
        done = subprocess.run(
            [sys.executable, "-c", LIMITED, tmp_path / name], capture_output=True, text=True, check=True
        )
        assert re.search(r"ulimit -f.* all 6 parts are kept in .* it resumes", done.stdout)
        assert [path.name for path in tmp_path.iterdir()] == ["a.parts"]

    def test_space_is_estimated_before_work_begins(self, tmp_path, monkeypatch):
        array = form_of(100, 100, 3, grid=(2, 2))
        with ResultParts.create_or_resume(tmp_path / "parts", {"job": 1}, array) as parts:
            free = SimpleNamespace(free=30_015)
            monkeypatch.setattr(shutil, "disk_usage", lambda _: free)
            with pytest.raises(UnavailableError, match="needs 30,016 bytes for 4 of 4 parts, and its disk has 30,015"):
                check_space(parts, tmp_path / "a.tif")
            parts.put(0, pixels(50, 50))
            warning = check_space(parts, tmp_path / "a.tif")
            assert "22,512 bytes of parts and up to 30,000 of the result go there" in warning
            free.free = 52_512
            assert check_space(parts, tmp_path / "a.tif") is None


@pytest.mark.killed
def test_a_killed_assembly_leaves_no_result_and_is_done_again(tmp_path):
    values = pixels(600, 700)
    kept(tmp_path / "parts", values).close()
    code = f"""
import os, signal
from pathlib import Path
from serfer.raster import *
from tests.raster.test_results import form_of
os.fsync = lambda number: os.kill(os.getpid(), signal.SIGKILL)
folder = Path({str(tmp_path)!r})
with ResultParts.create_or_resume(folder / "parts", {{"job": 1}}, form_of(600, 700, 3)) as parts:
    write_result(folder / "a.tif", parts)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert not (tmp_path / "a.tif").exists()
    with ResultParts.create_or_resume(tmp_path / "parts", {"job": 1}, form_of(600, 700, 3)) as parts:
        write_result(tmp_path / "a.tif", parts)
        parts.remove()
    assert [path.name for path in tmp_path.iterdir()] == ["a.tif"]  # what the killed one began is gone too


@pytest.fixture(scope="module")
def server():
    with MotoServer() as server:
        with server.client("s3") as client:
            client.create_bucket(Bucket="results")
        yield server


@pytest.fixture
def bucket(server, monkeypatch):
    for name, value in {**ACCESS, "AWS_ENDPOINT_URL_S3": server.url}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("serfer.raster.objects._PART_BYTES", 5 * 1024 * 1024)  # S3 takes no smaller ones
    with server.client("s3") as client:
        yield client


class TestS3:
    @pytest.mark.parametrize("side", [300, 1500])
    def test_a_result_is_uploaded_whole(self, bucket, tmp_path, side):
        values = pixels(side, side)
        options = ResultOptions(compression="none")
        place = f"s3://results/folder/{side}.tif"
        with kept(tmp_path / "parts", values) as parts:
            write_result(place, parts, options=options)
            with pytest.raises(InputError, match=rf"{side}.tif exists"):
                write_result(place, parts, options=options)
            parts.remove()
        assert [*tmp_path.iterdir()] == []
        with open_raster(place) as source:
            np.testing.assert_array_equal(source.read(Rect.whole(side, side)), values)
        assert "Uploads" not in bucket.list_multipart_uploads(Bucket="results")

    @pytest.mark.killed
    def test_an_upload_that_fails_or_was_killed_leaves_no_parts_there(self, bucket, tmp_path, monkeypatch):
        values = pixels(1500, 1500)
        options = ResultOptions(compression="none")
        begun = bucket.create_multipart_upload(Bucket="results", Key="b.tif")
        with kept(tmp_path / "parts", values) as parts:
            record = f'{{"Bucket": "results", "Key": "b.tif", "UploadId": "{begun["UploadId"]}"}}'
            (parts.directory / "upload.json").write_text(record)
            monkeypatch.setattr("s3transfer.upload.UploadPartTask._main", lambda *_args, **_options: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                write_result("s3://results/b.tif", parts, options=options)
            assert "Uploads" not in bucket.list_multipart_uploads(Bucket="results")
            assert {path.name[:4] for path in parts.directory.iterdir()} == {"c.0.", "zarr", "lock"}
            monkeypatch.undo()

    @pytest.mark.usefixtures("bucket")
    def test_a_bucket_that_is_not_there_is_named_before_work_begins(self):
        with pytest.raises(InputError, match="bucket does not exist"):
            check_result("s3://no-such-bucket/b.tif", form_of(30, 30, 3))


def test_the_palette_is_that_of_pascal_voc():
    assert palette()[:5] == ((0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0), (0, 0, 128))
    assert palette()[20] == (0, 64, 128)
    assert palette()[255] == (224, 224, 192)
    assert len({*palette()}) == 256
    mask = np.arange(256, dtype="uint8").reshape(16, 16)
    np.testing.assert_array_equal(np.asarray(mask_image(mask).convert("RGB")), COLOURS[mask])


@given(st.lists(st.floats(-(2.0**99), 2.0**99, width=32), min_size=1, max_size=50))
def test_depth_is_linear_between_its_extremes(values):
    array = np.array(values, "float32")
    scale = DepthScale.of(array)
    found = depth_values(scale.levels(array), scale.min, scale.max)
    assert np.abs(found.astype(float) - array).max() <= (scale.max - scale.min) / 131_068 * 1.01


def test_depth_of_one_value_and_of_none():
    one = np.full((3, 4), 2.5, "float32")
    scale = DepthScale.of(one)
    np.testing.assert_array_equal(depth_values(scale.levels(one), scale.min, scale.max), one)
    assert DepthScale.of(np.full((3, 4), np.nan, "float32")) is None


def test_a_georeference_is_scaled_about_the_corner_of_the_image():
    georeference = Georeference("WKT", tuple(WHERE)[:6]).scaled(rows=4, cols=2, top=10, left=6)
    expected = WHERE @ rasterio.Affine.translation(6, 10) @ rasterio.Affine.scale(2, 4)
    assert georeference.transform == tuple(expected)[:6]
    assert Georeference().scaled(2, 2) == Georeference()
