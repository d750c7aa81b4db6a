"""Prometheus metrics of applications' instances; docs/reference/metrics.md lists every name.

Labels are names of served applications, of variants of their live releases, and of pools.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serfer.applications.scaling.controller import VariantFleet
from serfer.core.variants import Place

_CHANGES = ("load", "unload", "failed", "started", "stopped")
_TROUBLES = ("store", "provisioner", "controller")


class VariantMetrics(Collector):
    """One driver's view of the instances of its applications; `copies` counts a variant's, by application and name."""

    def __init__(self, fleet: VariantFleet, copies: Callable[[str, str], int]) -> None:
        self._fleet = fleet
        self._copies = copies

    def collect(self) -> Iterator[Metric]:
        """Yield everything as it is now."""
        yield self._variants()
        instances = GaugeMetricFamily(
            "serfer_variant_instances",
            "Instances that run variants, by type: wanted (where this driver leads), on, and serving.",
            labels=["type", "state"],
        )
        for (pool, state), count in self._fleet.counts.items():
            instances.add_metric([pool, state], count)
        yield instances
        yield GaugeMetricFamily(
            "serfer_variant_leading", "1 while this driver scales variants.", float(self._fleet.leads)
        )
        counted = Counter(self._fleet.changes) + Counter(self._fleet.copies.changes)
        changes = CounterMetricFamily(
            "serfer_variant_changes",
            "Variants that this driver loaded and unloaded, loads that failed, instances that it started and stopped.",
            labels=["change"],
        )
        for name in _CHANGES:
            changes.add_metric([name], counted[name])
        yield changes
        troubles = CounterMetricFamily(
            "serfer_variant_troubles", "Errors that the scaling loop survived, by their source.", labels=["of"]
        )
        for name in _TROUBLES:
            troubles.add_metric([name], self._fleet.troubles[name])
        yield troubles

    def _variants(self) -> Metric:
        """Return the copies of each variant for instances: those that are to be, and those in memory."""
        family = GaugeMetricFamily(
            "serfer_variant_copies",
            "Instances that have a variant in memory (loaded), or are to have it (desired).",
            labels=["application", "variant", "state"],
        )
        for application, served in self._fleet.served.items():
            desired = served.scaled.desired if served.scaled else {}
            for name, variant in served.variants.items():
                if variant.place is Place.INSTANCE:
                    family.add_metric([application, name, "desired"], desired.get(name, 0))
                    family.add_metric([application, name, "loaded"], self._copies(application, name))
        return family
