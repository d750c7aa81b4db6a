"""A network in half precision: float32 in and out, float16 between."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from serfer.core.errors import ModelError


def converter() -> tuple[Callable[[Path], Any], Callable[..., Any]]:
    """Return how an ONNX file is read and converted; what that imports takes 50 MB, which belongs to no network."""
    import onnx  # noqa: PLC0415 - only this needs it
    from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: PLC0415 - same

    return onnx.load, convert_float_to_float16


def half_precision(path: Path) -> bytes:
    """Return the fp16 form of an ONNX file, with its weights; raises ModelError where it has none."""
    load, convert = converter()
    logging.getLogger("onnxruntime.transformers.float16").setLevel(logging.ERROR)  # of every weight that is rounded
    try:
        converted = convert(load(path), keep_io_types=True)
        data: bytes = converted.SerializeToString()
    except Exception as error:  # whatever the converter meets
        line = str(error).partition("\n")[0]
        raise ModelError(f"--precision fp16: this network cannot be converted, use fp32: {line[:200]}") from error
    return data
