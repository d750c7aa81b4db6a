"""The settings of SAM CLI for a deployment: what `sam build` and `sam deploy --config-env dev|prod` are told.

The file is the user's once they have altered it: packaging again then leaves it as it is.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

from sam.options import Options
from serfer.core.errors import InputError

FILE = "samconfig.toml"
_MOST_BYTES = 1024 * 1024
_KEPT_DAYS = {"dev": 3, "prod": 30}
ENVIRONMENTS = tuple(_KEPT_DAYS)
_HEAD = """\
# What SAM CLI is told: `sam build`, then `sam deploy --config-env dev` or prod. Alter it as you like: `serfer package`
# leaves an altered file as it is. template.yaml says what the parameters mean; those that are not named in
# parameter_overrides keep the value that the stack has.
version = 0.1

[default.global.parameters]
region = "{region}"

[default.build.parameters]
parallel = true
"""
_FLEET = "# Needs CertificateArn in parameter_overrides: the ACM certificate of the load balancer's listener.\n"
_ENVIRONMENT = """
{note}[{environment}.global.parameters]
region = "{region}"

[{environment}.build.parameters]
parallel = true

[{environment}.deploy.parameters]
stack_name = "{stack}"
s3_prefix = "{stack}"
resolve_s3 = true
capabilities = "CAPABILITY_IAM"
confirm_changeset = false
fail_on_empty_changeset = false
tags = 'serfer:stack="{stack}"'
parameter_overrides = 'Serving="current" LogRetentionDays="{days}"'
"""


def stack_name(name: str, environment: str) -> str:
    """Return what the stack of an environment is called."""
    return f"{name}-{environment}"


def samconfig(options: Options) -> bytes:
    """Return the file that a deployment begins with: two environments, dev and prod, each a stack of its own."""
    text = _HEAD.format(region=options.region)
    for environment, days in _KEPT_DAYS.items():
        text += _ENVIRONMENT.format(
            note=_FLEET if options.drivers == "fleet" else "",
            environment=environment,
            region=options.region,
            stack=stack_name(options.name, environment),
            days=days,
        )
    return text.encode()


def stack_of(directory: Path, environment: str) -> tuple[str, str]:
    """Return name and region of an environment's stack; raises InputError where the file does not say."""
    data = read_samconfig(directory)
    if data is None:
        raise InputError(f"{directory / FILE} is missing: write it anew with serfer package")
    try:
        said = tomllib.loads(data.decode("utf-8"))[environment]
        found = said["deploy"]["parameters"]["stack_name"], said["global"]["parameters"]["region"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{directory / FILE} says no stack_name and region of {environment!r}: is ENV right?"
        ) from error
    if not all(isinstance(word, str) and word for word in found):
        raise InputError(f"{directory / FILE}: stack_name and region of {environment!r} should be texts")
    return found


def read_samconfig(directory: Path) -> bytes | None:
    """Return the file that a BUILD directory has; raises InputError for one that is too large to be one."""
    file = directory / FILE
    if not file.is_file():
        return None
    with file.open("rb") as opened:
        data = opened.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise InputError(f"{file} has more than {_MOST_BYTES:,} bytes: it is no file of SAM CLI's; move it away")
    return data
