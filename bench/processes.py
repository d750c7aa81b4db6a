"""What this process and those below it hold, read from the kernel: memory and file descriptors."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

_PAGE = os.sysconf("SC_PAGESIZE")


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
    """Return what is held now."""
    below = [size for process in descendants() if (size := _resident(f"/proc/{process}"))]
    descriptors = len(os.listdir("/proc/self/fd")) - 1  # noqa: PTH208 - a Path would open nothing else; one is this listing's
    return Held(_resident("/proc/self"), sum(below), len(below), descriptors)


def descendants() -> list[int]:
    """Return the ids of all processes below this one."""
    found: list[int] = []
    pending = [Path("/proc/self")]
    while pending:
        try:
            threads = [*(pending.pop() / "task").iterdir()]
            children = [child for thread in threads for child in (thread / "children").read_text("ascii").split()]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        found.extend(map(int, children))
        pending.extend(Path("/proc", child) for child in children)
    return found


def _resident(process: str) -> int:
    """Return a process's resident bytes; 0 for one that has just ended."""
    try:
        return int(Path(process, "statm").read_text("ascii").split()[1]) * _PAGE
    except (FileNotFoundError, ProcessLookupError):
        return 0
