"""Tasks that may share an invocation: those of several queries that wait for the same tile of a memory-bound stage.

A fully connected layer takes as long to read its weights as to use them for a handful of images, so a batch costs
little more than one image (INFless, section 3.2, built-in batching). INFless lets a batch wait until it is full or its
time is up. Here nothing waits while a slot is free: an attempt that has to wait for a slot anyway lets the tasks of
some younger queries go first, so that they catch up with it, and the first of a tile to get a slot takes the others
along. How many images one invocation takes, and how long that may delay a query, its deadline decides each time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from serfer.core.costs.vcpus import compute_seconds, vcpus
from serfer.core.plan import Plan, Stage, Tile
from serfer.core.units import FLOAT_BYTES, MS_PER_S

MOST_IMAGES = 16
_MACS_PER_WEIGHT = 8.0  # above that, an image's own arithmetic takes longer than reading the weights
_READ_BYTES_PER_S = 10e9  # of weights from memory, assumed: reading then takes as long as the arithmetic above
_SPARE_SHARE = 0.5  # of the time that a query has to spare: predictions are not promises


def batchable(stage: Stage) -> bool:
    """Return whether a batch costs a stage little more than one image.

    It does for an untiled stage, and for columns of vectors, if they do few multiplications with each weight. Nobody
    counts those of what runs as it is given: there an image's predicted time is at most twice that of reading weights.
    """
    vectors = all(shape.flat for shape in stage.outputs)
    weight_bytes = sum(function.bytes for function in stage.functions)  # small ones stand in the graph
    if stage.macs:
        few = stage.macs <= _MACS_PER_WEIGHT * weight_bytes / FLOAT_BYTES
    else:
        image_ms = sum((tile.serial_ms or 0.0) + (tile.parallel_ms or 0.0) for tile in stage.tiles)
        few = image_ms <= 2 * MS_PER_S * weight_bytes / _READ_BYTES_PER_S
    return few and (stage.grid.tiles == 1 or vectors)


@dataclass(frozen=True)
class BatchTerms:
    """The terms on which tasks of a stage share, in predicted seconds.

    One image more makes a task at most `image_s` longer; a query still takes `rest_s` from the stage's start to its
    own end.
    """

    image_s: float
    rest_s: float


@dataclass(frozen=True)
class Batching:
    """The stages whose tasks share invocations, of at most `most` images each, and on what terms.

    `passing_s` is the predicted time of a query in the whole plan. `bundles` is how many tiles of one query an
    invocation of each stage takes if tasks of several queries do not share it: as many as make no more invocations than
    there are slots; without any, one.
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
    rounds = [-(-stage.grid.tiles // concurrency) for stage in plan.stages]
    seconds = [(stage.predicted_ms or 0.0) / MS_PER_S * times for stage, times in zip(plan.stages, rounds, strict=True)]
    terms = {
        number: BatchTerms(max(_image_s(stage, tile, memory_per_vcpu) for tile in stage.tiles), sum(seconds[number:]))
        for number, stage in enumerate(plan.stages)
        if batchable(stage)
    }
    return Batching(terms, most, sum(seconds), tuple(rounds))


def _image_s(stage: Stage, tile: Tile, memory_per_vcpu: int) -> float:
    """More than one image more adds, as weights are read once; 0 where no explanation.json predicts anything."""
    granted = vcpus(stage.memory_mb, memory_per_vcpu)
    return float(compute_seconds(tile.serial_ms or 0.0, tile.parallel_ms or 0.0, granted)) / MS_PER_S
