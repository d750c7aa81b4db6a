"""One `serfer map`, or another program, as a process: its report, its time, and the peaks of memory of all its own."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from psutil import NoSuchProcess, Process, wait_procs

from serfer.core.errors import UnavailableError
from serfer_bench.core.processes import descendants, used_s

_SAMPLED_S = 0.1
_END_S = 30.0


@dataclass(frozen=True)
class MapRun:
    """A program that ended: its JSON report, the seconds of the whole process, and resident bytes at their peaks.

    `processor_s` is the processor time of it and of all below it, but for up to 0.1 s of each that ended.
    `largest_worker_bytes` is the peak of that process below the driver that had most: workers and, if there is one, the
    store; `all_bytes` are the peaks of all processes added up. Pages that several share count in each.
    """

    report: dict[str, Any]
    seconds: float
    processor_s: float
    driver_bytes: int
    largest_worker_bytes: int
    all_bytes: int


@dataclass
class _Peaks:
    """The kernel's peak of each process, and its processor seconds, as last seen.

    A peak starts again with each program that a process becomes.
    """

    root: int
    peaks: dict[int, int] = field(default_factory=dict)
    used_s: dict[int, float] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)

    def sample(self) -> None:
        for pid in (self.root, *(process.pid for process in descendants(self.root))):
            if peak := peak_bytes(pid):
                self.peaks[pid] = peak
            with suppress(NoSuchProcess):
                self.used_s[pid] = used_s([Process(pid)]) or self.used_s.get(pid, 0.0)

    def watch(self) -> None:
        while not self.ended.wait(_SAMPLED_S):
            self.sample()


def peak_bytes(pid: int) -> int:
    """Return the most bytes that a process has had resident; 0 for one that has ended."""
    with suppress(OSError, IndexError, ValueError):
        return int(Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1].split()[0]) * 1024
    return 0


def command(image: Path, plan: Path, out: Path, more: Sequence[str] = ()) -> list[str]:
    """Return the words of a map by local workers."""
    words = ["map", str(image), "--plan", str(plan), "--out", str(out), "--workers", "local"]
    return [sys.executable, "-m", "serfer", *words, "--json", *more]


def run(words: Sequence[str], *, timeout_s: float | None = None) -> MapRun:
    """Run a map, or another program that prints JSON, to its end."""
    started = time.monotonic()
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own
        peaks = _Peaks(process.pid)
        watch = threading.Thread(target=peaks.watch)
        watch.start()
        try:
            output, _ = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        finally:
            peaks.ended.set()
            watch.join()
            process.kill()
    seconds = time.monotonic() - started
    if process.returncode:
        raise UnavailableError(f"{words[2]} ended with exit code {process.returncode}, and says why above")
    below = [peak for pid, peak in peaks.peaks.items() if pid != process.pid]
    driver, used = peaks.peaks[process.pid], sum(peaks.used_s.values())
    return MapRun(json.loads(output), seconds, used, driver, max(below, default=0), driver + sum(below))


def kept_parts(parts: Path) -> int:
    """Return how many windows a map and its passes have kept in the directory of parts, and in those beside it.

    Maps that passes keep for later ones are of the same windows, and are not counted.
    """
    found = parts.parent.glob(f"{parts.name}*/c.*")
    return sum(1 for part in found if not part.parent.name.startswith(f"{parts.name}.kept-"))


def kill(words: Sequence[str], parts: Path, kept: int, later_s: float) -> None:
    """Start a map and kill it some seconds after it has kept so many windows (kept_parts); wait for all below it."""
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:  # noqa: S603 - our own
        try:
            while kept_parts(parts) < kept and process.poll() is None:
                time.sleep(_SAMPLED_S)
            below = descendants(process.pid)
            with suppress(subprocess.TimeoutExpired):
                process.wait(later_s)
                raise UnavailableError("the map ended before it was killed: give a larger image")
        finally:
            process.kill()
    wait_procs(below, timeout=_END_S)
