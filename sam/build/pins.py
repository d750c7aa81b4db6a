"""The lock files: exact versions, and the digest of every wheel that a layer may be made of."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

LAYERS = ("worker", "driver", "runner")
GPU = "gpu"
"""The lock file of what instances with a GPU compute with, which is there for one architecture alone."""
_LOCKS = Path(__file__).with_name("locks")
_PIN = re.compile(r"(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


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


def dump(pinned: tuple[Pin, ...]) -> str:
    lines = [
        "# Made by `python -m serfer.sam.build.relock` from requirements.txt: wheels of each runtime and architecture."
    ]
    for pin in pinned:
        parts = [f"{pin.name}=={pin.version}", *(f"--hash=sha256:{digest}" for digest in sorted(pin.hashes))]
        lines.append(" \\\n    ".join(parts))
    return "\n".join(lines) + "\n"
