"""A network in 8 bits, for instances: static, in QDQ form, calibrated on images that accuracy is not measured on."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import ModelError
from serfer.core.plan import AS_IS, Artefact, Plan, sealed
from serfer.core.plan.layout import QUANTISED
from serfer.pipeline.reference import normalised
from serfer.plan_directory import file_sha256, write_plan
from serfer.variants.images import ImageFiles

_BATCH: Final = 8


def with_quantised(plan: Plan, directory: Path, images: ImageFiles, out: Path) -> Plan:
    """Copy a plan directory to `out`, with its whole network in 8 bits beside the rest, and return its plan.

    Raises ModelError for a network that ONNX Runtime's quantiser does not take, or of which a part runs as given.
    """
    if any(operator.kind == AS_IS for stage in plan.stages for operator in stage.operators):
        raise ModelError("this network cannot be quantised: a part of it runs as it was given")
    shutil.copytree(directory, out)
    path = out / QUANTISED
    try:
        with _quietly():
            _quantise(out / plan.unsplit.path, path, _Reader(plan, images))
    except Exception as error:  # whatever the quantiser meets
        line = str(error).partition("\n")[0]
        raise ModelError(f"this network cannot be quantised: {line[:200]}") from error
    artefact = Artefact(QUANTISED, path.stat().st_size, file_sha256(path))
    quantised = sealed(replace(plan, quantised=(artefact,)))
    write_plan(quantised, out)
    return quantised


def _quantise(network: Path, out: Path, reader: _Reader) -> None:
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_static  # noqa: PLC0415 - it takes seconds

    quantize_static(
        network,
        out,
        reader,
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
    )


class _Reader:
    """Gives the quantiser normalised images, a batch at a time; its CalibrationDataReader."""

    def __init__(self, plan: Plan, images: ImageFiles) -> None:
        self._batches = ({"input0": normalised(plan, batch)} for batch in images.batches(_BATCH))

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        return next(self._batches, None)


@contextmanager
def _quietly() -> Iterator[None]:
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(before)
