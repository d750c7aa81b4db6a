"""Which tasks share an invocation: those of several queries that wait for the same tile of a memory-bound stage.

A fully connected layer takes as long to read its weights as to use them for a handful of images, so a batch costs
little more than one image (INFless, section 3.2, built-in batching). INFless lets a batch wait until it is full or its
time is up. Here nothing waits while a slot is free: an attempt that has to wait for a slot anyway lets the tasks of
some younger queries go first, so that they catch up with it, and whoever of a tile gets a slot takes the others along.
How many images one invocation takes, and how long that may delay anybody, is each time decided by the deadlines.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from serfer.core.costs.vcpus import compute_seconds, vcpus
from serfer.core.plan import Plan, Stage, Tile
from serfer.core.wire import Task

MOST_IMAGES = 16
_MACS_PER_WEIGHT = 8.0  # above that, an image's own arithmetic takes longer than reading the weights
_WEIGHT_BYTES = 4
_SPARE_SHARE = 0.5  # of the time that a query has to spare: predictions are not promises
_MS_PER_S = 1000


def batchable(stage: Stage) -> bool:
    """Say whether a batch costs a stage little more than one image.

    It does for an untiled stage, and for columns of vectors, if they do few multiplications with each weight.
    """
    vectors = all(shape.flat for shape in stage.outputs)
    weights = sum(function.bytes for function in stage.functions) / _WEIGHT_BYTES  # small ones stand in the graph
    return (stage.grid.tiles == 1 or vectors) and stage.macs <= _MACS_PER_WEIGHT * weights


@dataclass(frozen=True)
class BatchTerms:
    """On what terms tasks of a stage share, in predicted seconds.

    One image more makes a task at most `image_s` longer; a query still takes `rest_s` from the stage's start to its
    own end.
    """

    image_s: float
    rest_s: float


@dataclass(frozen=True)
class Batching:
    """The stages whose tasks share invocations, of at most `most` images each, and on what terms.

    `passing_s` is the predicted time in which one query goes through the whole plan. `bundles` says how many tiles of
    one query each stage's invocations take where tasks of several queries do not share: as many as make no more
    invocations than can be under way.
    """

    stages: Mapping[int, BatchTerms]
    most: int
    passing_s: float
    bundles: tuple[int, ...] = ()

    def max_queue_jumps(self, stage: int, images: int, left_s: float) -> int:
        """Return how many younger queries may go first, where a query of so many images has `left_s` seconds left."""
        fit = self.most // images - 1
        spare = _SPARE_SHARE * (left_s - self.stages[stage].rest_s)
        if fit <= 0 or spare <= 0:
            return 0
        return min(fit, int(spare / self.passing_s)) if self.passing_s else fit


def plan_batching(plan: Plan, memory_per_vcpu: int, concurrency: int, most: int = MOST_IMAGES) -> Batching:
    """Return how tasks of a plan's stages share invocations, of which `concurrency` are under way at once."""
    rounds = [-(-stage.grid.tiles // concurrency) for stage in plan.stages]
    seconds = [stage.predicted_ms / _MS_PER_S * times for stage, times in zip(plan.stages, rounds, strict=True)]
    terms = {
        number: BatchTerms(max(_image_s(stage, tile, memory_per_vcpu) for tile in stage.tiles), sum(seconds[number:]))
        for number, stage in enumerate(plan.stages)
        if batchable(stage)
    }
    return Batching(terms, most, sum(seconds), tuple(rounds))


def _image_s(stage: Stage, tile: Tile, memory_per_vcpu: int) -> float:
    """Return a tile's predicted compute for one image: more than one image more adds, as weights are read once."""
    granted = vcpus(stage.memory_mb, memory_per_vcpu)
    return float(compute_seconds(tile.serial_ms, tile.parallel_ms, granted)) / _MS_PER_S


@dataclass(frozen=True, eq=False)
class Pending:
    """An attempt that waits for a slot; the lowest `age` is the oldest.

    `answered` are the bytes of tensors that its answer will carry; `deadline` is its query's, on the driver's clock.
    """

    age: int
    task: Task
    answered: int
    deadline: float


_W = TypeVar("_W", bound=Pending)


class BatchQueue(Generic[_W]):
    """The attempts that wait for a slot and may share, by stage and tile; a query has one of a tile at most.

    No payload and no answer of a shared invocation has more than `limit` bytes of tensors.
    """

    def __init__(self, batching: Batching, limit: int) -> None:
        self.batching = batching
        self._limit = limit
        self._groups: defaultdict[tuple[int, int], dict[str, _W]] = defaultdict(dict)

    def enter(self, one: _W) -> None:
        """Let an attempt that begins to wait be found by others."""
        self._groups[one.task.stage, one.task.tile][one.task.query] = one

    def leave(self, stage: int, tile: int, query: str) -> None:
        """Forget a query's attempt that is given up, if it waits here."""
        self._groups[stage, tile].pop(query, None)

    def take(self, first: _W, now: float) -> list[_W]:
        """Return who shares the invocation of an attempt that got its slot, itself first; none of them waits any more.

        The oldest come first, as far as there is room and time. Whoever cannot wait for the others' images goes alone.
        """
        group, terms = self._groups[first.task.stage, first.task.tile], self.batching.stages[first.task.stage]
        group.pop(first.task.query, None)
        chosen, asked = [first], _asked(first, now, terms)
        for other in sorted(group.values(), key=lambda one: one.age):
            if asked.images == self.batching.most:
                break
            together = asked + _asked(other, now, terms)
            if self._fits(together, terms):
                chosen.append(group.pop(other.task.query))
                asked = together
        return chosen

    def _fits(self, asked: _Asked, terms: BatchTerms) -> bool:
        sizes = max(asked.carried, asked.answered) <= self._limit
        return asked.images <= self.batching.most and sizes and asked.images * terms.image_s <= asked.allowed_s


@dataclass(frozen=True)
class _Asked:
    """What tasks ask of an invocation: images, bytes in and out, and for how many seconds of images it may compute."""

    images: int
    carried: int
    answered: int
    allowed_s: float

    def __add__(self, other: _Asked) -> _Asked:
        return _Asked(
            self.images + other.images,
            self.carried + other.carried,
            self.answered + other.answered,
            min(self.allowed_s, other.allowed_s),
        )


def _asked(one: Pending, now: float, terms: BatchTerms) -> _Asked:
    spare_s = one.deadline - now - terms.rest_s
    allowed_s = spare_s + one.task.batch * terms.image_s
    return _Asked(one.task.batch, one.task.carried, one.answered, allowed_s)
