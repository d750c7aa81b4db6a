"""Predicted parts of a cold start, by where a function has its weights.

    cold start = copying a zip's weights + process and imports + fetching or reading weights + making sessions of them

Lambda copies a zip onto the environment's disk before it starts the process, at `package_rate`, and does not bill that.
Its weights alone count here: code and dependencies, the same in every function, are part of `init`. Fetched weights
come from a bucket at the bandwidth of an environment, those of a container image block by block, as they are read. An
initialisation is billed as invocations are; but Lambda stops it after `init_limit` seconds, so that weights which take
longer are fetched in the first invocation.

The steps of a plan (stages and gangs) run one after another, their cold starts do not: a driver starts the environments
of all of them as the query starts (drivers/dispatching/prewarming.py). So the first answer is the critical path,

    ready(k) = invocation(k) + cold start(k), and ready(0) = cold start(0): the query's own tasks start that one
    ended(k) = max(ended(k - 1), ready(k)) + warm(k)

where warm(k) is what the step takes in warm environments, its invocations included.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serfer.core.plan import CONTAINER, FETCHED, ZIP

if TYPE_CHECKING:
    from serfer.core.costs.aws import LambdaFacts

COLD_SHARE = 0.02
"""The share of queries that are assumed to find nothing warm, where nothing else is said."""
INIT_SHARE = 0.7
"""The share of Lambda's limit for an initialisation that a predicted one may take."""


@dataclass(frozen=True)
class ColdStart:
    """What a cold start adds to an invocation, in seconds, part by part.

    `package` copies a zip's weights onto the environment, unbilled, `process` starts it and its imports, `fetching` has
    weights from a bucket or an image, `sessions` makes inference sessions of them. Where it is `restored` from a
    snapshot, `process` is the restoring, unbilled, and `fetching` has the weights' pages; the sessions are in it.
    """

    package: float
    process: float
    fetching: float
    sessions: float
    restored: bool = False

    @property
    def seconds(self) -> float:
        return self.package + self.process + self.fetching + self.sessions

    @property
    def billed_seconds(self) -> float:
        return self.fetching + self.sessions + (0.0 if self.restored else self.process)


@dataclass(frozen=True)
class StepTimes:
    """When a step of a query that finds nothing warm has its environments, and when it ends: seconds of the query.

    `waited` is how long it waits for them after the step before has ended.
    """

    ready: float
    waited: float
    ended: float


def critical_path(steps: Iterable[tuple[float, float]]) -> tuple[StepTimes, ...]:
    """Return the times of a plan's steps, given for each when its environments are ready and what it takes then."""
    times: list[StepTimes] = []
    ended = 0.0
    for ready, warm in steps:
        waited = max(ready - ended, 0.0)
        ended += waited + warm
        times.append(StepTimes(ready, waited, ended))
    return tuple(times)


def cold_start(weight_bytes: float, weights_in: str, facts: LambdaFacts, *, snapstart: bool = False) -> ColdStart:
    """Predict a cold start with so many bytes of weights in a place (`Stage.weights_in`), or in a snapshot."""
    if snapstart:
        return ColdStart(0.0, facts.restore, weight_bytes / facts.snapshot_rate, 0.0, restored=True)
    package = weight_bytes / facts.package_rate if weights_in == ZIP else 0.0
    fetching = weight_bytes / facts.image_rate if weights_in == CONTAINER else 0.0
    if weights_in == FETCHED and weight_bytes:
        fetching = facts.fetch_latency + weight_bytes / facts.bandwidth
    return ColdStart(package, facts.init, fetching, weight_bytes / facts.load_rate)


def cold_seconds(weight_bytes: float, weights_in: str, facts: LambdaFacts) -> float:
    return cold_start(weight_bytes, weights_in, facts).seconds


def fetched_at_init(weight_bytes: float, facts: LambdaFacts) -> bool:
    """Return whether an environment fetches its weights while it initialises: otherwise in its first invocation.

    At initialisation where its start is predicted to take less than 0.7 of Lambda's limit. Both are billed alike.
    """
    return cold_seconds(weight_bytes, FETCHED, facts) < INIT_SHARE * facts.init_limit
