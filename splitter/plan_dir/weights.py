"""Large constants in files of their own: each function of a stage has one weights file, which its tiles share.

A weight may be stored in fp16 (it is cast when the session is built), and a function that computes some columns of a
fully connected layer holds just those.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from serfer.splitter.network.graph import INLINE_BYTES, Weights
from serfer.splitter.tiling.onnx_builder import Slice

_ALIGNMENT = 64


class WeightsFile:
    """Where each large weight lies in the file called `name`; those in `half` are stored in fp16."""

    def __init__(self, name: str, constants: Mapping[str, NDArray[Any]], half: frozenset[str]) -> None:
        self.name = name
        self._constants: Weights = {key: value for key, value in constants.items() if value.nbytes > INLINE_BYTES}
        self._half = half & self._constants.keys()
        self._offsets: dict[str, int] = {}
        end = 0
        for key in self._constants:
            self._offsets[key] = end
            end += -(-self._length(key) // _ALIGNMENT) * _ALIGNMENT
        self.bytes = end

    def __contains__(self, key: str) -> bool:
        return key in self._constants

    def slices_of(self, base: str) -> list[Slice]:
        slices = (Slice.parse(key) for key in self._constants)
        return [part for part in slices if part and part.base == base]

    def _length(self, key: str) -> int:
        return self._constants[key].nbytes // (2 if key in self._half else 1)

    def write(self, path: Path) -> None:
        with path.open("wb") as file:
            for key, value in self._constants.items():
                kind = np.dtype(np.float16) if key in self._half else value.dtype
                file.write(np.ascontiguousarray(value).astype(kind.newbyteorder("<"), copy=False).data)
                file.write(bytes(-file.tell() % _ALIGNMENT))

    def is_half(self, key: str) -> bool:
        return key in self._half

    def reference(self, key: str, name: str, location: str) -> TensorProto:
        """Return an initializer called `name` that points to constant `key` in the file, which lies at `location`."""
        value = self._constants[key]
        kind = TensorProto.FLOAT16 if key in self._half else helper.np_dtype_to_tensor_dtype(value.dtype)
        tensor = TensorProto(name=name, dims=value.shape, data_type=kind, data_location=TensorProto.EXTERNAL)
        entries = (("location", location), ("offset", self._offsets[key]), ("length", self._length(key)))
        for field, entry in entries:
            tensor.external_data.add(key=field, value=str(entry))
        return tensor
