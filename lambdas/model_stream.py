"""An ONNX model with its weights inside, as a stream: ONNX Runtime then has one copy of them, and no buffer is left.

A graph's file names byte ranges of a weights file (external data). ONNX Runtime maps a file, but copies a buffer that
lives on; what it reads itself, by the path of a pipe, it has once. So the ranges are written into the model on the way,
and their pages are given back behind it; a thread does that, so ONNX Runtime must not hold Python's lock while it reads
(1.30 did, and waited for itself). In Protocol Buffers a message may come in parts, which are merged:

    file    = model { versions, graph { nodes, initializer { name, dims, external data: offset, length }, ... } }
    stream  = model { versions, graph { nodes } }, model { graph { initializer { name, dims, bytes } } }, ...

Weights that are stored in fp16 for a tensor in fp32 (model_parts.py) are cast on the way. Field numbers are those of
onnx.proto.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import numpy as np

from lambdas.model_parts import FP16, STORED_AS
from lambdas.protobuf import field, fields, header

MOST_BYTES = (1 << 31) - (1 << 26)
"""Weights, in memory, up to which a model can be streamed: Protocol Buffers read 2 GB at most."""
_GRAPH, _INITIALIZER, _RAW_DATA, _EXTERNAL_DATA, _DATA_LOCATION, _KEY, _VALUE = 7, 5, 9, 13, 14, 1, 2
_CHUNK = 1 << 20


@dataclass(frozen=True)
class _Tensor:
    """An initializer whose bytes are `length` bytes of the weights from `offset`; `rest` are its other fields.

    With `half` those bytes are fp16 numbers, and the initializer is in fp32.
    """

    offset: int
    length: int
    rest: bytes
    half: bool

    @property
    def size(self) -> int:
        """Bytes of the initializer in the stream."""
        return 2 * self.length if self.half else self.length


@contextmanager
def streamed(model: bytes, weights: mmap.mmap | bytes, *, give_back: bool) -> Iterator[str]:
    """Yield the path from which a model with its weights can be read once.

    With `give_back` the weights' pages are given back while they are read: they are zeros afterwards.
    """
    head, tensors = _parted(model)
    reading, writing = os.pipe()
    with suppress(OSError):  # a smaller one is slower
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _CHUNK)
    given = weights if give_back and isinstance(weights, mmap.mmap) else None
    thread = threading.Thread(target=_write, args=(writing, head, tensors, weights, given), name="model stream")
    thread.start()
    try:
        yield f"/proc/self/fd/{reading}"
    finally:
        os.close(reading)  # ends the thread wherever it is
        thread.join()


def _write(
    file: int, head: bytes, tensors: Sequence[_Tensor], weights: mmap.mmap | bytes, given: mmap.mmap | None
) -> None:
    """Write the model's parts into a pipe, and give back the pages of `given`, which is `weights`, behind them."""
    offsets = [*(tensor.offset for tensor in tensors), len(weights)]
    behind = 0
    with memoryview(weights) as view, suppress(BrokenPipeError), _closed(file):
        _put(file, memoryview(head))
        for tensor, next_offset in zip(tensors, offsets[1:], strict=True):
            end = tensor.offset + tensor.length
            rest = tensor.rest + header(_RAW_DATA, tensor.size)
            initializer = header(_INITIALIZER, len(rest) + tensor.size) + rest
            _put(file, memoryview(header(_GRAPH, len(initializer) + tensor.size) + initializer))
            for start in range(tensor.offset, end, _CHUNK):
                stop = min(start + _CHUNK, end)
                _put(file, _in_fp32(view[start:stop]) if tensor.half else view[start:stop])
                if given:
                    behind = _give_back(given, behind, min(stop, next_offset))


@contextmanager
def _closed(file: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(file)


def _put(file: int, data: memoryview) -> None:
    while data:
        data = data[os.write(file, data) :]


def _in_fp32(halves: memoryview) -> memoryview:
    return np.frombuffer(halves, "<f2").astype("<f4").data.cast("B")


def _give_back(weights: mmap.mmap, start: int, stop: int) -> int:
    """Give back whole pages of weights from one up to a position; return the start of the first that stays."""
    stop -= stop % mmap.PAGESIZE
    if stop <= start:
        return start
    weights.madvise(mmap.MADV_DONTNEED, start, stop - start)
    return stop


def _parted(model: bytes) -> tuple[bytes, list[_Tensor]]:
    """Return a model without its initializers that are external data, and those in the order of their bytes."""
    head, tensors = bytearray(), []
    for number, whole, content in fields(model):
        if number != _GRAPH:
            head += whole
            continue
        graph = bytearray()
        for inner, inner_field, initializer in fields(content):
            tensor = _tensor(initializer) if inner == _INITIALIZER else None
            if tensor:
                tensors.append(tensor)
            else:
                graph += inner_field
        head += field(_GRAPH, bytes(graph))
    return bytes(head), sorted(tensors, key=lambda tensor: tensor.offset)


def _tensor(initializer: bytes) -> _Tensor | None:
    """Return what an initializer says of its bytes in the weights; None where it has them itself."""
    rest, place = bytearray(), {}
    for number, whole, content in fields(initializer):
        if number == _EXTERNAL_DATA:
            entry = {inner: value for inner, _, value in fields(content)}
            place[entry[_KEY]] = entry[_VALUE]
        elif number != _DATA_LOCATION:
            rest += whole
    if not place:
        return None
    offset, length = int(place.get(b"offset", b"0")), int(place[b"length"])
    return _Tensor(offset, length, bytes(rest), place.get(STORED_AS) == FP16)
