"""Memory, processor time and file descriptors of this process and of those below it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from psutil import NoSuchProcess, Process


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
