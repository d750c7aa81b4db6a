"""A function as Lambda knows it: its settings, its package and how the API describes it."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from serfer.core.costs.aws import LambdaFacts

REGION = "us-east-1"
ACCOUNT = "123456789012"
LATEST = "$LATEST"
_MOST_LAYERS = 5
_PATIENCE_S = 20.0


@dataclass(frozen=True)
class FunctionConfig:
    """The parameters of CreateFunction; memory in MiB, timeout in seconds, `handler` as "module.attribute".

    `layers` are directories whose python/ AWS mounts at /opt/python, the first one in front; `python` is another
    interpreter than the one that runs the service. A `wrapper` is a script that this interpreter runs instead of the
    bootstrap, with the bootstrap's command line as its arguments, as AWS_LAMBDA_EXEC_WRAPPER names one in AWS.
    `image` says that the directory stands for a container image, which is bounded as one. A published `version` whose
    environments are `restored` starts from a snapshot, with SnapStart.
    """

    name: str
    directory: Path  # what AWS mounts at /var/task
    handler: str
    memory_mb: int = field(default_factory=lambda: shipped_aws().functions.memory_per_vcpu)
    timeout_s: float = 30.0
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)  # passwords too
    layers: tuple[Path, ...] = ()
    python: Path | None = None
    wrapper: Path | None = None
    image: bool = False
    version: str = LATEST
    restored: bool = False

    @property
    def reference(self) -> str:
        return self.name if self.version == LATEST else f"{self.name}:{self.version}"

    @property
    def interpreter(self) -> Path:
        return self.python or Path(sys.executable)

    @property
    def arn(self) -> str:
        return f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{self.name}"


def package_size(directory: Path) -> int:
    """Return the bytes of all files below `directory`, linked ones counted in full like in a zip."""
    total = 0
    for folder, subfolders, files in os.walk(directory, followlinks=True):
        subfolders[:] = [name for name in subfolders if not _loops(Path(folder, name))]
        for name in files:
            with contextlib.suppress(OSError):  # a link to nothing
                total += os.stat(f"{folder}/{name}").st_size  # noqa: PTH116 - a Path each takes twice the time
    return total


def _loops(subfolder: Path) -> bool:
    return subfolder.is_symlink() and subfolder.parent.resolve().is_relative_to(subfolder.resolve())


def check_function(config: FunctionConfig, facts: LambdaFacts) -> int:
    """Return the size of package and layers in bytes; raises InputError for a function that Lambda would not create."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", config.name):
        raise InputError(f"{config.name!r} is not a function name: 1 to 64 letters, digits, '-' and '_'")
    if len(config.layers) > _MOST_LAYERS:
        raise InputError(f"function {config.name}: {len(config.layers)} layers, Lambda allows {_MOST_LAYERS}")
    for directory in (config.directory, *config.layers):
        if not directory.is_dir():
            raise InputError(f"function {config.name}: its directory {directory} does not exist")
    if not facts.memory_min <= config.memory_mb <= facts.memory_max:
        raise InputError(
            f"function {config.name}: {config.memory_mb} MB of memory, "
            f"Lambda gives {facts.memory_min} to {facts.memory_max} MB"
        )
    if not 0 < config.timeout_s <= facts.timeout_max:
        raise InputError(
            f"function {config.name}: a timeout of {config.timeout_s} s, Lambda's limit is {facts.timeout_max} s"
        )
    size = sum(map(package_size, (config.directory, *config.layers)))
    limit = facts.image_limit if config.image else facts.package_limit
    if size > limit:
        layers = " with its layers" if config.layers else ""
        kind, unpacked = ("container image", "") if config.image else ("package", " unzipped")
        raise InputError(
            f"function {config.name}: its {kind} {config.directory}{layers} has {size:,} bytes{unpacked}, "
            f"Lambda's limit is {limit:,}"
        )
    python_version(config.interpreter)
    return size


@functools.cache
def python_version(python: Path) -> str:
    """Return an interpreter's version, such as "3.13"; raises InputError for what is not Python."""
    if python == Path(sys.executable):
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        process = subprocess.run(  # noqa: S603 - the interpreter that our caller chose
            [str(python), "-S", "-P", "-c", code],
            capture_output=True,
            text=True,
            timeout=_PATIENCE_S,
            env={},
            check=True,
        )
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise InputError(f"{python} is not a Python interpreter that runs here: {type(error).__name__}") from error
    if not re.fullmatch(r"\d+\.\d+", version := process.stdout.strip()):
        raise InputError(f"{python} is not a Python interpreter: it says {version[:40]!r}")
    return version


def function_name(reference: str) -> str:
    """Return the name in a percent-encoded name, partial ARN or ARN, without its qualifier."""
    parts = unquote(reference).split(":")
    where = parts.index("function") + 1 if "function" in parts[:-1] else 0
    return parts[where]


def describe(config: FunctionConfig, code_size: int) -> dict[str, object]:
    """Return the FunctionConfiguration that GetFunctionConfiguration and ListFunctions answer with.

    `code_size` counts the layers too, which AWS lists apart. The variables, which hold passwords, are left out.
    """
    return {
        "FunctionName": config.name,
        "FunctionArn": config.arn,
        "Runtime": f"python{python_version(config.interpreter)}",
        "Role": f"arn:aws:iam::{ACCOUNT}:role/local",
        "Handler": config.handler,
        "CodeSize": code_size,
        "Timeout": max(1, round(config.timeout_s)),
        "MemorySize": config.memory_mb,
        "Version": config.version,
        "State": "Active",
        "LastUpdateStatus": "Successful",
        "PackageType": "Image" if config.image else "Zip",
        "Architectures": ["x86_64"],
    }
