"""Memory of networks: what they may take of a machine, a container or a GPU, and what is in use.

On processors a network's bytes are the growth of this process's resident memory, on a GPU what its free memory shrinks
by. Both are read where nothing else grows: before an instance serves.
"""

from __future__ import annotations

import ctypes
import gc

from serfer.system import give_back, machine_bytes, resident_bytes

_SHARE = 0.6  # of the machine: the rest is for the process, its decoders, bodies and images that wait
_GPU_SHARE = 0.9  # of what is free: CUDA's libraries take workspace
_CUDART = ("libcudart.so.13", "libcudart.so.12")  # found once ONNX Runtime has loaded its own


def default_bound(device: str) -> int | None:
    """Return how many bytes networks may take: 60% of the machine's or the container's memory, 90% of a GPU's free one.

    None for a GPU whose memory cannot be read.
    """
    if device == "cuda":
        known = _gpu()
        return None if known is None else int(known[0] * _GPU_SHARE)
    return int(machine_bytes() * _SHARE)


def used_bytes(device: str) -> int | None:
    """Return the bytes in use: resident ones of this process, or all of a GPU; None where they cannot be read."""
    if device == "cuda":
        known = _gpu()
        return None if known is None else known[1] - known[0]
    gc.collect()
    give_back()
    return resident_bytes()


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
