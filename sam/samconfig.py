"""The settings of SAM CLI for a deployment: what `sam build` and `sam deploy --config-env dev|prod` read.

The file is the user's once they have altered it: packaging again then leaves it as it is.
"""

from __future__ import annotations

import shlex
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serfer.core.errors import InputError
from serfer.plan_directory import is_plan_directory
from serfer.sam.options import Options
from serfer.sam.template import text

FILE = "samconfig.toml"
_MOST_BYTES = 1024 * 1024
_KEPT_DAYS = {"dev": 3, "prod": 30}
ENVIRONMENTS = tuple(_KEPT_DAYS)
_FLEET = "# Needs CertificateArn in parameter_overrides: the ACM certificate of the load balancer's listener.\n"


def stack_name(name: str, environment: str) -> str:
    return f"{name}-{environment}"


def samconfig(options: Options, *, images: bool = False) -> bytes:
    """Return the file that a deployment begins with: two environments, dev and prod, each a stack of its own.

    With `images`, SAM CLI makes repositories for the functions that are container images.
    """
    written = text("samconfig.toml").format(region=options.region)
    for environment, days in _KEPT_DAYS.items():
        written += text("samconfig-environment.toml").format(
            note=_FLEET if options.drivers == "fleet" else "",
            environment=environment,
            region=options.region,
            stack=stack_name(options.name, environment),
            days=days,
            repositories="resolve_image_repos = true\n" if images else "",
        )
    return written.encode()


@dataclass(frozen=True)
class StackSettings:
    """The settings of SAM CLI for one environment: its stack, that stack's region, and the template's parameters."""

    environment: str
    stack: str
    region: str
    parameters: Mapping[str, str]


def stack_of(directory: Path, environment: str) -> StackSettings:
    if read_samconfig(directory) is None:
        if is_plan_directory(directory):
            raise InputError(f"{directory} is a plan: serfer deploy package {directory} --out BUILD, and give BUILD")
        raise InputError(f"{directory / FILE} is missing: write it again with serfer deploy package")
    by_environment = {stack.environment: stack for stack in stacks(directory, region=None)}
    if environment not in by_environment:
        raise InputError(f"{directory / FILE} has no stack_name and region of {environment!r}: is ENV right?")
    return by_environment[environment]


def stacks(directory: Path, region: str | None) -> list[StackSettings]:
    """Return the settings of every environment with a stack, in the file's order; none where there is no file.

    `region` is that of stacks for which the file has none; without one these are left out. Raises InputError for a
    file that SAM CLI could not read.
    """
    try:
        environments = tomllib.loads((read_samconfig(directory) or b"").decode("utf-8"))
        settings = [
            _settings(name, tables, region)
            for name, tables in environments.items()
            if isinstance(tables, dict) and "stack_name" in tables.get("deploy", {}).get("parameters", {})
        ]
    except (ValueError, AttributeError, TypeError, RecursionError) as error:
        raise InputError(
            f"{directory / FILE} is not a configuration of SAM CLI: correct it, or move it away and package again"
        ) from error
    return [section for section in settings if section.region]


def _settings(environment: str, tables: Mapping[str, Any], region: str | None) -> StackSettings:
    """Read an environment; raises ValueError, AttributeError or TypeError for what SAM CLI does not write."""
    deploy = tables["deploy"]["parameters"]
    shared = tables.get("global", {}).get("parameters", {})
    name, place = deploy["stack_name"], deploy.get("region", shared.get("region", region or ""))
    if not (isinstance(name, str) and name and isinstance(place, str)):
        raise TypeError
    return StackSettings(environment, name, place, _overrides(deploy.get("parameter_overrides", "")))


def _overrides(value: str | Sequence[str]) -> dict[str, str]:
    """Return parameters as SAM CLI reads them: 'Name="value" ...', or a list of such texts."""
    assignments = shlex.split(value if isinstance(value, str) else " ".join(value))
    return {name: value for name, _, value in (word.partition("=") for word in assignments)}


def read_samconfig(directory: Path) -> bytes | None:
    file = directory / FILE
    if not file.is_file():
        return None
    with file.open("rb") as opened:
        data = opened.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise InputError(f"{file} has more than {_MOST_BYTES:,} bytes: it is not a file of SAM CLI's; move it away")
    return data
