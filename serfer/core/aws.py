"""AWS prices and quotas: one data file (`aws.toml`), read into typed values."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, fields
from importlib.resources import files

from serfer.core.errors import InputError


@dataclass(frozen=True)
class LambdaFacts:
    """What Lambda allows and charges; units stand in `aws.toml` beside each value."""

    memory_min: int
    memory_max: int
    memory_per_vcpu: int
    package_limit: int
    sync_payload_limit: int
    async_payload_limit: int
    timeout_max: float
    init_limit: float
    concurrency: int
    price_request: float
    price_gb_second: float
    bandwidth: float
    invoke_latency: float


def parse_aws(text: str, base: LambdaFacts | None = None) -> LambdaFacts:
    """Read facts from TOML text, taking what it leaves out from `base`.

    Raises InputError for text that is not TOML, an unknown name, or a value that is no positive number.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the AWS facts file is not TOML: {error}") from error
    table = document.pop("lambda", {})
    if not isinstance(table, dict):
        raise InputError("the AWS facts file has no table [lambda]")
    names = {field.name for field in fields(LambdaFacts)}
    unknown = sorted((set(table) - names) | set(document))
    if unknown:
        raise InputError(f"the AWS facts file names unknown values: {', '.join(unknown)}; known are {sorted(names)}")
    values = {name: getattr(base, name) for name in names} if base else {}
    for name, entry in table.items():
        value = entry.get("value") if isinstance(entry, dict) else entry
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise InputError(f"the AWS facts file gives lambda.{name} no positive number")
        values[name] = value
    missing = sorted(names - set(values))
    if missing:
        raise InputError(f"the AWS facts file lacks {', '.join(missing)}")
    return LambdaFacts(**values)


def shipped_aws() -> LambdaFacts:
    """Return the facts that ship with SerFer."""
    return parse_aws(files("serfer.core").joinpath("aws.toml").read_text(encoding="utf-8"))
