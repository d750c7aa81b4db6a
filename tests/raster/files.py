"""Images that tests write, through rasterio or byte by byte."""

import struct
import warnings

import numpy as np
import rasterio
from PIL import Image

UTM = "EPSG:32633"
WHERE = rasterio.Affine(0.5, 0.0, 400_000.0, 0.0, -0.5, 5_800_000.0)


def pixels(height, width, bands=3, dtype="uint8", seed=0):
    """Return an image (bands, height, width) that compresses a little."""
    ramp = np.add.outer(np.arange(height), np.arange(width))
    noise = np.random.default_rng(seed).integers(0, 50, (bands, height, width))
    return (ramp + noise).astype(dtype) if np.dtype(dtype).kind == "f" else ((ramp + noise) % 251).astype(dtype)


def write(path, values, driver="GTiff", tags=None, **profile):
    bands, height, width = values.shape
    given = {"driver": driver, "count": bands, "height": height, "width": width, "dtype": values.dtype.name, **profile}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        with rasterio.open(path, "w", **given) as dataset:
            dataset.write(values)
            for domain, texts in (tags or {}).items():
                dataset.update_tags(ns=domain or None, **texts)
    return path


def read_depth(path):
    with Image.open(path) as image:
        return depth_values(np.asarray(image), *(float(image.info[f"serfer:{end}"]) for end in ("min", "max")))


def depth_values(levels, least, most):
    return np.where(levels == 0, np.nan, least + (levels.astype(float) - 1) / 65534 * (most - least)).astype("float32")


def write_scans(folder, sizes, **profile):
    """Write images of these sizes, by name, into a new folder, and return it."""
    folder.mkdir()
    for name, size in sizes.items():
        write(folder / f"{name}.tif", pixels(*size), **profile)
    return folder


WIDTH, HEIGHT, BITS, COMPRESSION, PHOTOMETRIC, SAMPLES, TILE_WIDTH, TILE_HEIGHT = 256, 257, 258, 259, 262, 277, 322, 323
OFFSETS, COUNTS, SAMPLE_FORMAT = 324, 325, 339
_LONG = 4


def tiff(tags, data=b"", *, next_directory=0):
    """Return a little-endian TIFF of one directory of 32-bit tags, each a number or a list; data begin at byte 8."""
    start = 8 + len(data)
    entries, extra = [], b""
    extra_start = start + 2 + 12 * len(tags) + 4
    for tag, value in sorted(tags.items()):
        values = value if isinstance(value, list) else [value]
        if len(values) == 1:
            entries.append(struct.pack("<HHII", tag, _LONG, 1, values[0]))
        else:
            entries.append(struct.pack("<HHII", tag, _LONG, len(values), extra_start + len(extra)))
            extra += struct.pack(f"<{len(values)}I", *values)
    directory = struct.pack("<H", len(tags)) + b"".join(entries) + struct.pack("<I", next_directory)
    return b"II*\0" + struct.pack("<I", start) + data + directory + extra


def tiled(width=64, height=64, tile=64, data=bytes(64 * 64), **changed):
    """Return the tags and data of a grey TIFF of one uncompressed tile, with some tags changed by name."""
    tags = {
        "WIDTH": width,
        "HEIGHT": height,
        "BITS": 8,
        "COMPRESSION": 1,
        "PHOTOMETRIC": 1,
        "SAMPLES": 1,
        "TILE_WIDTH": tile,
        "TILE_HEIGHT": tile,
        "OFFSETS": 8,
        "COUNTS": len(data),
        **changed,
    }
    return tiff({globals()[name]: value for name, value in tags.items()}, data)
