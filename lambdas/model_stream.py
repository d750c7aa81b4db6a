"""An ONNX model with its weights inside, as a stream: ONNX Runtime then has one copy of them, and no buffer is left.

A graph's file names byte ranges of a weights file (external data). ONNX Runtime maps a file, but copies a buffer that
lives on; what it reads itself, by the path of a pipe, it has once. So the ranges are written into the model on the way,
and their pages are given back behind it; a thread does that, so ONNX Runtime must not hold Python's lock while it reads
(1.30 did, and waited for itself). In Protocol Buffers a message may come in parts, which are merged:

    file    = model { versions, graph { nodes, initializer { name, dims, external data: offset, length }, ... } }
    stream  = model { versions, graph { nodes } }, model { graph { initializer { name, dims, bytes } } }, ...

The body of a Scan that a part runs in as it is (splitter/network/as_is.py) has initializers of its own. A message in a
repeated field is not merged, so such an operator is one message of the stream, with its weights in place. Weights that
are stored in fp16 for a tensor in fp32 (model_parts.py) are cast on the way. Field numbers are those of onnx.proto.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import FileIO

import numpy as np

from serfer.lambdas.model_parts import RAW_DATA, Tensor, read_tensor, tensor_head
from serfer.lambdas.protobuf import field, fields, header

MOST_BYTES = (1 << 31) - (1 << 26)
"""Weights, in memory, up to which a model can be streamed: Protocol Buffers read 2 GB at most."""
_GRAPH, _INITIALIZER = 7, 5
_NODE, _ATTRIBUTE, _BODY = 1, 5, 6  # of a graph, an operator, and an attribute
_CHUNK = 1 << 20


_Piece = bytes | Tensor


@contextmanager
def streamed(model: bytes, weights: mmap.mmap | bytes, *, give_back: bool) -> Iterator[str]:
    """Yield the path from which a model with its weights can be read once.

    With `give_back` the weights' pages are given back while they are read: they are zeros afterwards.
    """
    head, pieces = _split_model(model)
    reading, writing = os.pipe()
    if sys.platform == "linux":
        with suppress(OSError):  # a smaller one is slower
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _CHUNK)
    offsets = [piece.offset for piece in pieces if isinstance(piece, Tensor)]
    in_order = offsets == sorted(offsets)
    given = weights if give_back and in_order and isinstance(weights, mmap.mmap) else None
    thread = threading.Thread(target=_write, args=(writing, [head, *pieces], weights, given), name="model stream")
    thread.start()
    try:
        yield f"/{'proc/self' if sys.platform == 'linux' else 'dev'}/fd/{reading}"
    finally:
        os.close(reading)  # ends the thread wherever it is
        thread.join()


def _write(file: int, pieces: Sequence[_Piece], weights: mmap.mmap | bytes, given: mmap.mmap | None) -> None:
    offsets = [*(piece.offset for piece in pieces if isinstance(piece, Tensor)), len(weights)]
    behind = number = 0
    with memoryview(weights) as view, suppress(BrokenPipeError), open(file, "wb", buffering=0) as pipe:
        for piece in pieces:
            if isinstance(piece, bytes):
                _put(pipe, memoryview(piece))
                continue
            number, end = number + 1, piece.offset + piece.length
            for start in range(piece.offset, end, _CHUNK):
                stop = min(start + _CHUNK, end)
                _put(pipe, _in_fp32(view[start:stop]) if piece.half else view[start:stop])
                if given:
                    behind = _give_back(given, behind, min(stop, offsets[number]))


def _put(pipe: FileIO, data: memoryview) -> None:
    while data:
        data = data[pipe.write(data) :]


def _in_fp32(halves: memoryview) -> memoryview:
    return np.frombuffer(halves, "<f2").astype("<f4").data.cast("B")


def _give_back(weights: mmap.mmap, start: int, stop: int) -> int:
    stop -= stop % mmap.PAGESIZE
    if stop <= start:
        return start
    weights.madvise(mmap.MADV_DONTNEED, start, stop - start)
    return stop


def _split_model(model: bytes) -> tuple[bytes, list[_Piece]]:
    head, apart = bytearray(), list[list[_Piece]]()
    for number, whole, content in fields(model):
        if number != _GRAPH:
            head += whole
            continue
        graph = bytearray()
        for inner, inner_field, message in fields(content):
            pieces = _streamed_field(inner, message)
            if pieces:
                apart.append(_field(_GRAPH, pieces))
            else:
                graph += inner_field
        head += field(_GRAPH, bytes(graph))
    apart.sort(key=lambda pieces: next(piece.offset for piece in pieces if isinstance(piece, Tensor)))
    return bytes(head), [piece for pieces in apart for piece in pieces]


def _streamed_field(number: int, message: bytes) -> list[_Piece]:
    if number == _INITIALIZER:
        tensor = read_tensor(message)
        content: list[_Piece] = [tensor_head(tensor) + header(RAW_DATA, tensor.size), tensor]
        return _field(_INITIALIZER, content) if tensor.location else []
    pieces = _with_weights(message, (_ATTRIBUTE, _BODY)) if number == _NODE else []
    return _field(_NODE, pieces) if pieces else []


def _with_weights(message: bytes, path: tuple[int, ...]) -> list[_Piece]:
    pieces, streamed_fields = list[_Piece](), 0
    for number, whole, content in fields(message):
        inner = list[_Piece]()
        if not path:
            inner = _streamed_field(number, content) if number == _INITIALIZER else []
        elif number == path[0]:
            below = _with_weights(content, path[1:])
            inner = _field(number, below) if below else []
        pieces += inner or [whole]
        streamed_fields += bool(inner)
    return pieces if streamed_fields else []


def _field(number: int, pieces: list[_Piece]) -> list[_Piece]:
    return [header(number, sum(len(piece) if isinstance(piece, bytes) else piece.size for piece in pieces)), *pieces]
