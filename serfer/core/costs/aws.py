"""AWS prices and quotas: one data file (`aws.toml`), read into typed values."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from typing import Annotated, Any

from serfer.core.dataclass_codec import Bounds, structure, unstructure
from serfer.core.errors import InputError, UsageError

STORES = ("redis", "s3", "valkey", "redis+s3", "valkey+s3")
"""Stores between stages: one, or one and an object store, of which each stage's output goes to either."""


Whole = Annotated[int, Bounds(1)]
Positive = Annotated[float, Bounds(0.0, above=True)]
Price = Annotated[float, Bounds(0.0)]
"""Dollars for what its name says."""


@dataclass(frozen=True)
class LambdaFacts:
    """Lambda's limits and prices; units stand in `aws.toml` beside each value."""

    memory_min: Whole
    memory_max: Whole
    memory_per_vcpu: Whole
    package_limit: Whole
    image_limit: Whole
    sync_payload_limit: Whole
    async_payload_limit: Whole
    timeout_max: Positive
    init_limit: Positive
    concurrency: Whole
    growth: Whole
    price_request: Price
    price_gb_second: Price
    bandwidth: Positive
    invoke_floor: Positive
    invoke_tail: Positive
    init: Positive
    load_rate: Positive
    fetch_latency: Positive
    package_rate: Positive
    image_rate: Positive
    restore: Positive
    snapshot_rate: Positive
    memory_new_account: Whole
    concurrency_new_account: Whole
    concurrency_kept: Whole
    kept_warm: Positive
    price_gb_second_arm: Price
    price_snapstart_cached: Price
    price_snapstart_restored: Price
    price_provisioned: Price
    price_provisioned_second: Price
    price_provisioned_arm: Price
    price_provisioned_second_arm: Price


@dataclass(frozen=True)
class StoreFacts:
    """A store's latency for a worker, and its prices; units stand in `aws.toml` beside each value."""

    request_latency: Positive
    range_latency: Positive
    price_put: Price
    price_get: Price
    price_byte: Price
    price_hour: Price


@dataclass(frozen=True)
class ServiceFacts:
    """The other services of a deployment, and a stack's limits; units stand in `aws.toml` beside each value."""

    price_api_request: Price
    price_balancer_hour: Price
    price_lcu_hour: Price
    lcu_bytes: Positive
    price_ipv4_hour: Price
    price_disk_gb: Price
    price_endpoint_hour: Price
    price_endpoint_byte: Price
    price_acl: Price
    price_acl_rule: Price
    price_acl_request: Price
    price_alarm: Price
    price_metric: Price
    price_dashboard: Price
    price_log_byte: Price
    price_log_gb: Price
    price_transition: Price
    price_express_request: Price
    price_express_gb_second: Price
    price_key: Price
    price_budget: Price
    price_s3_gb: Price
    price_ecr_gb: Price
    price_s3express_upload: Price
    price_s3express_download: Price
    price_egress_byte: Price
    price_sagemaker_gb_second: Price
    price_sagemaker_byte: Price
    sagemaker_memory_max: Whole
    sagemaker_concurrency: Whole
    instance_boot: Positive
    instance_least: Positive
    api_timeout: Positive
    express_timeout: Positive
    stack_resources: Whole
    template_limit: Whole
    transition_latency: Positive
    express_memory: Whole
    driver_seconds: Positive
    driver_init: Positive
    upload_bytes: Whole
    answer_bytes: Whole
    log_bytes: Whole


@dataclass(frozen=True)
class Source:
    """The source of a value: its unit, when it was read ("2026-11"), and a tag: D, B, M, S, K, or U for a user's."""

    unit: str
    date: str
    tag: str


@dataclass(frozen=True)
class AwsFacts:
    """Limits and prices of AWS.

    `instances` are dollars an hour by instance type, `vcpus` the vCPUs of those whose speed is predicted,
    `gpu_vcpus` how many their GPU is worth, `zones` the ids of the zones that have S3 Express One Zone by region,
    `regions_without` the regions that lack a feature, by feature. `sources` say where each value comes
    from, by "table.name".
    """

    functions: LambdaFacts = field(metadata={"key": "lambda"})
    redis: StoreFacts
    s3: StoreFacts
    valkey: StoreFacts
    s3express: StoreFacts
    redis_serverless: StoreFacts
    services: ServiceFacts
    instances: Mapping[str, Price]
    vcpus: Mapping[str, Whole]
    gpu_vcpus: Mapping[str, Positive]
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

    def price(self, name: str) -> float:
        """Return a price by its name in aws.toml: "lambda.price_request"."""
        table, _, key = name.partition(".")
        found = getattr(self, _TABLES[table])
        price: float = found[key] if isinstance(found, Mapping) else getattr(found, key)
        return price


_TABLES = {
    table_field.metadata.get("key", table_field.name): table_field.name
    for table_field in fields(AwsFacts)
    if table_field.name != "sources"
}
_INSTANCE = re.compile(r"[a-z0-9-]{1,20}\.[a-z0-9-]{1,20}")
_SOURCE = {"unit": "", "date": "", "tag": "U"}
_NAME = "the AWS facts file"


def parse_aws(text: str, base: AwsFacts | None = None) -> AwsFacts:
    """Read facts from TOML text, taking what it leaves out from `base`.

    Raises InputError for text that is not TOML, an unknown name, or a value that is not a positive number (a price may
    be 0). Instance types, regions and features may have any names.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also of numbers and nesting without end
        raise InputError(f"{_NAME} is not TOML: {error}") from error
    if unknown := sorted(set(document) - set(_TABLES)):
        raise InputError(f"{_NAME} has unknown {', '.join(unknown)}; known are {', '.join(_TABLES)}")
    defaults = {key: unstructure(getattr(base, name)) if base else {} for key, name in _TABLES.items()}
    tables = {key: _table(document, key) for key in _TABLES}
    values = {key: {**defaults[key], **{name: _value(entry) for name, entry in tables[key].items()}} for key in _TABLES}
    facts = structure(AwsFacts, values, _NAME, error=InputError)
    types = (*facts.instances, *facts.vcpus, *facts.gpu_vcpus)
    if unknown := [name for name in types if not _INSTANCE.fullmatch(name)]:
        raise InputError(f"{_NAME} names {unknown[0]!r:.40}, which is not an instance type")
    sources = {f"{key}.{name}": _source(entry) for key, table in tables.items() for name, entry in table.items()}
    return replace(facts, sources={**(base.sources if base else {}), **sources})


def _table(document: dict[str, Any], key: str) -> dict[str, Any]:
    table = document.get(key, {})
    if not isinstance(table, dict):
        raise InputError(f"{_NAME} should have a table [{key}], not a value of this name")
    return table


def _value(entry: Any) -> Any:  # noqa: ANN401 - plain TOML
    return entry.get("value") if isinstance(entry, dict) else entry


def _source(entry: Any) -> Source:  # noqa: ANN401 - plain TOML
    given = entry if isinstance(entry, dict) else {}
    return Source(**{key: str(given.get(key, default)) for key, default in _SOURCE.items()})


@cache
def shipped_aws() -> AwsFacts:
    """Return the facts that ship with SerFer: one object, which every opening of a plan shares."""
    return parse_aws(files("serfer.core.costs").joinpath("aws.toml").read_text(encoding="utf-8"))
