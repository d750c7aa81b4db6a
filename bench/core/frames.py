"""Plain values over a pipe between two processes of ours: each msgpack, behind its length."""

from __future__ import annotations

from typing import IO, Any

import msgpack

_LENGTH = 4  # bytes of a frame's length


def pipe_of(pipe: IO[bytes] | None) -> IO[bytes]:
    assert pipe is not None  # noqa: S101 - Popen was made with it
    return pipe


def write_frame(stream: IO[bytes], value: Any) -> None:  # noqa: ANN401 - any plain value
    data = msgpack.packb(value)
    stream.write(len(data).to_bytes(_LENGTH, "little") + data)
    stream.flush()


def read_frame(stream: IO[bytes]) -> Any:  # noqa: ANN401 - any plain value
    length = int.from_bytes(stream.read(_LENGTH), "little")
    data = stream.read(length)
    return msgpack.unpackb(data) if length and len(data) == length else None
