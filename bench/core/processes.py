"""Memory, processor time and file descriptors of this process and of those below it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import msgpack
from psutil import NoSuchProcess, Process

from serfer.core.errors import UnavailableError

_END_S = 60.0


@contextmanager
def serving(command: str, directory: Path, options: Sequence[str]) -> Iterator[dict[str, Any]]:
    words = [sys.executable, "-m", "serfer", command, "--plan", str(directory), "--port", "0", "--json"]
    quiet = ["--set", "log_level=error", "--set", "drain_s=0"]
    with subprocess.Popen([*words, *quiet, *options], stdout=subprocess.PIPE) as process:  # noqa: S603 - our own
        try:
            assert process.stdout is not None  # noqa: S101 - it is a pipe
            line = process.stdout.readline()
            if not line:
                raise UnavailableError(f"serfer {command} ended with exit code {process.wait()}, and says why above")
            yield json.loads(line)
        finally:
            end(process, _END_S)


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


@dataclass(frozen=True)
class Held:
    """Resident bytes of this process (client and driver) and of those below it (workers, Redis); descriptors here.

    Pages that several workers share count in each of them.
    """

    driver_bytes: int
    workers_bytes: int
    workers: int
    descriptors: int


def held() -> Held:
    below = [size for process in descendants() if (size := resident(process))]
    descriptors = Process().num_fds() - 1  # one is that of the listing itself
    return Held(resident(Process()), sum(below), len(below), descriptors)


def descendants(of: int | None = None) -> list[Process]:
    try:
        return Process(of).children(recursive=True)
    except NoSuchProcess:
        return []


def processor_s(*roots: int) -> float:
    """Return the processor seconds that living processes and those below them have used, in steps of 10 ms."""
    every: list[Process] = []
    for root in roots:
        with suppress(NoSuchProcess):
            every += [Process(root), *descendants(root)]
    return used_s(every)


def used_s(processes: Iterable[Process]) -> float:
    """Return the processor seconds that processes have used, those of ended ones not included."""
    return sum(_used_s(process) for process in processes)


def end(process: subprocess.Popen[bytes], patience_s: float) -> None:
    process.terminate()
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _used_s(process: Process) -> float:
    try:
        times = process.cpu_times()
    except NoSuchProcess:
        return 0.0
    return times.user + times.system


def resident(process: Process) -> int:
    try:
        return process.memory_info().rss
    except NoSuchProcess:
        return 0
