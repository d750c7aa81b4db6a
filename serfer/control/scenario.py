"""Prices and speeds of the two targets, Lambda and instances: what routing policies and the simulator reckon with."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serfer.control.batching import BatchTimes
from serfer.core.errors import InputError

S_PER_HOUR = 3600.0
_MS_PER_S = 1000.0
_LOADED = 0.9  # the share of what batches sustain that an instance is loaded with
_CONSISTENT = (0.8, 1.1)  # qps over what batches sustain: up to a tenth of margin, and of noise in measurements
_MOST_TYPES, _MOST_BATCHES, _LONGEST_NAME = 16, 64, 64
_SMALLEST, _LARGEST = 1e-9, 1e9


@dataclass(frozen=True)
class LambdaTarget:
    """What a query costs and how long it takes on Lambda; a cold start adds `cold_ms` to `latency_ms`."""

    usd_per_query: float
    latency_ms: float
    cold_ms: float
    concurrency: int
    memory_gb: float
    keep_alive_s: float


@dataclass(frozen=True)
class InstanceType(BatchTimes):
    """A machine that serves the whole network: `qps` is what it sustains within the SLO, batched.

    `batches` are (images, milliseconds) measured, by size; billing begins with the launch, `boot_s` before it serves.
    """

    name: str
    usd_per_hour: float
    spot_usd_per_hour: float
    boot_s: float
    min_billing_s: float
    qps: float
    batches: tuple[tuple[int, float], ...]

    @property
    def usd_per_s(self) -> float:
        """The on-demand price of a second."""
        return self.usd_per_hour / S_PER_HOUR

    @property
    def start_usd(self) -> float:
        """What switching one on costs: the price of its boot."""
        return self.boot_s * self.usd_per_s

    def sustained_qps(self, slo_ms: float) -> float:
        """Return the images a second of batches that follow one another within `slo_ms`, as `serfer tune` reckons.

        An image that has just missed a batch waits for it and is computed in the next one, so two have to fit.
        """
        largest = bisect_right(range(1, self.max_batch + 1), slo_ms / 2, key=self.batch_ms)
        sizes = {1, largest or 1, *(size for size, ms in self.batches if 2 * ms <= slo_ms)}
        return max(size / self.batch_ms(size) for size in sizes) * _MS_PER_S

    def warning(self, slo_ms: float) -> str | None:
        """Return a sentence where `qps` is not what `batches` sustain within `slo_ms`.

        Policies count instances by `qps`; the router fills them as far as `batches` allow, so the fleet would be too
        large, and the dollars of a simulation at the level of rates would not be those that the router spends.
        """
        sustained = self.sustained_qps(slo_ms)
        if _CONSISTENT[0] <= self.qps / sustained <= _CONSISTENT[1]:
            return None
        return (
            f"instance {self.name}: qps is {self.qps:g}, but its batches sustain {sustained:.4g} images/s within "
            f"slo_ms {slo_ms:g}: set qps to about {_LOADED * sustained:.3g}, or correct batches (serfer tune measures "
            "both)"
        )


@dataclass(frozen=True)
class Scenario:
    """A service-level objective in milliseconds, and the targets that it is to be met with.

    The first instance type is the one that policies start; bounds are judged with it, on demand.
    """

    slo_ms: float
    serverless: LambdaTarget
    instances: tuple[InstanceType, ...]

    @property
    def instance(self) -> InstanceType:
        """The first instance type."""
        return self.instances[0]

    @property
    def advantage(self) -> float:
        """c: Lambda's price over the instance's, at the instance's full load."""
        return self.serverless.usd_per_query * self.instance.qps / self.instance.usd_per_s

    def warnings(self) -> list[str]:
        """Return what is inconsistent in the scenario, a sentence for each instance type."""
        found = (kind.warning(self.slo_ms) for kind in self.instances)
        return [warning for warning in found if warning is not None]


def parse_scenario(tables: Mapping[str, Any]) -> Scenario:
    """Return the scenario that a TOML document describes (docs/explanation/policies.md has the format).

    Raises InputError that names the key: missing, unknown, no number, or out of bounds.
    """
    top = _Table("", tables, {"slo_ms", "lambda", "instance"})
    serverless = _Table(
        "lambda",
        top.table("lambda"),
        {"usd_per_query", "latency_ms", "cold_ms", "concurrency", "memory_gb", "keep_alive_s"},
    )
    kinds = tables.get("instance")
    if not isinstance(kinds, list) or not 1 <= len(kinds) <= _MOST_TYPES:
        raise InputError(f"a scenario has 1 to {_MOST_TYPES} [[instance]] tables")
    return Scenario(
        slo_ms=top.number("slo_ms", least=_SMALLEST),
        serverless=LambdaTarget(
            usd_per_query=serverless.number("usd_per_query", least=_SMALLEST),
            latency_ms=serverless.number("latency_ms", least=_SMALLEST),
            cold_ms=serverless.number("cold_ms"),
            concurrency=serverless.whole("concurrency"),
            memory_gb=serverless.number("memory_gb", least=_SMALLEST),
            keep_alive_s=serverless.number("keep_alive_s"),
        ),
        instances=tuple(_instance(number, kind) for number, kind in enumerate(kinds)),
    )


def _instance(number: int, fields: object) -> InstanceType:
    table = _Table(
        f"instance {number}",
        fields,
        {"name", "usd_per_hour", "spot_usd_per_hour", "boot_s", "min_billing_s", "qps", "batches"},
    )
    name = table.fields.get("name")
    if not isinstance(name, str) or not 1 <= len(name) <= _LONGEST_NAME or not name.isprintable():
        raise InputError(f"instance {number}: name is a text of at most {_LONGEST_NAME} characters that can be printed")
    return InstanceType(
        name=name,
        usd_per_hour=table.number("usd_per_hour", least=_SMALLEST),
        spot_usd_per_hour=table.number("spot_usd_per_hour"),
        boot_s=table.number("boot_s"),
        min_billing_s=table.number("min_billing_s"),
        qps=table.number("qps", least=_SMALLEST),
        batches=_batches(name, table.fields.get("batches")),
    )


def _batches(name: str, given: object) -> tuple[tuple[int, float], ...]:
    wrong = InputError(
        f"instance {name}: batches is a list of [images, milliseconds], by size, not {str(given)[:80]!r}"
    )
    if not isinstance(given, list) or not 1 <= len(given) <= _MOST_BATCHES:
        raise wrong
    batches: list[tuple[int, float]] = []
    for pair in given:
        if not isinstance(pair, list) or [_is_number(part) for part in pair] != [True, True]:
            raise wrong
        size, ms = pair
        if size != int(size) or not 1 <= size <= _LARGEST or not 0 < ms <= _LARGEST:
            raise wrong
        if batches and size <= batches[-1][0]:
            raise wrong
        batches.append((int(size), float(ms)))
    return tuple(batches)


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    return isinstance(value, int) and not isinstance(value, bool)


class _Table:
    """A TOML table whose keys are known; errors say which table and key."""

    def __init__(self, name: str, fields: object, known: set[str]) -> None:
        if not isinstance(fields, Mapping):
            raise InputError(f"the scenario's [{name}] is not a table")
        unknown = sorted(set(fields) - known)
        if unknown:
            raise InputError(
                f"{name or 'the scenario'}: {unknown[0]!r} is not known; there are {', '.join(sorted(known))}"
            )
        self.fields = fields
        self._name = name or "the scenario"

    def table(self, key: str) -> object:
        """Return a table within this one."""
        if key not in self.fields:
            raise InputError(f"{self._name}: [{key}] is missing")
        return self.fields[key]

    def number(self, key: str, *, least: float = 0.0) -> float:
        """Return a number of at least `least`."""
        value = self.fields.get(key)
        if value is None:
            raise InputError(f"{self._name}: {key} is missing")
        if not isinstance(value, int | float) or not _is_number(value):
            raise InputError(f"{self._name}: {key} is a number, not {str(value)[:40]!r}")
        if not least <= value <= _LARGEST:
            from_least = "more than 0" if least == _SMALLEST else f"at least {least:g}"
            raise InputError(f"{self._name}: {key} is {from_least} and at most {_LARGEST:g}, not {str(value)[:40]}")
        return float(value)

    def whole(self, key: str) -> int:
        """Return a whole number of at least 1."""
        value = self.number(key, least=1)
        if value != int(value):
            raise InputError(f"{self._name}: {key} is a whole number, not {value:g}")
        return int(value)
