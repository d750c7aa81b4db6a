"""Prometheus metrics of an instance's networks; docs/reference/metrics.md lists every name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serfer.api.service import ModelRepository
from serfer.core.http_messages import ModelState

_Read = Callable[[ModelState], float]
_COUNTERS: Final[tuple[tuple[str, str, _Read], ...]] = (
    ("serfer_batches", "Batches computed.", lambda one: one.signals.batches),
    ("serfer_batched_images", "Images in these batches.", lambda one: one.signals.images),
    ("serfer_refused", "Queries refused for lack of time or memory.", lambda one: one.signals.refused),
    ("serfer_network_loads", "Times that a network was loaded.", lambda one: one.loads),
    ("serfer_network_unloads", "Times that a network was unloaded.", lambda one: one.unloads),
)
_GAUGES: Final[tuple[tuple[str, str, _Read], ...]] = (
    ("serfer_waiting_images", "Images that wait to be computed.", lambda one: one.signals.waiting),
    (
        "serfer_utilisation",
        "Share of the last 10 s in which the device computed for a model.",
        lambda one: one.signals.utilisation,
    ),
    (
        "serfer_interference",
        "Observed over profiled batch time, a moving average.",
        lambda one: one.signals.interference,
    ),
    ("serfer_network_load_seconds", "Seconds that the last load of a network took.", lambda one: one.load_s),
    ("serfer_network_resident_bytes", "Bytes that a network takes now.", lambda one: one.resident_bytes),
)


class InstanceMetrics(Collector):
    """The networks of an instance, and what they share."""

    def __init__(self, repository: ModelRepository) -> None:
        self._repository = repository

    def collect(self) -> Iterator[Metric]:
        """Yield everything as it is now."""
        states, instance = self._repository.states(), self._repository.state()
        for name, words, read in _COUNTERS:
            counter = CounterMetricFamily(name, words, labels=["model"])
            for model, state in states.items():
                counter.add_metric([model], read(state))
            yield counter
        for name, words, read in _GAUGES:
            gauge = GaugeMetricFamily(name, words, labels=["model"])
            for model, state in states.items():
                gauge.add_metric([model], read(state))
            yield gauge
        device, memory = instance.utilisation, instance.memory_bytes or 0
        yield GaugeMetricFamily(
            "serfer_device_utilisation", "Share of the last 10 s in which the device computed.", device
        )
        yield GaugeMetricFamily("serfer_networks_memory_bytes", "Bytes that networks may take; 0: no bound.", memory)
