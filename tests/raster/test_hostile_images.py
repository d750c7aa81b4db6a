"""Files that are broken or made to do harm: each is refused in one line that names it, in little memory and time."""

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import sys
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image
from rasterio.env import get_gdal_config

from serfer.core.errors import ImageError, ImageTooLargeError, InputError, UnavailableError, UsageError
from serfer.core.geometry import Rect, Span
from serfer.raster import RasterLimits, open_raster
from serfer.raster.gdal import gdal
from tests.raster.files import pixels, tiled, write

GIB = 1 << 30


def read_corners(path, limits):
    with open_raster(path, limits) as source:
        height, width = source.size
        for row in (0, height - 1):
            for col in (0, width - 1):
                source.read(Rect(Span(row, row + 1), Span(col, col + 1)))


def refused(path, error=ImageError, limits=None, match=None):
    """Open a file and read its corners; return the message of the error that has to come."""
    with pytest.raises(error, match=match) as caught:
        read_corners(path, limits or RasterLimits())
    message = str(caught.value)
    assert path.name in message
    assert "\n" not in message
    assert "/proc/" not in message
    return message


def given(tmp_path, data, name="hostile.tif"):
    (tmp_path / name).write_bytes(data)
    return tmp_path / name


@pytest.mark.hostile
def test_the_tiff_that_the_others_are_made_from_is_read(tmp_path):
    with open_raster(given(tmp_path, tiled())) as source:
        assert source.read(Rect.whole(64, 64)).shape == (1, 64, 64)


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "is empty"),
        (b"GIF89a and so on", "not an image of a known format"),
        (b"<VRTDataset rasterXSize='1' rasterYSize='1'/>", "not an image of a known format"),
        (b"II*\0", "cannot be opened"),
        (b"II*\0\xff\xff\xff\xff", "cannot be opened"),
        (b"II+\0\x08\0\0\0" + b"\xff" * 8, "cannot be opened"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 40, "cannot be opened"),
        (b"\xff\xd8\xff\xe0" + b"\0" * 40, "cannot be read"),
    ],
)
def test_what_is_not_an_image_is_refused(tmp_path, data, match):
    refused(given(tmp_path, data), match=match)


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("changed", "limits", "match"),
    [
        ({"WIDTH": 2**31 - 1, "HEIGHT": 2**31 - 1}, {}, None),
        ({"WIDTH": 2**20, "HEIGHT": 2**19}, {}, "in 134,217,728 tiles or strips, more than the 4,000,000"),
        ({"WIDTH": 2**14, "HEIGHT": 2**14}, {"max_pixels": 10**8}, "pixels, more than the 100,000,000"),
        ({"SAMPLES": 60_000, "BITS": 8}, {}, None),
        ({"COMPRESSION": 34712}, {}, None),
        ({"COMPRESSION": 6}, {}, None),
        ({"BITS": 64, "SAMPLE_FORMAT": 6}, {}, "complex64"),
        ({"BITS": 32, "SAMPLE_FORMAT": 5}, {}, "complex_int16"),
        ({"WIDTH": 0}, {}, None),
        ({"TILE_WIDTH": 0}, {}, None),
        ({"TILE_WIDTH": 2**31}, {}, None),
        ({"COUNTS": 2**31}, {}, "has 2,147,483,648 bytes"),
        ({"OFFSETS": 2**31}, {}, "cannot be read"),
        ({"WIDTH": 640, "HEIGHT": 640}, {}, "is not in the file"),  # 100 tiles, of which one is there
    ],
)
def test_a_tiff_with_absurd_tags_is_refused(tmp_path, changed, limits, match):
    refused(given(tmp_path, tiled(**changed)), limits=RasterLimits(**limits), match=match)


@pytest.mark.hostile
def test_a_block_that_is_said_to_have_gigabytes_is_not_fetched(tmp_path):
    path = given(tmp_path, tiled(COUNTS=GIB, COMPRESSION=8))
    os.truncate(path, 4 * GIB)  # a hole: the bytes would all be there
    refused(path, ImageTooLargeError, match=r"tile or strip in row 0, column 0 has 1,073,741,824 bytes")


@pytest.mark.hostile
def test_a_compression_bomb_is_refused_before_it_is_decoded(tmp_path):
    side = 2**14
    bomb = zlib.compress(bytes(side * side), 1)
    path = given(tmp_path, tiled(side, side, side, bomb, COMPRESSION=8))
    assert path.stat().st_size < 2_000_000
    refused(path, ImageTooLargeError, match="in tiles or strips of 268,435,456 bytes")


@pytest.mark.hostile
def test_a_tile_that_holds_more_than_it_says_is_cut(tmp_path):
    bomb = zlib.compress(bytes(256 * 1024 * 1024), 1)
    with open_raster(given(tmp_path, tiled(data=bomb, COMPRESSION=8))) as source:
        assert source.read(Rect.whole(64, 64)).shape == (1, 64, 64)


@pytest.mark.hostile
def test_tiles_that_are_not_in_the_file_are_nodata_or_missing(tmp_path):
    profile = {"tiled": True, "blockxsize": 32, "blockysize": 32, "SPARSE_OK": True}
    values = np.zeros((1, 64, 64), "uint8")
    values[:, :32] = 5
    refused(write(tmp_path / "without.tif", values, **profile), match="row 1, column 0 is not in the file")
    with open_raster(write(tmp_path / "with.tif", values, nodata=0, **profile)) as source:
        np.testing.assert_array_equal(source.read(Rect.whole(64, 64)), values)


@pytest.mark.hostile
def test_one_strip_of_all_rows_is_decoded_row_by_row(tmp_path):
    values = pixels(3000, 700, 3)
    path = write(tmp_path / "strip.tif", values, blockysize=3000, compress="deflate")
    with open_raster(path, RasterLimits(max_block_bytes=6_250_000)) as source:
        np.testing.assert_array_equal(source.read(Rect(Span(50, 90), Span(7, 99))), values[:, 50:90, 7:99])


@pytest.mark.hostile
def test_a_window_in_too_many_blocks_is_refused(tmp_path):
    path = write(tmp_path / "many.tif", pixels(320, 320, 1), tiled=True, blockxsize=16, blockysize=16)
    with open_raster(path, RasterLimits(max_read_blocks=100)) as source:
        source.read(Rect(Span(0, 160), Span(0, 160)))
        with pytest.raises(ImageTooLargeError, match="lies in 110 of its tiles or strips, more than the 100"):
            source.read(Rect(Span(0, 160), Span(0, 161)))


@pytest.mark.hostile
def test_too_many_bands_are_refused(tmp_path):
    path = write(tmp_path / "bands.tif", pixels(16, 16, 5))
    refused(path, ImageTooLargeError, RasterLimits(max_bands=4), "has 5 bands: 1 to 4 are accepted")


@pytest.mark.hostile
@pytest.mark.parametrize("kept", [0.2, 0.5, 0.9, 0.999])
@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("a.tif", {"driver": "GTiff"}),
        ("a.tif", {"driver": "GTiff", "tiled": True, "blockxsize": 32, "blockysize": 32, "compress": "deflate"}),
        ("a.tif", {"driver": "COG", "compress": "deflate"}),
        ("a.png", {"driver": "PNG"}),
        ("a.jpg", {"driver": "JPEG"}),
    ],
)
def test_a_cut_file_is_refused(tmp_path, name, profile, kept):
    path = write(tmp_path / name, pixels(200, 300), **profile)
    os.truncate(path, int(path.stat().st_size * kept))
    refused(path)


@pytest.mark.hostile
def test_the_error_of_a_cut_file_asks_whether_it_is_whole(tmp_path):
    path = write(tmp_path / "a.tif", pixels(200, 300), tiled=True, blockxsize=32, blockysize=32)
    os.truncate(path, path.stat().st_size // 2)
    refused(path, match="is the file whole")


@pytest.mark.hostile
@pytest.mark.parametrize(("name", "driver"), [("a.png", "PNG"), ("a.jpg", "JPEG")])
def test_what_a_png_or_jpeg_decodes_to_is_bounded(tmp_path, name, driver):
    path = write(tmp_path / name, pixels(200, 300), driver)
    refused(path, ImageTooLargeError, RasterLimits(max_scratch_bytes=179_999), "temporary file of at most 179,999")
    refused(path, ImageTooLargeError, RasterLimits(max_pixels=59_999), "store it as a TIFF")


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("name", "profile", "kind"),
    [
        ("a.png", {"driver": "PNG"}, "an interlaced PNG"),
        ("a.jpg", {"driver": "JPEG", "progressive": True}, "a progressive JPEG"),
    ],
)
def test_what_has_to_be_decoded_whole_is_bounded_in_pixels(tmp_path, name, profile, kind):
    path = write(tmp_path / name, pixels(200, 300), **profile)
    if kind.endswith("PNG"):
        path = given(tmp_path, interlaced(pixels(200, 300, 1)[0]), name)
    refused(path, ImageTooLargeError, RasterLimits(max_whole_pixels=59_999), f"is {kind}, which is decoded whole")
    with open_raster(path, RasterLimits(max_whole_pixels=60_000)) as source:
        assert source.read(Rect.whole(200, 300)).shape[1:] == (200, 300)


def interlaced(values):
    """Return a grey image as an interlaced PNG (Adam7), which Pillow does not write."""
    starts = [(0, 0, 8, 8), (0, 4, 8, 8), (4, 0, 8, 4), (0, 2, 4, 4), (2, 0, 4, 2), (0, 1, 2, 2), (1, 0, 2, 1)]
    rows = [row for top, left, down, across in starts for row in values[top::down, left::across]]
    data = zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows))
    header = struct.pack(">IIBBBBB", values.shape[1], values.shape[0], 8, 0, 0, 0, 1)
    chunks = [(b"IHDR", header), (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


@pytest.mark.hostile
def test_a_png_that_declares_gigapixels_is_refused_by_its_header(tmp_path):
    Image.fromarray(pixels(20, 30, 1)[0]).save(tmp_path / "a.png")
    data = bytearray((tmp_path / "a.png").read_bytes())
    data[16:24] = (200_000).to_bytes(4, "big") * 2
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    refused(given(tmp_path, bytes(data), "a.png"), ImageTooLargeError, match="store it as a TIFF")


@pytest.mark.hostile
@pytest.mark.parametrize("name", ["a.png", "a.jpg"])
def test_pixels_that_find_no_room_are_named_with_their_bytes(tmp_path, monkeypatch, name):
    path = write(tmp_path / name, pixels(200, 300), driver={"a.png": "PNG", "a.jpg": "JPEG"}[name])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=9))
    with open_raster(path, scratch=tmp_path) as source, pytest.raises(UnavailableError, match="180,000 bytes"):
        source.decode()
    assert [each.name for each in tmp_path.iterdir()] == [name]


@pytest.mark.hostile
@pytest.mark.parametrize("limits", [RasterLimits(), RasterLimits(max_whole_pixels=1)])
def test_a_broken_jpeg_is_decoded_once_however_many_windows_are_read(tmp_path, limits):
    path = write(tmp_path / "a.jpg", pixels(200, 300), "JPEG")
    os.truncate(path, path.stat().st_size // 2)
    with open_raster(path, limits) as source:
        with pytest.raises(ImageError, match=r"truncated|Premature|is the file whole"):
            source.decode()
        with pytest.raises(ImageError, match="it is broken, as was found before"):
            source.read(Rect(Span(0, 9), Span(0, 9)))


@pytest.mark.hostile
def test_directories_in_a_circle_end(tmp_path):
    data = bytearray(tiled())
    start = int.from_bytes(data[4:8], "little")
    entries = int.from_bytes(data[start : start + 2], "little")
    data[start + 2 + 12 * entries :][:4] = b""
    data[start + 2 + 12 * entries : start + 6 + 12 * entries] = start.to_bytes(4, "little")
    with open_raster(given(tmp_path, bytes(data))) as source:
        assert source.size == (64, 64)


@pytest.mark.hostile
@pytest.mark.parametrize("name", ["/vsicurl/http://127.0.0.1:9/a.tif", "/vsimem/a.tif", "/vsizip/a.zip/a.tif"])
def test_a_path_of_gdals_own_is_only_a_path(name):
    with pytest.raises(InputError, match="does not exist"):
        open_raster(name)


@pytest.mark.hostile
@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/a.tif", "zip:///a.zip!a.tif", "file:///etc/passwd", "s3://b", "s3://B/k"]
)
def test_only_urls_of_s3_objects_are_places(url):
    with pytest.raises(UsageError):
        open_raster(url)


@pytest.mark.hostile
def test_missing_files_folders_and_pipes_are_refused(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "none.tif", InputError, match="does not exist")
    refused(tmp_path / "pipe", InputError, match="is not a file")
    with pytest.raises(InputError, match="is not a file"):
        open_raster(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        open_raster("a\0.tif")


@pytest.mark.hostile
@pytest.mark.parametrize("domain", ["OVERVIEWS", "", "SUBDATASETS", "xml:VRT"])
def test_a_tiff_cannot_make_gdal_fetch_anything(tmp_path, domain):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0)
        url = f"/vsicurl/http://127.0.0.1:{server.getsockname()[1]}/evil.tif"
        values = pixels(64, 64, 1)
        path = write(
            tmp_path / "a.tif", values, tags={domain: {"OVERVIEW_FILE": url, "SUBDATASET_1_NAME": url, "RPC": url}}
        )
        assert url.encode() in path.read_bytes()
        with open_raster(path) as source:
            np.testing.assert_array_equal(source.read(Rect.whole(64, 64)), values)
        with gdal(str(path)) as rasterio, pytest.raises(rasterio.errors.RasterioIOError):
            rasterio.open(url)
        with pytest.raises(BlockingIOError):
            server.accept()


@pytest.mark.hostile
def test_gdals_cache_is_bounded_after_reading_too(tmp_path):
    with open_raster(write(tmp_path / "a.tif", pixels(64, 64)), RasterLimits(cache_bytes=5_000_000)) as source:
        source.read(Rect.whole(64, 64))
        assert get_gdal_config("GDAL_CACHEMAX") == 5_000_000


@pytest.mark.hostile
def test_libtiff_says_nothing_of_a_damaged_file_itself(tmp_path, capfd):
    path = write(tmp_path / "a.tif", pixels(100, 130), compress="lzw", BIGTIFF="YES", interleave="band")
    good = path.read_bytes()
    for place in range(16, 400, 3):
        path.write_bytes(good[:place] + b"\xff" + good[place + 1 :])
        with contextlib.suppress(ImageError):
            read_corners(path, RasterLimits())
    assert capfd.readouterr().err == ""


MUTATIONS = 150
MUTATE = """
import random, resource, sys
from pathlib import Path
from serfer.core.errors import SerferError
from serfer.core.geometry import Rect, Span
from serfer.raster import RasterLimits, open_raster
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
limits = RasterLimits(max_block_bytes=1 << 24)
for path in map(Path, sys.argv[2:]):
    chance, good, outcomes = random.Random(7), path.read_bytes(), {}
    print(path, file=sys.stderr, flush=True)
    for _ in range(int(sys.argv[1])):
        data = bytearray(good)
        for _ in range(chance.choice((1, 1, 2, 8))):
            within = min(len(data), 700) if chance.random() < 0.8 else len(data)
            data[chance.randrange(within)] = chance.randrange(256)
        path.write_bytes(data)
        try:
            with open_raster(path, limits) as source:
                source.read(Rect(Span(0, min(64, source.size[0])), Span(0, min(64, source.size[1]))))
            outcome = "read"
        except SerferError as error:
            assert "\\n" not in str(error) and str(path) in str(error), error
            outcome = type(error).__name__
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
    print(outcomes, file=sys.stderr)
peak = int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])
assert peak < 400_000, peak
"""


PROFILES = [
    ("a.tif", {"driver": "GTiff", "tiled": True, "blockxsize": 32, "blockysize": 32, "compress": "deflate"}),
    ("b.tif", {"driver": "GTiff", "compress": "lzw", "BIGTIFF": "YES", "interleave": "band"}),
    ("c.tif", {"driver": "COG", "compress": "jpeg"}),
    ("a.png", {"driver": "PNG"}),
    ("a.jpg", {"driver": "JPEG"}),
]


@pytest.mark.hostile
def test_damaged_images_are_read_or_refused_but_never_end_the_process(tmp_path):
    paths = [write(tmp_path / name, pixels(100, 130), **profile) for name, profile in PROFILES]
    run = [sys.executable, "-c", MUTATE, str(MUTATIONS), *paths]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
