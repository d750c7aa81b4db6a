"""Prices and speeds of the two targets, Lambda and instances: what routing policies and the simulator compute with."""

from __future__ import annotations

import tomllib
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

from serfer.control.batching import BatchTimes
from serfer.core.dataclass_codec import LATER, Bounds, structure
from serfer.core.errors import InputError
from serfer.core.units import MS_PER_S
from serfer.files import read_text

S_PER_HOUR = 3600.0
_S_PER_MINUTE = 60.0
_LOADED = 0.9  # the share of what batches sustain that an instance is loaded with
_CONSISTENT = (0.8, 1.1)  # qps over what batches sustain: up to a tenth of margin, and of noise in measurements
_MAX_TYPES, _MAX_BATCHES, _MAX_NAME = 16, 64, 64
_Positive = Annotated[float, Bounds(1e-9, 1e9)]
_NotNegative = Annotated[float, Bounds(0.0, 1e9)]
_Count = Annotated[int, Bounds(1, 1e9)]


class Market(StrEnum):
    """How an instance is bought: spot instances are cheaper, and may be taken away."""

    ON_DEMAND = "on-demand"
    SPOT = "spot"


@dataclass(frozen=True)
class LambdaTarget:
    """A query's cost and latency on Lambda; a cold start adds `cold_ms` to `latency_ms`."""

    usd_per_query: _Positive
    latency_ms: _Positive
    cold_ms: _NotNegative
    concurrency: _Count
    memory_gb: _Positive
    keep_alive_s: _NotNegative


@dataclass(frozen=True)
class CpuCredits:
    """The CPU credits of a burstable type: one is a vCPU at full speed for a minute (AWS).

    It earns `per_hour` of them, has `at_launch` when it is launched or resumed, and keeps `most`; without any it runs
    at its baseline, as fast as it earns them. AWS's figures are in docs/explanation/policies.md.
    """

    vcpus: _Count
    per_hour: _Positive
    at_launch: _NotNegative
    most: _Positive

    @property
    def earned(self) -> float:
        return self.per_hour / S_PER_HOUR

    @property
    def spent(self) -> float:
        return self.vcpus / _S_PER_MINUTE

    @property
    def baseline(self) -> float:
        """The share of full speed that lasts, 1 at most."""
        return min(1.0, self.earned / self.spent)


@dataclass(frozen=True)
class InstanceType(BatchTimes):
    """A machine that serves the whole network: `qps` is what it sustains within the SLO, batched.

    `batches` are (images, milliseconds) measured, by size; billing begins with the launch, `boot_s` before it serves.
    A type with `credits` is burstable, and sustains its speed as long as it has some: it stands in for others, kept
    stopped until then, so that its `boot_s` is that of a resume.
    Raises InputError for another order of batches, and for a name that is not a short line.
    """

    name: str
    usd_per_hour: _Positive
    spot_usd_per_hour: _NotNegative
    boot_s: _NotNegative
    min_billing_s: _NotNegative
    qps: _Positive
    batches: tuple[tuple[_Count, _Positive], ...]
    credits: CpuCredits | None = field(default=None, metadata=LATER)

    def __post_init__(self) -> None:
        if not 1 <= len(self.name) <= _MAX_NAME or not self.name.isprintable():
            raise InputError(f"instance: name should have 1 to {_MAX_NAME} printable characters, not {self.name!r:.80}")
        sizes = [size for size, _ in self.batches]
        if not 1 <= len(sizes) <= _MAX_BATCHES or any(size >= larger for size, larger in pairwise(sizes)):
            raise InputError(
                f"instance {self.name}: batches should be 1 to {_MAX_BATCHES} pairs [images, milliseconds], by size, "
                f"not of {sizes!s:.80} images"
            )

    @property
    def burstable(self) -> bool:
        return self.credits is not None

    @property
    def usd_per_s(self) -> float:
        return self.usd_per_hour / S_PER_HOUR

    def market_usd_per_hour(self, market: Market) -> float:
        """Return what one costs an hour in a market; 0 for spot where the scenario has no spot price."""
        return self.spot_usd_per_hour if market is Market.SPOT else self.usd_per_hour

    @property
    def start_usd(self) -> float:
        """The cost of switching one on: the price of its boot."""
        return self.boot_s * self.usd_per_s

    def sustained_qps(self, slo_ms: float) -> float:
        """Return the images a second of successive batches within `slo_ms`, as `serfer study tune` reckons.

        An image that has just missed a batch waits for it and is computed in the next one, so two have to fit.
        """
        largest = bisect_right(range(1, self.max_batch + 1), slo_ms / 2, key=self.batch_ms)
        sizes = {1, largest or 1, *(size for size, ms in self.batches if 2 * ms <= slo_ms)}
        return max(size / self.batch_ms(size) for size in sizes) * MS_PER_S

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
            f"slo_ms {slo_ms:g}: set qps to about {_LOADED * sustained:.3g}, or correct batches (serfer study tune "
            "measures both)"
        )


@dataclass(frozen=True)
class Scenario:
    """A service-level objective in milliseconds, and the targets that it is to be met with.

    The first instance type is the one that policies start; bounds are judged with it, on demand. Raises InputError for
    no types, or too many, and where the first one is burstable.
    """

    slo_ms: _Positive
    serverless: LambdaTarget = field(metadata={"key": "lambda"})
    instances: tuple[InstanceType, ...] = field(metadata={"key": "instance"})

    def __post_init__(self) -> None:
        if not 1 <= len(self.instances) <= _MAX_TYPES:
            raise InputError(f"a scenario has 1 to {_MAX_TYPES} [[instance]] tables, not {len(self.instances)}")
        if self.instance.burstable:
            raise InputError(
                f"instance {self.instance.name}: the first type serves load that lasts, a burstable one cannot"
            )

    @property
    def instance(self) -> InstanceType:
        return self.instances[0]

    def kind(self, name: str) -> InstanceType:
        for kind in self.instances:
            if kind.name == name:
                return kind
        raise KeyError(name)

    @property
    def price_ratio(self) -> float:
        """c: Lambda's price over the instance's, at the instance's full load."""
        return self.serverless.usd_per_query * self.instance.qps / self.instance.usd_per_s

    def warnings(self) -> list[str]:
        warnings = (kind.warning(self.slo_ms) for kind in self.instances)
        return [warning for warning in warnings if warning is not None]


def parse_scenario(tables: Mapping[str, Any]) -> Scenario:
    """Return the scenario that a TOML document describes (docs/explanation/policies.md has the format).

    Raises InputError that names the key: missing, unknown, not a number, or out of bounds.
    """
    return structure(Scenario, tables, "scenario", error=InputError)


_MAX_SCENARIO_BYTES = 64 * 1024
_HERE: Final = Path(__file__).parent
_FILES: Final = ("prices/*.toml", "scenarios/*.toml", "cluster.toml")  # links into examples/
SHIPPED: Final = {path.stem: path for files in _FILES for path in sorted(_HERE.glob(files))}
"""The scenarios that come with SerFer, by name."""
CLUSTER: Final = "servers"
"""The table that a cluster's scenario has, and no other."""
DEFAULT_SCENARIO: Final = Path("aws")
T = TypeVar("T")


def scenario_file(path: Path) -> Path:
    """Return a scenario's file: the path, or what comes with SerFer where that is a name and no file.

    A folder of that name does not stand in its way. Raises InputError for another word.
    """
    if path.suffix or len(path.parts) != 1 or path.is_file():
        return path
    if path.name not in SHIPPED:
        raise InputError(f"{path.name[:80]!r} is neither a file nor a scenario by name: those are {', '.join(SHIPPED)}")
    return SHIPPED[path.name]


def read_scenario(path: Path) -> Scenario:
    """Read a scenario's TOML file, or one of SHIPPED by name; raises InputError that names the file and the key."""
    tables = read_tables(path, _MAX_SCENARIO_BYTES)
    if CLUSTER in tables:
        raise InputError(f"{path} describes a cluster ([[{CLUSTER}]]): serfer study simulate alone has policies for it")
    return parse_file(path, parse_scenario, tables)


def read_tables(path: Path, most_bytes: int) -> dict[str, Any]:
    text = read_text(scenario_file(path), most_bytes)
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also raised for numbers of thousands of digits, and deep nesting
        raise InputError(f"{path} is not TOML: {error}") from error


def parse_file(path: Path, parse: Callable[[Mapping[str, Any]], T], tables: Mapping[str, Any]) -> T:
    """Parse a file's tables; raises InputError that names the file and the key."""
    try:
        return parse(tables)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
