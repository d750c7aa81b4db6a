"""Prometheus metrics of a driver's fleets and of an instance's networks; docs/reference/metrics.md lists every name.

Labels are names of what is served: models, applications, variants of their live releases, and pools.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serfer.api.service import ModelRepository
from serfer.applications.scaling.controller import VariantFleet
from serfer.control.router import Reason
from serfer.core.http_messages import ModelState
from serfer.core.variants import Place
from serfer.drivers.instance.client import FaultKind
from serfer.fleet.keep_warm import KeepWarm
from serfer.fleet.open_pool import RunningPool

_Family = TypeVar("_Family", GaugeMetricFamily, CounterMetricFamily)
_Read = Callable[[ModelState], float]
_POOL_CHANGES = ("started", "stopped", "interrupted")
_POOL_TROUBLES = ("store", "provisioner", "controller", "functions")
_VARIANT_CHANGES = ("load", "unload", "failed", "started", "stopped")
_VARIANT_TROUBLES = ("store", "provisioner", "controller")
_COUNTERS: Final[tuple[tuple[str, str, _Read], ...]] = (
    ("serfer_batches", "Batches computed.", lambda state: state.signals.batches),
    ("serfer_batched_images", "Images in these batches.", lambda state: state.signals.images),
    ("serfer_refused", "Queries refused for lack of time or memory.", lambda state: state.signals.refused),
    ("serfer_network_loads", "Times that a network was loaded.", lambda state: state.loads),
    ("serfer_network_unloads", "Times that a network was unloaded.", lambda state: state.unloads),
)
_GAUGES: Final[tuple[tuple[str, str, _Read], ...]] = (
    ("serfer_waiting_images", "Images that wait to be computed.", lambda state: state.signals.waiting),
    (
        "serfer_utilisation",
        "Share of the last 10 s in which the device computed for a model.",
        lambda state: state.signals.utilisation,
    ),
    (
        "serfer_interference",
        "Observed over profiled batch time, a moving average.",
        lambda state: state.signals.interference,
    ),
    ("serfer_network_load_seconds", "Seconds that the last load of a network took.", lambda state: state.load_s),
    ("serfer_network_resident_bytes", "Bytes that a network takes now.", lambda state: state.resident_bytes),
)


class PoolMetrics(Collector):
    """One driver's view of its pool."""

    def __init__(self, running: RunningPool) -> None:
        self._pool = running.pool
        self._controller = running.controller

    def collect(self) -> Iterator[Metric]:
        status, pool = self._controller.status, self._pool
        words = "Instances that the policy wants, that are on, and that serve this driver."
        states = {"wanted": status.wanted, "on": status.on, "serving": pool.serving}
        yield _by_label(GaugeMetricFamily, "serfer_pool_instances", words, "state", states)
        yield from self._by_type()
        yield GaugeMetricFamily("serfer_pool_leading", "1 while this driver leads.", float(status.leads))
        words = "Dollars spent in the last hour by all drivers."
        usd = {"serverless": status.serverless_usd, "gpu": status.instances_usd}
        yield _by_label(GaugeMetricFamily, "serfer_pool_hour_usd", words, "target", usd)
        decisions = {reason.name.lower(): pool.router.counts[reason] for reason in Reason}
        yield _by_label(
            CounterMetricFamily, "serfer_route_decisions", "Routing decisions by reason.", "reason", decisions
        )
        words = "Queries that an instance did not answer, by kind of fault."
        faults = {kind.value: pool.faults[kind] for kind in FaultKind}
        yield _by_label(CounterMetricFamily, "serfer_instance_faults", words, "kind", faults)
        words = "Instances that this driver started and stopped, and spot instances that were lost while it led."
        changes = {name: self._controller.changes[name] for name in _POOL_CHANGES}
        yield _by_label(CounterMetricFamily, "serfer_pool_changes", words, "change", changes)
        words = "Errors that the pool's loop survived, by their source."
        troubles = {name: self._controller.troubles[name] for name in _POOL_TROUBLES}
        yield _by_label(CounterMetricFamily, "serfer_pool_troubles", words, "of", troubles)

    def _by_type(self) -> Iterator[Metric]:
        serving, types = self._pool.serving_by_type, self._controller.status.types
        yield _family(
            GaugeMetricFamily,
            "serfer_pool_type_instances",
            "Instances of a type and market that are wanted, that are on, and that serve this driver.",
            ["type", "market", "state"],
            (
                ((bought.kind, bought.market, state), count)
                for bought, status in types.items()
                for state, count in (("wanted", status.wanted), ("on", status.on), ("serving", serving[bought]))
            ),
        )
        yield _family(
            GaugeMetricFamily,
            "serfer_pool_type_hour_usd",
            "Dollars spent in the last hour on instances of a type and market.",
            ["type", "market"],
            (((bought.kind, bought.market), status.hour_usd) for bought, status in types.items()),
        )


class KeepWarmMetrics(Collector):
    """What keeps the functions of a driver's models warm."""

    def __init__(self, models: Mapping[str, KeepWarm]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        wanted = {model: warm.status.wanted for model, warm in self._models.items()}
        words = "Queries at once for which windows want functions warm (`keep_warm`)."
        yield _by_label(GaugeMetricFamily, "serfer_keep_warm_wanted", words, "model", wanted)
        pings = {model: warm.pings for model, warm in self._models.items()}
        words = "Queries at once for which this driver, while it led, pinged functions (`keep_warm`)."
        yield _by_label(CounterMetricFamily, "serfer_keep_warm_pings", words, "model", pings)
        troubles = {model: warm.troubles.total() for model, warm in self._models.items()}
        words = "Errors that keeping functions warm survived."
        yield _by_label(CounterMetricFamily, "serfer_keep_warm_troubles", words, "model", troubles)


class VariantMetrics(Collector):
    """One driver's view of the instances of its applications; `copies` counts a variant's, by application and name."""

    def __init__(self, fleet: VariantFleet, copies: Callable[[str, str], int]) -> None:
        self._fleet = fleet
        self._copies = copies

    def collect(self) -> Iterator[Metric]:
        fleet = self._fleet
        words = "Instances that have a variant in memory (loaded), or are to have it (desired)."
        labels = ["application", "variant", "state"]
        yield _family(GaugeMetricFamily, "serfer_variant_copies", words, labels, self._variants())
        words = "Instances that run variants, by type: wanted (where this driver leads), on, and serving."
        yield _family(GaugeMetricFamily, "serfer_variant_instances", words, ["type", "state"], fleet.counts.items())
        yield GaugeMetricFamily("serfer_variant_leading", "1 while this driver scales variants.", float(fleet.leads))
        counted = Counter(fleet.changes) + Counter(fleet.copies.changes)
        words = "Variants that this driver loaded and unloaded, loads that failed, instances it started and stopped."
        changes = {name: counted[name] for name in _VARIANT_CHANGES}
        yield _by_label(CounterMetricFamily, "serfer_variant_changes", words, "change", changes)
        words = "Errors that the scaling loop survived, by their source."
        troubles = {name: fleet.troubles[name] for name in _VARIANT_TROUBLES}
        yield _by_label(CounterMetricFamily, "serfer_variant_troubles", words, "of", troubles)

    def _variants(self) -> Iterator[tuple[tuple[str, str, str], int]]:
        for application, served in self._fleet.served.items():
            desired = served.scaled.desired if served.scaled else {}
            for name, variant in served.variants.items():
                if variant.place is Place.INSTANCE:
                    yield (application, name, "desired"), desired.get(name, 0)
                    yield (application, name, "loaded"), self._copies(application, name)


class InstanceMetrics(Collector):
    """The networks of an instance, and what they share."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository

    def collect(self) -> Iterator[Metric]:
        states, instance = self._repository.states(), self._repository.state()
        for name, words, read in _COUNTERS:
            counts = {model: read(state) for model, state in states.items()}
            yield _by_label(CounterMetricFamily, name, words, "model", counts)
        for name, words, read in _GAUGES:
            values = {model: read(state) for model, state in states.items()}
            yield _by_label(GaugeMetricFamily, name, words, "model", values)
        words = "Share of the last 10 s in which the device computed."
        yield GaugeMetricFamily("serfer_device_utilisation", words, instance.utilisation)
        words = "Bytes that networks may take; 0: no bound."
        yield GaugeMetricFamily("serfer_networks_memory_bytes", words, instance.memory_bytes or 0)


def _by_label(kind: type[_Family], name: str, words: str, label: str, values: Mapping[str, float]) -> _Family:
    return _family(kind, name, words, [label], (((value,), number) for value, number in values.items()))


def _family(
    kind: type[_Family], name: str, words: str, labels: list[str], rows: Iterable[tuple[tuple[str, ...], float]]
) -> _Family:
    family = kind(name, words, labels=labels)
    for values, number in rows:
        family.add_metric(values, float(number))
    return family
