"""Arrays as files: .npy in, bounded before it is read; a network's outputs out, as .npy, PNG or TIFF.

A PNG holds a mask, of whole numbers from 0 to 255, as indices of a fixed palette, or a map of one channel of floats as
levels of 16 bits (serfer/raster/palette.py). A TIFF holds float32, a page for each channel.
"""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from serfer.core.errors import InputError
from serfer.core.plan import OUTPUT_TYPES, OutputTensor
from serfer.raster.palette import CLASSES, DepthScale, mask_image

FORMATS = ("npy", "png", "tiff")
NPY, PNG, TIFF = FORMATS
Array = NDArray[Any]
_MAP_AXES, _CHANNEL_AXES = 2, 3  # rows and columns; channels before them
_MOST_NAME = 100  # characters of an output's name in a file's


def array_of(given: Any, what: str, kind: type[InputError] = InputError) -> Array:  # noqa: ANN401 - or a tensor
    """Return a caller's array or tensor as an array; raises `kind` that says `what` is none for numpy."""
    try:
        return np.asarray(given.detach().cpu() if hasattr(given, "detach") else given)
    except (TypeError, ValueError, RuntimeError) as error:  # a tensor of bfloat16, a sparse one, lists of other lengths
        reason = str(error).splitlines()[0]
        raise kind(f"the {what} is not an array: {reason}; give float32, of a tensor {what}.float()") from error


def read_npy(path: Path, most_bytes: int) -> Array:
    """Return the array of a .npy file of at most `most_bytes`; raises InputError that names it. Pickles are refused."""
    try:
        if not path.is_file():
            raise InputError(f"{path} {'is not a file' if path.exists() else 'does not exist'}")
        if path.stat().st_size > most_bytes:
            raise InputError(f"{path} has more than {most_bytes:,} bytes")
        return np.array(np.lib.format.open_memmap(path, mode="r"), order="C")
    except OSError as error:
        raise InputError(f"{str(path)!r} cannot be read: {error.strerror or error}") from error
    except (ValueError, TypeError, EOFError, OverflowError) as error:
        raise InputError(f"{str(path)!r} is not an array in a whole .npy file: {error}") from error


def file_names(stem: str, tensors: Sequence[OutputTensor], kind: str) -> list[str]:
    """Return the file's name for each output, `STEM.OUTPUT.SUFFIX`, all different.

    In an output's name, characters other than letters, digits, ".", "_" and "-" become "_". Outputs that a format
    cannot hold are .npy.
    """
    names: list[str] = []
    for number, tensor in enumerate(tensors):
        part = re.sub(r"[^\w.-]", "_", tensor.name, flags=re.ASCII)[:_MOST_NAME]
        suffix = kind if holds(kind, tensor) else NPY
        name = f"{stem}.{part}.{suffix}"
        names.append(name if name not in names else f"{stem}.{part}-{number}.{suffix}")
    return names


def holds(kind: str, tensor: OutputTensor) -> bool:
    """Return whether a format can hold an output: PNG a mask or one channel, TIFF any map, .npy everything."""
    axes = len(tensor.dims)
    if tensor.sized_by:  # a table of what was found
        return kind == NPY
    if kind == PNG:
        return axes == _MAP_AXES or (axes == _CHANNEL_AXES and tensor.dims[0] == 1)
    return kind == NPY or axes in (_MAP_AXES, _CHANNEL_AXES)


def encode(values: Array, kind: str, name: str) -> bytes:
    """Return an output (N, ...) as a file's bytes; raises InputError that names the output.

    PNG and TIFF hold one image, without the axis of images; .npy has all axes.
    """
    if kind == NPY:
        file = io.BytesIO()
        np.save(file, values, allow_pickle=False)
        return file.getvalue()
    if len(values) != 1:
        raise InputError(f"output {name!r} has {len(values)} images, and a {kind} file holds one: write npy")
    return _tiff(values[0]) if kind == TIFF else _png(values[0], name)


def _png(values: Array, name: str) -> bytes:
    plane = values.reshape(values.shape[-2:])
    if plane.dtype.name == OUTPUT_TYPES[0]:
        return _levels(plane)
    if plane.min() < 0 or plane.max() >= CLASSES:
        raise InputError(
            f"output {name!r} has values from {plane.min()} to {plane.max()}, and a PNG mask holds 0 to 255: write npy "
            "or tiff"
        )
    return _saved(mask_image(plane.astype(np.uint8)), "PNG")


def _levels(plane: Array) -> bytes:
    scale = DepthScale(float(plane.min()), float(plane.max()))  # outputs are finite
    return _saved(Image.fromarray(scale.levels(plane)), "PNG", pnginfo=scale.metadata())


def _tiff(values: Array) -> bytes:
    first, *others = (Image.fromarray(plane) for plane in values.astype(np.float32).reshape(-1, *values.shape[-2:]))
    return _saved(first, "TIFF", save_all=True, append_images=others)


def _saved(image: Image.Image, kind: str, **options: Any) -> bytes:  # noqa: ANN401 - Pillow's
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
