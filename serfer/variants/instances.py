"""Variants on instances: which precisions and batches are worth one, and their figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from serfer.core.errors import UsageError
from serfer.core.units import MS_PER_S
from serfer.core.variants import Figure, Place, Variant
from serfer.system import processors
from serfer.variants.candidates import gains, loss, worthwhile_batches
from serfer.variants.child import InstanceFigures
from serfer.variants.register_options import RegisterOptions

_S_PER_HOUR: Final = 3600.0
_ASSUMED: Final = {"cuda": "g6.xlarge", "cpu": "c7i.large", "cpus": "c7i.xlarge"}
_FEW: Final = 2  # processors of a c7i.large


@dataclass(frozen=True, slots=True)
class InstanceType:
    """An instance type and its price; `assumed` where nothing says that this machine is of that type."""

    kind: str
    usd_per_hour: float
    assumed: bool


@dataclass(frozen=True, slots=True)
class InstanceMeasurement:
    """A whole network as measured in a precision, and the plan directory that has it: artefact and plan digest."""

    precision: str
    artefact: str
    plan: str
    figures: InstanceFigures


def instance_type(options: RegisterOptions, device: str, prices: Mapping[str, float]) -> InstanceType:
    """Return the type that instances are priced as; by default one that has about what this machine has.

    Raises UsageError for a type without a price.
    """
    kind, usd_per_hour = options.instance, options.usd_per_hour
    if kind is None:
        kind = _ASSUMED["cuda" if device == "cuda" else "cpu" if processors() <= _FEW else "cpus"]
        return InstanceType(kind, usd_per_hour or prices[kind], assumed=usd_per_hour is None)
    if usd_per_hour is None and kind not in prices:
        raise UsageError(f"the price of {kind!r:.80} is not known: give --usd-per-hour, or one of {', '.join(prices)}")
    return InstanceType(kind, usd_per_hour or prices[kind], assumed=False)


def why_not(measured: InstanceMeasurement, whole: InstanceFigures, max_loss: float) -> str:
    figures = measured.figures
    lost = loss(figures.accuracy, whole.accuracy) if figures.accuracy and whole.accuracy else 0.0
    if lost > max_loss:
        return f"it loses {lost:.2%} of the images, more than max_loss, {max_loss:g}"
    if not gains(figures.best_ms, whole.best_ms):
        return f"it is not faster on {figures.device}"
    return ""


def busy(figures: InstanceFigures, here: int) -> str:
    if figures.busy <= here:
        return ""
    return (
        f"instances were measured while this machine was busy (load {figures.busy:g} on {here} processors): "
        "for their true speed, register on an idle one"
    )


def instance_variants(measured: InstanceMeasurement, kind: InstanceType, version: int, network: str) -> list[Variant]:
    """Return the variants of a precision, one for each batch size worth it; their versions and names are short."""
    figures = measured.figures
    return [_variant(measured, size, kind, version, network) for size in worthwhile_batches(figures.best_ms)]


def _variant(measured: InstanceMeasurement, size: int, kind: InstanceType, version: int, network: str) -> Variant:
    figures, batch = measured.figures, measured.figures.sizes[size]
    qps = size / batch.median_ms * MS_PER_S
    usd = kind.usd_per_hour / _S_PER_HOUR / qps
    return Variant(
        name=f"{kind.kind}-{measured.precision}-b{size}",
        network=network,
        version=version,
        place=Place.INSTANCE,
        precision=measured.precision,
        artefact=measured.artefact,
        plan=measured.plan,
        accuracy=figures.accuracy,
        latency_ms=Figure.measured(batch.p95_ms),
        load_ms=Figure.measured(figures.load_ms),
        peak_mb=Figure.measured(batch.peak_mb),
        qps=Figure.measured(qps),
        usd=Figure.predicted(usd) if kind.assumed else Figure.measured(usd),
        kind=kind.kind,
        batch=size,
        made=f"the whole network on {figures.device}, {measured.precision}, batches of {size}{_measured(measured)}",
        measured_on=figures.measured_on,
    )


def _measured(measured: InstanceMeasurement) -> str:
    known = measured.figures.measured_on
    return f", accuracy measured with {', '.join(known)}" if measured.precision == "int8" and known else ""
