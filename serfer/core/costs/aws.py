"""AWS prices and quotas: one data file (`aws.toml`), read into typed values."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
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
    memory_new_account: int
    concurrency_kept: int
    kept_warm: float
    price_gb_second_arm: float
    price_snapstart_cached: float
    price_snapstart_restored: float


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
class ServiceFacts:
    """What else a deployment has and uses, and a stack's limits; units stand in `aws.toml` beside each value."""

    price_api_request: float
    price_balancer_hour: float
    price_lcu_hour: float
    lcu_bytes: float
    price_ipv4_hour: float
    price_disk_gb: float
    price_endpoint_hour: float
    price_endpoint_byte: float
    price_acl: float
    price_acl_rule: float
    price_acl_request: float
    price_alarm: float
    price_metric: float
    price_dashboard: float
    price_log_byte: float
    price_log_gb: float
    price_transition: float
    price_express_request: float
    price_express_gb_second: float
    price_key: float
    price_email: float
    price_budget: float
    price_s3_gb: float
    price_s3express_gb: float
    price_s3express_upload: float
    price_s3express_download: float
    price_egress_byte: float
    api_timeout: float
    api_body_limit: int
    express_timeout: float
    stack_resources: int
    template_limit: int
    transition_latency: float
    express_memory: int
    driver_seconds: float
    driver_init: float
    upload_bytes: int
    answer_bytes: int
    log_bytes: int


@dataclass(frozen=True)
class Source:
    """Where a value comes from: its unit, when it was read ("2026-11"), and a tag: D, B, M, S, K, or U for a user's."""

    unit: str
    date: str
    tag: str


@dataclass(frozen=True)
class AwsFacts:
    """What a plan may run on.

    `instances` are dollars an hour by instance type, `zones` the ids of the zones that have S3 Express One Zone by
    region, `regions_without` the regions that lack a feature, by feature. `sources` say where each value comes from,
    by "table.name".
    """

    functions: LambdaFacts
    redis: StoreFacts
    s3: StoreFacts
    valkey: StoreFacts
    s3express: StoreFacts
    redis_serverless: StoreFacts
    services: ServiceFacts
    instances: Mapping[str, float]
    zones: Mapping[str, tuple[str, ...]]
    regions_without: Mapping[str, tuple[str, ...]]
    sources: Mapping[str, Source] = field(default_factory=dict, compare=False, repr=False)

    def stores(self, kind: str) -> tuple[StoreFacts, StoreFacts | None]:
        """Return the facts of a plan's store, and of its object store or None; raises UsageError for unknown kinds."""
        if kind not in STORES:
            known = f"{', '.join(STORES[:-1])} and {STORES[-1]}"
            raise UsageError(f"plans are priced for the stores {known}, not {kind!r}: choose another --store")
        main, _, objects = kind.partition("+")
        facts = {"redis": self.redis, "s3": self.s3, "valkey": self.valkey}
        return facts[main], facts.get(objects)

    def on(self, architecture: str) -> LambdaFacts:
        """Return the facts of functions on "x86_64" or "arm64", which differ in the price of compute."""
        if architecture == "arm64":
            return replace(self.functions, price_gb_second=self.functions.price_gb_second_arm)
        return self.functions


_TABLES: dict[str, tuple[str, type]] = {
    "lambda": ("functions", LambdaFacts),
    "redis": ("redis", StoreFacts),
    "s3": ("s3", StoreFacts),
    "valkey": ("valkey", StoreFacts),
    "s3express": ("s3express", StoreFacts),
    "redis_serverless": ("redis_serverless", StoreFacts),
    "services": ("services", ServiceFacts),
}
_INSTANCES, _LISTS = "instances", ("zones", "regions_without")
_INSTANCE = re.compile(r"[a-z0-9-]{1,20}\.[a-z0-9-]{1,20}")
_OF_A_USER = "U"


def parse_aws(text: str, base: AwsFacts | None = None) -> AwsFacts:
    """Read facts from TOML text, taking what it leaves out from `base`.

    Raises InputError for text that is not TOML, an unknown name, or a value that is not a positive number (a price may
    be 0). Instance types, regions and features may have any names.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the AWS facts file is not TOML: {error}") from error
    known = {*_TABLES, _INSTANCES, *_LISTS}
    if unknown := sorted(set(document) - known):
        raise InputError(f"the AWS facts file names unknown values: {', '.join(unknown)}; known are {sorted(known)}")
    closed = {
        name: _parse_table(table, document.get(table, {}), kind, base and getattr(base, name))
        for table, (name, kind) in _TABLES.items()
    }
    return AwsFacts(
        **closed,
        instances={**(base.instances if base else {}), **_parse_instances(_table(document, _INSTANCES))},
        zones={**(base.zones if base else {}), **_parse_lists("zones", _table(document, "zones"))},
        regions_without={
            **(base.regions_without if base else {}),
            **_parse_lists("regions_without", _table(document, "regions_without")),
        },
        sources={**(base.sources if base else {}), **_sources(document)},
    )


def _table(document: dict[str, Any], name: str) -> dict[str, Any]:
    table = document.get(name, {})
    if not isinstance(table, dict):
        raise InputError(f"the AWS facts file has no table [{name}]")
    return table


def _parse_instances(given: dict[str, Any]) -> dict[str, float]:
    for name in given:
        if not _INSTANCE.fullmatch(name):
            raise InputError(f"the AWS facts file names {name[:40]!r} among instances, which is not an instance type")
    return {name: _number(f"{_INSTANCES}.{name}", _value(entry), least=0) for name, entry in given.items()}


def _parse_lists(table: str, given: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    found = {name: _value(entry) for name, entry in given.items()}
    for name, value in found.items():
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise InputError(f"the AWS facts file gives {table}.{name} no list of names")
    return {name: tuple(value) for name, value in found.items()}


def _sources(document: dict[str, Any]) -> dict[str, Source]:
    """Return where the values of a file come from; what says nothing is its user's own."""
    return {
        f"{table}.{name}": Source(*(str(_said(entry, key, other)) for key, other in _SOURCE.items()))
        for table, entries in document.items()
        for name, entry in entries.items()
    }


_SOURCE = {"unit": "", "date": "", "tag": _OF_A_USER}


def _said(entry: Any, key: str, other: str) -> Any:  # noqa: ANN401 - plain TOML
    return entry.get(key, other) if isinstance(entry, dict) else other


def _value(entry: Any) -> Any:  # noqa: ANN401 - plain TOML
    return entry.get("value") if isinstance(entry, dict) else entry


def _number(name: str, value: Any, least: float | None = None) -> Any:  # noqa: ANN401 - plain TOML; a number
    """Return a value that is a finite number, above 0 or from `least` up."""
    number = not isinstance(value, bool) and isinstance(value, int | float) and 0 <= value < math.inf
    if not number or (value == 0 and least is None):
        raise InputError(f"the AWS facts file gives {name} no positive number")
    return value


def _parse_table(table: str, given: Any, kind: type, base: Any) -> Any:  # noqa: ANN401 - plain TOML; one of `kind`
    if not isinstance(given, dict):
        raise InputError(f"the AWS facts file has no table [{table}]")
    names = {field.name for field in fields(kind)}
    if unknown := sorted(set(given) - names):
        raise InputError(f"the AWS facts file names unknown values: {', '.join(unknown)}; known are {sorted(names)}")
    values = {name: getattr(base, name) for name in names} if base else {}
    for name, entry in given.items():
        least = 0 if name.startswith("price_") else None
        values[name] = _number(f"{table}.{name}", _value(entry), least)
    if missing := sorted(names - set(values)):
        raise InputError(f"the AWS facts file lacks {', '.join(missing)}")
    return kind(**values)


def shipped_aws() -> AwsFacts:
    """Return the facts that ship with SerFer."""
    return parse_aws(files("serfer.core.costs").joinpath("aws.toml").read_text(encoding="utf-8"))
