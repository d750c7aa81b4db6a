"""AWS prices and quotas: one data file (`aws.toml`), read into typed values."""

from __future__ import annotations

import math
import tomllib
from dataclasses import dataclass, fields
from importlib.resources import files
from typing import Any

from serfer.core.errors import InputError, UsageError

STORES = ("redis", "s3", "valkey", "redis+s3", "valkey+s3")
"""What lies between stages: one store, or one and an object store, between which each stage's output chooses."""


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
    invoke_floor: float
    invoke_tail: float
    init: float
    load_rate: float


@dataclass(frozen=True)
class StoreFacts:
    """How fast a store answers a worker, and what it charges; units stand in `aws.toml` beside each value."""

    request_latency: float
    range_latency: float
    price_put: float
    price_get: float
    price_byte: float
    price_hour: float


@dataclass(frozen=True)
class AwsFacts:
    """What a plan may run on."""

    functions: LambdaFacts
    redis: StoreFacts
    s3: StoreFacts
    valkey: StoreFacts

    def stores(self, kind: str) -> tuple[StoreFacts, StoreFacts | None]:
        """Return the facts of a plan's store, and of its object store or None; raises UsageError for unknown kinds."""
        if kind not in STORES:
            known = f"{', '.join(STORES[:-1])} and {STORES[-1]}"
            raise UsageError(f"plans are priced for the stores {known}, not {kind!r}: choose another --store")
        main, _, objects = kind.partition("+")
        facts = {"redis": self.redis, "s3": self.s3, "valkey": self.valkey}
        return facts[main], facts.get(objects)


_TABLES: dict[str, tuple[str, type]] = {
    "lambda": ("functions", LambdaFacts),
    "redis": ("redis", StoreFacts),
    "s3": ("s3", StoreFacts),
    "valkey": ("valkey", StoreFacts),
}


def parse_aws(text: str, base: AwsFacts | None = None) -> AwsFacts:
    """Read facts from TOML text, taking what it leaves out from `base`.

    Raises InputError for text that is not TOML, an unknown name, or a value that is no positive number (a price may be
    0).
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the AWS facts file is not TOML: {error}") from error
    if unknown := sorted(set(document) - set(_TABLES)):
        raise InputError(f"the AWS facts file names unknown values: {', '.join(unknown)}; known are {sorted(_TABLES)}")
    return AwsFacts(
        **{
            field: _parse_table(table, document.get(table, {}), kind, base and getattr(base, field))
            for table, (field, kind) in _TABLES.items()
        }
    )


def _parse_table(table: str, given: Any, kind: type, base: Any) -> Any:  # noqa: ANN401 - plain TOML; one of `kind`
    if not isinstance(given, dict):
        raise InputError(f"the AWS facts file has no table [{table}]")
    names = {field.name for field in fields(kind)}
    if unknown := sorted(set(given) - names):
        raise InputError(f"the AWS facts file names unknown values: {', '.join(unknown)}; known are {sorted(names)}")
    values = {name: getattr(base, name) for name in names} if base else {}
    for name, entry in given.items():
        value = entry.get("value") if isinstance(entry, dict) else entry
        number = not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value < math.inf
        if not number or (value == 0 and not name.startswith("price_")):
            raise InputError(f"the AWS facts file gives {table}.{name} no positive number")
        values[name] = value
    if missing := sorted(names - set(values)):
        raise InputError(f"the AWS facts file lacks {', '.join(missing)}")
    return kind(**values)


def shipped_aws() -> AwsFacts:
    """Return the facts that ship with SerFer."""
    return parse_aws(files("serfer.core").joinpath("aws.toml").read_text(encoding="utf-8"))
