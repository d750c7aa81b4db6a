"""The running instances of functions, and what a policy changes of them in a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from serfer_bench.study.policies.infless.options import Function, Option
from serfer_bench.study.policies.infless.servers import Placement, Servers


@dataclass(frozen=True, slots=True)
class Instance:
    """A running instance; numbers ascend with launches, `function` is the number of its function."""

    number: int
    function: int
    option: Option
    placement: Placement


@dataclass(frozen=True)
class Step:
    """What a policy changed: instances that it launched (a cold start each) and stopped, and what has no room.

    `unplaced` are requests a second that the cluster has no room for. `prewarmed` are instances that start before
    they are needed.
    """

    launched: tuple[Instance, ...] = ()
    stopped: tuple[Instance, ...] = ()
    unplaced: float = 0.0
    prewarmed: tuple[Instance, ...] = ()


@dataclass(frozen=True, slots=True)
class Assignment:
    """The requests a second that an instance gets."""

    instance: Instance
    rate: float


@dataclass(frozen=True, slots=True)
class FrontQueue:
    """A buffer in front of all instances of a function: batches leave it full, or so long after their first request."""

    batch: int
    timeout_s: float


class ClusterPolicy(Protocol):
    """An autoscaler of functions on a cluster of servers. Pure: times and rates come in, changes go out."""

    name: str
    servers: Servers
    functions: Sequence[Function]

    def step(self, now_s: float, rates: Sequence[float]) -> Step:
        """Observe each function's requests a second since the last step, and change the instances. Times ascend."""
        ...

    def assigned(self, function: int, rate: float) -> list[Assignment]:
        """Return the instances that serve a function, and what each gets of a rate."""
        ...

    def front(self, function: int) -> FrontQueue | None:
        """Return the buffer before the instances; None where each instance has a batch queue of its own."""
        ...


class Registry:
    """Numbers instances, and gives back what they occupied."""

    def __init__(self, servers: Servers) -> None:
        self._servers, self._launched = servers, 0

    def launch(self, function: int, option: Option, placement: Placement) -> Instance:
        self._launched += 1
        return Instance(self._launched, function, option, placement)

    def stop(self, instance: Instance) -> Instance:
        self._servers.release(instance.placement)
        return instance
