"""Virtual environments of programs that we are compared with, each made once, of pinned versions."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.resources import files
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path

from serfer.build_cache import assembled, in_use
from serfer.core.errors import UnavailableError

_INSTALL_S = 900.0
_LONGEST_REASON = 300  # characters


def environment(name: str, requirements: str, cache: Path, progress: Callable[[str], None]) -> Path:
    """Return the interpreter of an environment with all packages of `requirements`, which names each with its version.

    It is kept in `cache`. pip, or uv where there is none, takes packages from the index that the user has set, and none
    that is not named.

    Raises:
        UnavailableError: it could not be installed, with its reason; nothing half-made stays.
    """
    digest = hashlib.sha256(f"{sys.version}\0{requirements}".encode()).hexdigest()[:16]
    target = cache / "environments" / f"{name}-{digest}"
    if not in_use(target):
        progress(f"installing {name}, once: it stays in {target.parent}")
        with assembled(target) as fresh:
            (fresh / "requirements.txt").write_text(requirements, encoding="utf-8")
            _run(name, [sys.executable, "-m", "venv", "--without-pip", str(fresh)])
            install = _installer(str(fresh / "bin" / "python"))
            _run(name, [*install, "--quiet", "--no-deps", "-r", str(fresh / "requirements.txt")])
    return target / "bin" / "python"


def copy_package(name: str, target: Path) -> None:
    """Copy a package's modules below `target`, and of the packages around it no more than makes it importable."""
    for package in accumulate(name.split("."), "{}.{}".format):
        folder = target / package.replace(".", "/")
        folder.mkdir(parents=True, exist_ok=True)
        for file in files(package).iterdir():
            if file.name == "__init__.py" or (package == name and file.name.endswith(".py")):
                (folder / file.name).write_bytes(file.read_bytes())


def _installer(python: str) -> list[str]:
    if find_spec("pip"):
        return [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--no-input"]
    return ["uv", "pip", "install", "--python", python]


def _run(name: str, words: Sequence[str]) -> None:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=_INSTALL_S, check=False)  # noqa: S603
    except FileNotFoundError as error:
        raise UnavailableError(f"{name} cannot be installed: there is neither pip in {sys.prefix} nor uv") from error
    except subprocess.TimeoutExpired as error:
        raise UnavailableError(f"{name} is not installed: that took more than {_INSTALL_S:g} s") from error
    if done.returncode:
        said = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()] or ["no reason given"]
        reason = next((line for line in reversed(said) if line.lower().startswith("error")), said[-1])
        raise UnavailableError(f"{name} cannot be installed: {reason.strip()[:_LONGEST_REASON]}")
