"""Prometheus metrics of pools of instances and of keeping warm; docs/reference/metrics.md lists every name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serfer.control.router import Reason
from serfer.drivers.instance.client import FaultKind
from serfer.fleet.keep_warm import KeepWarm
from serfer.fleet.open_pool import RunningPool

_CHANGES = ("started", "stopped", "interrupted")
_TROUBLES = ("store", "provisioner", "controller", "functions")


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
        yield from self._by_type()
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
        yield _counters(
            "serfer_pool_changes",
            "Instances that this driver started and stopped, and spot instances that were lost while it led.",
            "change",
            changes,
        )
        troubles = {name: self._controller.troubles[name] for name in _TROUBLES}
        yield _counters(
            "serfer_pool_troubles", "Errors that the pool's loop survived, by their source.", "of", troubles
        )

    def _by_type(self) -> Iterator[Metric]:
        instances = GaugeMetricFamily(
            "serfer_pool_type_instances",
            "Instances of a type and market that are wanted, that are on, and that serve this driver.",
            labels=["type", "market", "state"],
        )
        usd = GaugeMetricFamily(
            "serfer_pool_type_hour_usd",
            "Dollars spent in the last hour on instances of a type and market.",
            labels=["type", "market"],
        )
        serving = self._pool.serving_by_type
        for bought, one in self._controller.status.types.items():
            for state, count in (("wanted", one.wanted), ("on", one.on), ("serving", serving[bought])):
                instances.add_metric([bought.kind, bought.market, state], float(count))
            usd.add_metric([bought.kind, bought.market], one.hour_usd)
        yield from (instances, usd)


class KeepWarmMetrics(Collector):
    """What keeps the functions of a driver's models warm."""

    def __init__(self, models: Mapping[str, KeepWarm]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """Yield everything as it is now."""
        wanted = {model: one.status.wanted for model, one in self._models.items()}
        words = "Queries at once for which windows want functions warm (--keep-warm)."
        yield _gauges("serfer_keep_warm_wanted", words, "model", wanted)
        pings = {model: one.pings for model, one in self._models.items()}
        words = "Queries at once for which this driver, while it led, pinged functions (--keep-warm)."
        yield _counters("serfer_keep_warm_pings", words, "model", pings)
        troubles = {model: one.troubles.total() for model, one in self._models.items()}
        words = "Errors that keeping functions warm survived."
        yield _counters("serfer_keep_warm_troubles", words, "model", troubles)


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
