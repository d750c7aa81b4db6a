"""Prometheus metrics of a pool of instances; docs/reference/metrics.md lists every name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from drivers.instance.client import FaultKind
from serfer.control.router import Reason
from serfer.fleet.open_pool import RunningPool

_CHANGES = ("started", "stopped")
_TROUBLES = ("store", "provisioner", "controller")


class PoolMetrics(Collector):
    """One driver's view of its pool."""

    def __init__(self, running: RunningPool) -> None:
        self._pool = running.pool
        self._controller = running.controller

    def collect(self) -> Iterator[Metric]:
        """Yield everything as it is now."""
        status, pool = self._controller.status, self._pool
        states = {"wanted": status.wanted, "on": status.on, "serving": pool.serving}
        yield _gauges(
            "serfer_pool_instances",
            "Instances that the policy wants, that are on, and that serve this driver.",
            "state",
            states,
        )
        yield GaugeMetricFamily("serfer_pool_leading", "1 while this driver leads.", float(status.leads))
        usd = {"serverless": status.serverless_usd, "gpu": status.instances_usd}
        yield _gauges("serfer_pool_hour_usd", "Dollars spent in the last hour by all drivers.", "target", usd)
        decisions = {reason.name.lower(): pool.router.counts[reason] for reason in Reason}
        yield _counters("serfer_route_decisions", "Routing decisions by reason.", "reason", decisions)
        faults = {kind.value: pool.faults[kind] for kind in FaultKind}
        yield _counters(
            "serfer_instance_faults", "Queries that an instance did not answer, by kind of fault.", "kind", faults
        )
        changes = {name: self._controller.changes[name] for name in _CHANGES}
        yield _counters("serfer_pool_changes", "Instances that this driver started and stopped.", "change", changes)
        troubles = {name: self._controller.troubles[name] for name in _TROUBLES}
        yield _counters(
            "serfer_pool_troubles", "Errors that the pool's loop survived, by their source.", "of", troubles
        )


def _gauges(name: str, words: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, words, labels=[label])
    for value, number in values.items():
        family.add_metric([value], float(number))
    return family


def _counters(name: str, words: str, label: str, values: Mapping[str, float]) -> CounterMetricFamily:
    family = CounterMetricFamily(name, words, labels=[label])
    for value, number in values.items():
        family.add_metric([value], float(number))
    return family
