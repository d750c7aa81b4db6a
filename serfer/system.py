"""What the operating system says of this machine and this process: Linux by /proc and its own calls, others by POSIX.

What the parts that also run on macOS need of Linux is here: the client, `serve` with workers in this process,
`split`, `map` (docs/reference/stability.md#platforms). Local workers, `serve --drivers` and fleets need Linux, and
tests/test_other_systems.py lists the modules that have to.
"""

from __future__ import annotations

import ctypes
import math
import os
import platform
import resource
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

_KB = 1024
_ENOUGH_FILES = 1 << 16
_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")


def processors() -> int:
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def processor_description() -> str:
    return _text(_PROC / "cpuinfo")


def processor_name() -> str:
    lines = processor_description().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine() or "unknown processor")


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def machine_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return the bytes of memory that this process may use: the machine's, or the least limit of its control groups."""
    return min([*_meminfo("MemTotal", proc), *_limits(proc, cgroups)], default=memory_bytes())


def available_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> float:
    """Return the bytes that can be taken without swapping, or the least limit of the control groups if that is less.

    Infinity where the system does not say.
    """
    return min([*_meminfo("MemAvailable", proc), *_limits(proc, cgroups)], default=math.inf)


def resident_bytes() -> int | None:
    pages = _text(_PROC / "self/statm").split()
    return int(pages[1]) * resource.getpagesize() if pages else None


def begin_peak() -> bool:
    """Measure the peak of resident memory from now on, and return whether that is possible here."""
    try:
        (_PROC / "self/clear_refs").write_text("5", encoding="ascii")  # proc(5): VmHWM becomes VmRSS
    except OSError:
        return False
    return True


def peak_bytes() -> int:
    """Return the most resident memory of this process, of its own program: ever, or since `begin_peak` was possible."""
    peak = _text(_PROC / "self/status").partition("VmHWM:")[2].split()
    if peak:
        return int(peak[0]) * _KB
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most * _KB


def raise_file_limit() -> int:
    """Let this process, and those that it starts, open as many files as it may, and return how many those are."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = max(soft, _ENOUGH_FILES) if hard == resource.RLIM_INFINITY else hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return most


def give_back() -> None:
    """Return what is free of the heap to the system, where the C library is GNU's: it keeps most of it otherwise."""
    trim: Callable[[int], int] | None = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def loaded_libraries(part: str) -> set[str]:
    """Return the paths of shared libraries that are loaded by now and have `part` in them; none if that is unknown."""
    return {line.split(maxsplit=5)[5] for line in _text(_PROC / "self/maps").splitlines() if part in line}


def address_space_bytes() -> int | None:
    """Return the size of this process's address space, None where it cannot be limited (macOS refuses RLIMIT_AS)."""
    pages = _text(_PROC / "self/statm").split()
    return int(pages[0]) * resource.getpagesize() if pages else None


def descriptor_path(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}" if sys.platform == "linux" else f"/dev/fd/{descriptor}"


def _meminfo(name: str, proc: Path) -> Iterator[int]:
    for line in _text(proc / "meminfo").splitlines():
        if line.startswith(f"{name}:"):
            yield int(line.split()[1]) * _KB


def _limits(proc: Path, cgroups: Path) -> Iterator[int]:
    """Yield the limits of this process's control groups and those above, of versions 2 and 1."""
    for line in _text(proc / "self/cgroup").splitlines():
        _, controllers, place = line.split(":", 2)
        kind, file = ("", "memory.max") if not controllers else ("memory", "memory.limit_in_bytes")
        if controllers and "memory" not in controllers.split(","):
            continue
        path = PurePosixPath(place.lstrip("/"))
        for group in dict.fromkeys((path, *path.parents)):  # in a container the first ones may not be there
            limit = _text(cgroups / kind / group / file).strip()
            if limit.isdigit():
                yield int(limit)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
