"""A network as one ONNX file, for those who run it without SerFer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import nn


def write_onnx(model: nn.Module | str, side: int, file: Path) -> None:
    from serfer.splitter.network.source import load  # noqa: PLC0415 - imports torch
    from serfer.splitter.plan_dir.emit import in_one_piece  # noqa: PLC0415 - same
    from serfer.splitter.tiling.from_onnx import from_onnx  # noqa: PLC0415 - same

    source, _ = load(model, np.zeros((1, 3, side, side), np.float32))
    graph = from_onnx(source.onnx, side, side, source.outputs)
    file.write_bytes(in_one_piece(graph).model({}).SerializeToString())
