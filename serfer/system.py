"""What the operating system says of this machine and this process: Linux by /proc and its own calls, others by POSIX.

What the parts that also run on macOS need of Linux is here: the client, `serve` with workers in this process,
`split`, `map` (docs/reference/stability.md#platforms). Local workers, `serve --drivers` and fleets need Linux.
"""

from __future__ import annotations

import ctypes
import os
import platform
import resource
import sys
from collections.abc import Callable
from pathlib import Path

_KB = 1024


def processors() -> int:
    """Return how many processors this process may use."""
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor_name() -> str:
    """Return the processor's name, as the kernel has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine() or "unknown processor")


def memory_bytes() -> int:
    """Return the machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def peak_bytes() -> int:
    """Return the most resident memory that this process has had, of its own program."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) * _KB
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else most * _KB


def address_space_bytes() -> int | None:
    """Return the size of this process's address space, None where it cannot be limited (macOS refuses RLIMIT_AS)."""
    if sys.platform != "linux":
        return None
    return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()


def descriptor_path(descriptor: int) -> str:
    """Return a path by which a library can open what this process has open."""
    return f"/proc/self/fd/{descriptor}" if sys.platform == "linux" else f"/dev/fd/{descriptor}"


def give_back() -> None:
    """Return what is free of the heap to the system, where the C library is GNU's: it keeps most of it otherwise."""
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
