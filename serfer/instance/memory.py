"""Memory of networks: what the machine or the container has, what this process holds, and what of it is given back.

On processors a network's bytes are the growth of this process's resident memory, on a GPU what its free memory shrinks
by. Both are read where nothing else grows: before an instance serves.
"""

from __future__ import annotations

import ctypes
import gc
import math
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from serfer.system import give_back

_SHARE = 0.6  # of the machine: the rest is for the process, its decoders, bodies and images that wait
_GPU_SHARE = 0.9  # of what is free: CUDA's libraries take workspace
_CGROUPS = Path("/sys/fs/cgroup")
_PROC = Path("/proc")
_CUDART = ("libcudart.so.13", "libcudart.so.12")  # found once ONNX Runtime has loaded its own


def default_bound(device: str) -> int | None:
    """Return how many bytes networks may take: 60% of the machine's or the container's memory, 90% of a GPU's free one.

    None for a GPU whose memory cannot be read.
    """
    if device == "cuda":
        known = _gpu()
        return None if known is None else int(known[0] * _GPU_SHARE)
    return int(machine_bytes() * _SHARE)


def machine_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> int:
    """Return the bytes of memory that this process may use: the machine's, or the least limit of its control groups."""
    total = next(line for line in _text(proc / "meminfo").splitlines() if line.startswith("MemTotal:"))
    return min([int(total.split()[1]) * 1024, *_limits(proc, cgroups)])


def available_bytes(proc: Path = _PROC, cgroups: Path = _CGROUPS) -> float:
    """Return the bytes that can be taken without swapping, or the least limit of the control groups if that is less.

    Infinity where the system does not say.
    """
    free = [line for line in _text(proc / "meminfo").splitlines() if line.startswith("MemAvailable:")]
    return min([*(int(line.split()[1]) * 1024 for line in free), *_limits(proc, cgroups)], default=math.inf)


def used_bytes(device: str) -> int | None:
    """Return the bytes in use: resident ones of this process, or all of a GPU; None where they cannot be read."""
    if device == "cuda":
        known = _gpu()
        return None if known is None else known[1] - known[0]
    gc.collect()
    give_back()
    return int(_text(_PROC / "self/statm").split()[1]) * resource.getpagesize()


def begin_peak() -> bool:
    """Measure the peak of resident memory from now on, and return whether that is possible here."""
    try:
        (_PROC / "self/clear_refs").write_text("5", encoding="ascii")  # proc(5): VmHWM becomes VmRSS
    except OSError:
        return False
    return True


def peak_bytes() -> int:
    """Return the most bytes that were resident since `begin_peak`."""
    line = next(line for line in _text(_PROC / "self/status").splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


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
        return path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""


def _gpu() -> tuple[int, int] | None:
    """Return the free bytes and all bytes of the current GPU by CUDA's runtime, None where it is not loaded."""
    for name in _CUDART:
        try:
            ask = ctypes.CDLL(name).cudaMemGetInfo
        except (OSError, AttributeError):
            continue
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        if ask(ctypes.byref(free), ctypes.byref(total)) == 0:
            return free.value, total.value
    return None
