"""Wheels for a runtime of Lambda's, pinned by lock files, got by pip on whatever machine this is, kept in the cache.

Lambda's python3.12 and later run on Amazon Linux 2023 with glibc 2.34 and libstdc++ of GCC 11: pip is asked for wheels
of that glibc or an older one, and what symbols they want is checked when they are pinned (tests/sam/relock.py).
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from packaging.utils import canonicalize_name
from packaging.version import Version

from serfer.build_cache import assembled, in_use
from serfer.core.errors import InputError, UnavailableError, UsageError

LAYERS = ("worker", "driver", "runner")
GPU = "gpu"
"""The lock file of what instances with a GPU compute with, which is there for one architecture alone."""
_LOCKS = Path(__file__).with_name("locks")
_PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
MACHINES = {"x86_64": "x86_64", "arm64": "aarch64"}
"""AWS's names of architectures, and those in the tags of wheels."""
_NEWEST_GLIBC, _OLDEST_GLIBC = 34, 17  # of 2.x: manylinux2014 is the oldest that anything pinned here is built for
_CREDENTIALS = re.compile(r"//[^/@\s]+@")
_ARM64_FROM = Version("1.27.0")
_TIMEOUT_S = 1800
_SHOWN = 300  # characters of pip's output


@dataclass(frozen=True)
class Pin:
    """A distribution at one version, with the SHA-256 digests of its wheels for all runtimes and architectures."""

    name: str
    version: str
    hashes: frozenset[str]


def lock_file(layer: str) -> Path:
    """Return where the lock file of a layer is, one of LAYERS or GPU; pip reads it as it is."""
    return _LOCKS / f"{layer}.txt"


def pins(lock: Path) -> tuple[Pin, ...]:
    lines = lock.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    matches = [(line, _PIN.match(line)) for line in lines]
    return tuple(
        Pin(match["name"], match["version"], frozenset(_HASH.findall(line))) for line, match in matches if match
    )


@dataclass(frozen=True)
class Wheel:
    """A wheel in the cache; `sha256` are hex digits of the whole file."""

    path: Path
    name: str
    version: str
    sha256: str


def wheels(lock: Path, runtime: str, architecture: str, cache: Path) -> tuple[Wheel, ...]:
    """Return the wheels that a lock file pins, in its order, downloaded below `cache` when first needed."""
    pinned = pins(lock)
    old = [pin.version for pin in pinned if pin.name == "onnxruntime" and Version(pin.version) < _ARM64_FROM]
    if architecture == "arm64" and old:
        raise UsageError(f"--architecture arm64: {lock.name} pins ONNX Runtime {old[0]}, before {_ARM64_FROM} it leaks")
    stamp = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    target = cache / "wheels" / f"{lock.stem}-{runtime}-{architecture}-{stamp}"
    if in_use(target):
        if (cached := _read(target, pinned)) is not None:
            return cached
        shutil.rmtree(target, ignore_errors=True)  # it was altered
    with assembled(target) as directory:
        download(lock, runtime, architecture, directory, "--require-hashes")
        cached = _read(directory, pinned)
        if cached is None:
            raise InputError(f"pip brought other files than {lock.name} pins: install serfer again")
    return tuple(Wheel(target / wheel.path.name, wheel.name, wheel.version, wheel.sha256) for wheel in cached)


def unpack(wheel: Wheel, root: Path, keeps: Callable[[str], bool]) -> None:
    """Write the files of a wheel that are kept below `root`, as pip would; its scripts and headers are not."""
    with zipfile.ZipFile(wheel.path) as archive:
        for info in archive.infolist():
            name = _installed(info.filename)
            if name is None or info.is_dir() or not keeps(name):
                continue
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(archive.read(info))


def _installed(name: str) -> str | None:
    top, _, rest = name.partition("/")
    if not top.endswith(".data"):
        return name
    kind, _, below = rest.partition("/")
    return below if kind in {"purelib", "platlib"} else None


def download(requirements: Path, runtime: str, architecture: str, directory: Path, *options: str) -> None:
    """Download, with pip, the wheels of a requirements file for a runtime; raises what `wheels` does."""
    if find_spec("pip") is None:
        raise UnavailableError("pip, which brings the wheels, is not installed here: run python -m ensurepip first")
    machine = MACHINES[architecture]
    tags = [f"manylinux_2_{minor}_{machine}" for minor in range(_NEWEST_GLIBC, _OLDEST_GLIBC - 1, -1)]
    command = [
        *(sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"),
        *("--retries", "2", "--no-deps", "--only-binary=:all:", "--dest", str(directory), *options),
        *("--implementation", "cp", "--python-version", runtime.removeprefix("python")),
        *(word for tag in (*tags, f"manylinux2014_{machine}") for word in ("--platform", tag)),
        *("--requirement", str(requirements)),
    ]
    try:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as ours:  # pip that is killed leaves folders in it
            own = {**os.environ, "TMPDIR": ours}
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, env=own)  # noqa: PLW1510, S603
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"pip brought no wheels within {_TIMEOUT_S} s: try again") from error
    if done.returncode:
        errors = " ".join(line for line in done.stderr.splitlines() if line.startswith("ERROR"))
        shown = _CREDENTIALS.sub("//", errors or done.stderr)[-_SHOWN:]  # an address may hold an index's password
        raise UnavailableError(
            f"pip could not bring the wheels for --runtime {runtime} --architecture {architecture}: connect once to a "
            f"package index that has them (PIP_INDEX_URL), then they are in the cache: {' '.join(shown.split())}"
        )


def _read(directory: Path, pinned: tuple[Pin, ...]) -> tuple[Wheel, ...] | None:
    files = {canonicalize_name(path.name.split("-")[0]): path for path in directory.glob("*.whl")}
    read = []
    for pin in pinned:
        path = files.get(canonicalize_name(pin.name))
        if path is None:
            return None
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        if digest not in pin.hashes:
            return None
        read.append(Wheel(path, pin.name, pin.version, digest))
    return tuple(read)
