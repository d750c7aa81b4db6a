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


def descendants(of: str | int = "self") -> list[int]:
    """Return the ids of all processes below this one, or below another."""
    found: list[int] = []
    pending = [Path(f"/proc/{of}")]
    while pending:
        try:
            threads = [*(pending.pop() / "task").iterdir()]
            children = [child for thread in threads for child in (thread / "children").read_text("ascii").split()]
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        found.extend(map(int, children))
        pending.extend(Path("/proc", child) for child in children)
    return found


def processor_s(*roots: int) -> float:
    """Return the processor seconds that processes and those below them have used so far; of living ones alone."""
    ids = [each for root in roots for each in (root, *descendants(root))]
    return sum(_processor_ticks(each) for each in ids) / os.sysconf("SC_CLK_TCK")


def _processor_ticks(process: int) -> int:
    try:
        fields = Path(f"/proc/{process}/stat").read_text("ascii", errors="replace").rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(fields[11]) + int(fields[12])


def resident(process: int) -> int:
    """Return a process's resident bytes; 0 for one that has ended."""
    return _resident(f"/proc/{process}")


def _resident(process: str) -> int:
    """Return a process's resident bytes; 0 for one that has just ended."""
    try:
        return int(Path(process, "statm").read_text("ascii").split()[1]) * _PAGE
    except (FileNotFoundError, ProcessLookupError):
        return 0
