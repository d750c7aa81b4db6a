"""One picture, two readers: what an image's samples become in pictures and in maps is one table, which a page has."""

import io
import itertools
import struct
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image

from serfer.core.errors import ImageError
from serfer.core.geometry import Rect
from serfer.core.plan import ImageLimits
from serfer.images import upright_image
from serfer.raster import open_raster
from tests.raster.files import write
from tests.test_images import png, scanlines

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "preprocess.md"
WHITE_IS_0 = {"photometric": "MINISWHITE"}
RGB = {"photometric": "RGB"}
KINDS = {  # what the page calls it: type, bands, value of white, how it is written
    "PNG, uint16 (grey and RGB)": ("uint16", 3, 65_535, {"driver": "PNG"}),
    "uint8": ("uint8", 1, 255, {}),
    "uint8, `MINISWHITE`": ("uint8", 1, 255, WHITE_IS_0),
    "uint16": ("uint16", 1, 65_535, {}),
    "uint16, `MINISWHITE`": ("uint16", 1, 65_535, WHITE_IS_0),
    "uint16 of 12 bits": ("uint16", 1, 4_095, {"nbits": 12}),
    "uint16 of 10 bits": ("uint16", 1, 1_023, {"nbits": 10}),
    "uint16 of 14 bits": ("uint16", 1, 16_383, {"nbits": 14}),
    "int8": ("int8", 1, 127, {}),
    "int16": ("int16", 1, 32_767, {}),
    "int32": ("int32", 1, 2**31 - 1, {}),
    "uint32": ("uint32", 1, 2**32 - 1, {}),
    "float16": ("float32", 1, 1, {"nbits": 16}),
    "float32": ("float32", 1, 1, {}),
    "float64": ("float64", 1, 1, {}),
    "RGB of uint16": ("uint16", 3, 65_535, RGB),
    "RGB of uint16 of 12 bits": ("uint16", 3, 4_095, {**RGB, "nbits": 12}),
    "RGB of float32": ("float32", 3, 1, RGB),
}
LAYOUTS = [
    {"ENDIANNESS": order, "compress": compression, "interleave": planes}
    for order, compression, planes in itertools.product(("LITTLE", "BIG"), ("none", "deflate"), ("pixel", "band"))
]


def shown(data):
    """Return an image's levels as pictures have them, (H, W, 3)."""
    return np.asarray(upright_image(data, "picture", ImageLimits()))


def by_gdal(path, values, profile):
    """Yield the byte order of each file that is written, None where there is none."""
    for layout in [{}] if "driver" in profile else LAYOUTS:
        write(path, values, **profile, **layout)
        yield layout.get("ENDIANNESS")


def by_tifffile(path, values, profile):
    values = values.astype("float16") if "nbits" in profile else values
    photometric = profile.get("photometric", "MINISBLACK").lower()
    for order, compression, planes in itertools.product("<>", (None, "zlib"), ("contig", "separate")):
        own = values if planes == "separate" else np.moveaxis(values, 0, -1)
        form = {"photometric": photometric, "planarconfig": planes} if len(values) > 1 else {"photometric": photometric}
        tifffile.imwrite(path, own if len(values) > 1 else values[0], byteorder=order, compression=compression, **form)
        yield "LITTLE" if order == "<" else "BIG"


WRITERS = [(by_gdal, kind) for kind in KINDS]
WRITERS += [(by_tifffile, kind) for kind, (*_, how) in KINDS.items() if "driver" not in how and "bits" not in kind]


@pytest.mark.parametrize(("writer", "kind"), WRITERS)
def test_kinds_of_samples_are_the_same_in_pictures_and_maps(tmp_path, writer, kind):
    dtype, bands, white, profile = KINDS[kind]
    values = (np.linspace(0, white, 3 * 32 * 48).reshape(3, 32, 48)[:bands]).astype(dtype)
    wanted = values / float(white) * 255
    orders, refusals, path = set(), [], tmp_path / "image"
    for order in writer(path, values, profile):
        with open_raster(path) as source:
            assert source.white == white
            levels = source.read(Rect.whole(32, 48)).astype(float) / source.white * 255
        assert np.abs(levels - (255 - wanted if "MINISWHITE" in kind else wanted)).max() < 0.1
        try:
            picture = shown(path.read_bytes()).transpose(2, 0, 1)[:bands]
        except ImageError as error:
            refusals.append(str(error))
        else:
            assert np.abs(picture - levels).max() <= 1
            orders.add(order)
    assert all("it is a TIFF of" in refusal for refusal in refusals)
    said = "little-endian" if orders == {"LITTLE"} else "read" if orders else "refused"
    assert f"| {kind} | {white:,} | {said} |" in PAGE.read_text()


@pytest.mark.parametrize(
    ("dtype", "values"), [("int16", [-1, 300]), ("float32", [0, 255]), ("float32", [np.nan, np.nan])]
)
def test_samples_beyond_black_and_white_are_refused_with_their_range(tmp_path, dtype, values):
    path = write(tmp_path / "image", np.array(values, dtype).reshape(1, 1, -1))
    with pytest.raises(ImageError, match=f"picture has {dtype} samples from {values[0]} to {values[1]}"):
        shown(path.read_bytes())


@pytest.mark.parametrize("depth", [2, 4, 16])
def test_transparent_colour_of_a_grey_png_is_white_and_no_data_in_maps(tmp_path, depth):
    samples, key = np.arange(2**depth - 16 if depth > 4 else 0, 2**depth), 2**depth - 2
    rows = b"".join(int(value).to_bytes(2) for value in samples)
    if depth < 16:
        bits = int("".join(f"{value:0{depth}b}" for value in samples), 2)
        rows = bits.to_bytes(len(samples) * depth // 8)
    data = png(len(samples), 1, depth, 0, b"\0" + rows, (b"tRNS", struct.pack(">H", key)))
    wanted = np.where(samples == key, 255, np.rint(samples * 255 / (2**depth - 1)))
    assert shown(data)[0, :, 0].tolist() == wanted.tolist()
    (path := tmp_path / "a.png").write_bytes(data)
    with open_raster(path) as source:
        assert (source.read(Rect.whole(*source.size))[0, 0] == source.nodata).tolist() == (samples == key).tolist()


def test_grey_in_cielab_is_grey_in_pictures_and_refused_for_maps(tmp_path):
    """GDAL 3.10.3 and OpenCV 5.0.0 make (142, 130, 114) of it: libtiff does not adapt D50 to the D65 of sRGB."""
    tifffile.imwrite(path := tmp_path / "a.tif", np.full((16, 16, 3), (136, 0, 0), np.uint8), photometric="cielab")
    assert (shown(path.read_bytes()) == 127).all()
    with pytest.raises(ImageError, match="has CIELab colours"):
        open_raster(path)


def test_cmyk_jpeg_is_one_picture_with_and_without_adobes_marker():
    """Pillow 13.0.0, OpenCV 5.0.0, libvips 8.18.7 and GDAL 3.10.3 take its inks for inverted ones."""
    Image.new("CMYK", (16, 16), (0, 128, 255, 0)).save(file := io.BytesIO(), "JPEG", quality=100)
    data = file.getvalue()
    at = data.index(b"\xff\xee")
    bare = data[:at] + data[at + 2 + int.from_bytes(data[at + 2 : at + 4]) :]
    assert shown(data)[0, 0].tolist() == shown(bare)[0, 0].tolist() == [255, 127, 0]


@pytest.mark.parametrize(("tag", "value"), [(262, 6), (259, 50_001)], ids=["halved colours", "WebP"])
def test_tiff_that_pillow_cannot_decode_is_refused_by_its_kind(tag, value):
    """Pillow 13.0.0 says "image file is truncated" of halved, uncompressed YCbCr, and "decoder error -2" of WebP."""
    file = io.BytesIO()
    Image.new("RGB", (16, 16)).save(file, "TIFF")
    data, kind = file.getvalue(), struct.pack("<HHI", tag, 3, 1)
    at = data.index(kind) + len(kind)
    with pytest.raises(ImageError, match=r"it is a TIFF of 3 x uint8 \("):
        shown(data[:at] + struct.pack("<H", value) + data[at + 2 :])


def test_transparent_colour_of_a_png_of_16_bits_is_white_and_its_neighbours_are_not():
    key = (0x1234, 0x5678, 0x9ABC)
    colours = np.array([[key, (0x1234, 0x5678, 0x9ABD), (0x1235, 0x5678, 0x9ABC)]])
    data = png(3, 1, 16, 2, scanlines(colours.reshape(1, -1)), (b"tRNS", struct.pack(">3H", *key)))
    assert shown(data)[0].tolist() == [[255] * 3, [0x12, 0x56, 0x9A], [0x12, 0x56, 0x9A]]


def test_palette_of_a_tiff_that_has_bytes_keeps_its_colours():
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 0, 0, 200, 100, 50])
    file = io.BytesIO()
    image.save(file, "TIFF", tiffinfo={320: [0, 200] + [0] * 254 + [0, 100] + [0] * 254 + [0, 50] + [0] * 254})
    assert shown(file.getvalue())[0, 0].tolist() == [200, 100, 50]
