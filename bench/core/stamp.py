"""The origin of a result: machine, versions, command and date."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_PACKAGES = ("serfer", "numpy", "onnxruntime", "aiohttp", "botocore", "msgpack", "redis")
_GB = 2**30


@dataclass(frozen=True)
class Version:
    """A package's version."""

    package: str
    version: str


@dataclass(frozen=True)
class Machine:
    """The machine of a measurement: the processor, how many of them are ours, memory in GB, the system."""

    processor: str
    processors: int
    memory_gb: float
    system: str

    def __str__(self) -> str:
        return f"{self.processors} x {self.processor}, {self.memory_gb:g} GB, {self.system}"


@dataclass(frozen=True)
class Stamp:
    """The origin of a result; `date` is ISO 8601 in UTC, `command` can be pasted into a shell."""

    machine: Machine
    python: str
    versions: tuple[Version, ...]
    command: str
    date: str

    @property
    def lines(self) -> tuple[str, str]:
        """The lines below a picture."""
        versions = ", ".join(f"{one.package} {one.version}" for one in self.versions)
        return f"{self.command}   ({self.date})", f"{self.machine}; Python {self.python}; {versions}"


def make_stamp(arguments: Sequence[str], now: datetime) -> Stamp:
    """Stamp what the command line with these arguments measures now."""
    command = shlex.join(["serfer", *arguments])
    versions = tuple(Version(name, _version(name)) for name in _PACKAGES)
    return Stamp(this_machine(), platform.python_version(), versions, command, now.strftime("%Y-%m-%dT%H:%M:%SZ"))


def this_machine() -> Machine:
    """Describe this machine; it is not named."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _GB
    ours = len(os.sched_getaffinity(0))
    return Machine(processor_name(), ours, round(memory, 1), f"{platform.system()} {platform.machine()}")


def processor_name() -> str:
    """Return the processor's name, as the kernel has it."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown processor"
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
