"""The origin of a result: machine, versions, command and date."""

from __future__ import annotations

import platform
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version

from serfer.system import memory_bytes, processor_name, processors

_PACKAGES = ("serfer", "numpy", "onnxruntime", "aiohttp", "botocore", "msgpack")


@dataclass(frozen=True)
class Machine:
    """A machine: the processor, how many of them are ours, memory in GB, the system."""

    processor: str
    processors: int
    memory_gb: float
    system: str

    def __str__(self) -> str:
        return f"{self.processors} x {self.processor}, {self.memory_gb:g} GB, {self.system}"


@dataclass(frozen=True)
class Version:
    """A package's version."""

    package: str
    version: str


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
        versions = ", ".join(f"{one.package} {one.version}" for one in self.versions)
        return f"{self.command}   ({self.date})", f"{self.machine}; Python {self.python}; {versions}"


def this_machine() -> Machine:
    system = f"{platform.system()} {platform.machine()}"
    return Machine(processor_name(), processors(), round(memory_bytes() / 2**30, 1), system)


def make_stamp(arguments: Sequence[str], now: datetime) -> Stamp:
    command = shlex.join(["serfer", *arguments])
    versions = tuple(Version(name, _version(name)) for name in _PACKAGES)
    return Stamp(this_machine(), platform.python_version(), versions, command, now.strftime("%Y-%m-%dT%H:%M:%SZ"))


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
