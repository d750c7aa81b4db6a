"""Pythons of this machine, to compile packages for a runtime with."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def interpreter(runtime: str) -> Path | None:
    """Return a Python of the runtime's version that works here, None where there is none."""
    own = Path(sys.prefix) / runtime / "bin" / runtime  # what make setup brings
    for place in (str(Path(sys.executable).with_name(runtime)), str(own), shutil.which(runtime)):
        if place and (version_of(Path(place)) or "").startswith(f"{runtime.removeprefix('python')}."):
            return Path(place)
    return None


def version_of(python: Path) -> str | None:
    """Return the version of the Python at a path as in "3.13.5", None where it does not run."""
    command = [str(python), "-I", "-S", "-c", "import compileall, sys; print('%d.%d.%d' % sys.version_info[:3])"]
    try:
        done = subprocess.run(command, capture_output=True, check=False, timeout=60, text=True)  # noqa: S603
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None
