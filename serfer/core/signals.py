"""Signals of an instance, for autoscaling and for people: INFaaS's section 4 reads such ones every 2 s."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ModelStatus = Literal["unloaded", "loading", "loaded"]


@dataclass(frozen=True)
class EngineSignals:
    """An engine's load: counters since its start, and how it does now.

    `waiting` are images in the queue. `utilisation` is the share, from 0 to 1, of the last 10 s in which the device
    computed for this engine. `interference` is observed over profiled batch time, a moving average. `profiled_ms` is
    what a full batch of `max_batch` images took at the start, `expected_ms` what it is predicted to take now.
    """

    batches: int
    images: int
    refused: int
    waiting: int
    utilisation: float
    interference: float
    max_batch: int
    profiled_ms: float
    expected_ms: float


@dataclass(frozen=True)
class ModelState:
    """A network of an instance: whether it is in memory, what it takes there, and its engine's signals.

    `bytes` is what it takes when loaded, `resident_bytes` what it takes now. `idle_s` is the time since it was last
    used, None where it never was; `load_s` how long its last load took. `failure` is why the last load failed, empty
    where it did not.
    """

    status: ModelStatus
    bytes: int
    resident_bytes: int
    idle_s: float | None
    loads: int
    unloads: int
    load_s: float
    failure: str
    signals: EngineSignals


@dataclass(frozen=True)
class InstanceState:
    """The memory and the device that the networks of an instance share; a `memory_bytes` of None is no bound.

    `utilisation` is the share of the last 10 s in which the device computed.
    """

    device: str
    memory_bytes: int | None
    resident_bytes: int
    utilisation: float
