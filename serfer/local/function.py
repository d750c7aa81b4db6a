"""A function as Lambda knows it: its settings, its package and how the API describes it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

from serfer.core.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from serfer.core.aws import LambdaFacts

REGION = "us-east-1"
ACCOUNT = "123456789012"


@dataclass(frozen=True)
class FunctionConfig:
    """What CreateFunction takes; memory in MiB, timeout in seconds, `handler` as "module.attribute"."""

    name: str
    directory: Path  # what AWS mounts at /var/task
    handler: str
    memory_mb: int = 1769
    timeout_s: float = 30.0
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def arn(self) -> str:
        """The function's ARN in the one region and account that the local service plays."""
        return f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{self.name}"


def package_size(directory: Path) -> int:
    """Return the bytes of all files below `directory`, linked ones counted in full like in a zip."""
    total = 0
    for folder, subfolders, files in os.walk(directory, followlinks=True):
        here = Path(folder)
        subfolders[:] = [name for name in subfolders if not _loops(here / name)]
        total += sum((here / name).stat().st_size for name in files if (here / name).exists())
    return total


def _loops(subfolder: Path) -> bool:
    """Say whether a subfolder is a link back to where it lies."""
    return subfolder.is_symlink() and subfolder.parent.resolve().is_relative_to(subfolder.resolve())


def check_function(config: FunctionConfig, facts: LambdaFacts) -> int:
    """Return the package's size in bytes; raises InputError for a function that Lambda would not create."""
    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", config.name):
        raise InputError(f"{config.name!r} is no function name: 1 to 64 letters, digits, '-' and '_'")
    if not config.directory.is_dir():
        raise InputError(f"function {config.name}: its directory {config.directory} does not exist")
    if not facts.memory_min <= config.memory_mb <= facts.memory_max:
        raise InputError(
            f"function {config.name}: {config.memory_mb} MB of memory, "
            f"Lambda gives {facts.memory_min} to {facts.memory_max} MB"
        )
    if not 0 < config.timeout_s <= facts.timeout_max:
        raise InputError(
            f"function {config.name}: a timeout of {config.timeout_s} s, Lambda's limit is {facts.timeout_max} s"
        )
    size = package_size(config.directory)
    if size > facts.package_limit:
        raise InputError(
            f"function {config.name}: its package {config.directory} has {size:,} bytes unzipped, "
            f"Lambda's limit is {facts.package_limit:,}"
        )
    return size


def function_name(reference: str) -> str:
    """Return the name in a percent-encoded name, partial ARN or ARN; every qualifier means $LATEST here."""
    parts = unquote(reference).split(":")
    where = parts.index("function") + 1 if "function" in parts[:-1] else 0
    return parts[where]


def describe(config: FunctionConfig, code_size: int) -> dict[str, object]:
    """Return the FunctionConfiguration that GetFunctionConfiguration and ListFunctions answer with."""
    return {
        "FunctionName": config.name,
        "FunctionArn": config.arn,
        "Runtime": "python3.11",
        "Role": f"arn:aws:iam::{ACCOUNT}:role/local",
        "Handler": config.handler,
        "CodeSize": code_size,
        "Timeout": max(1, round(config.timeout_s)),
        "MemorySize": config.memory_mb,
        "Version": "$LATEST",
        "Environment": {"Variables": dict(config.environment)},
        "State": "Active",
        "LastUpdateStatus": "Successful",
        "PackageType": "Zip",
        "Architectures": ["x86_64"],
    }
