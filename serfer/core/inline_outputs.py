"""Stages that pass their output by value, in answers and payloads, and which by reference, through a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from serfer.core.plan import Plan
from serfer.core.plan.borders import read_outside

CROP_BYTES = 32 * 1024
"""From here on a crop takes longer in a payload than through a store that answers in a millisecond. ADR 9."""
PAYLOAD_SHARE = 0.7
"""The share of a payload's limit that tensors may take: base64 takes 4/3, and the task's other fields need room."""
ONE_SLOT = 1 << 20
"""Bytes of a query up to which one node of a cluster serves it with fewer round trips than several."""
_Tiles = Counter[tuple[int, int]]


@dataclass(frozen=True)
class DataPaths:
    """The transport of a query's tensors: stages whose outputs go by value; whether its keys share a cluster slot."""

    by_value: tuple[bool, ...]
    one_slot: bool


def data_paths(plan: Plan, batch: int, limit: int, *, gangs: bool = False) -> DataPaths:
    """Return the paths of a query of `batch` images, where payloads and answers carry at most `limit` bytes."""
    by_value = inline_stages(plan, batch, limit, gangs=gangs)
    kept = {stage for gang in plan.gangs for stage in gang.stages if stage not in read_outside(plan, gang)}
    stored = sum(
        stage.written(tile, batch)
        for number, stage in enumerate(plan.stages)
        for tile in stage.tiles
        if not by_value[number] and not (gangs and number in kept)
    )
    return DataPaths(by_value, one_slot=stored <= ONE_SLOT)


def inline_stages(plan: Plan, batch: int, limit: int, *, gangs: bool = False) -> tuple[bool, ...]:
    """Return for each stage whether its tiles answer with their output in a query of `batch` images.

    They do where the plan says so, no answer has more than `limit` bytes, and no later task carries more, whatever it
    reads of the stages before. It depends on nothing else, so all of a query's tasks agree on it. A stage that may not
    goes through the store, however large it is; the store of objects is for those that the plan sends there. Where
    `gangs` run as such, only the last stage of one may, and a member carries what it reads in all of its stages.
    """
    first = {stage: gang.start for gang in plan.gangs for stage in gang.stages} if gangs else {}
    inside = {stage for gang in plan.gangs for stage in gang.stages[:-1]} if gangs else set()
    by_value: _Tiles = Counter()
    chosen = []
    for number, stage in enumerate(plan.stages):
        together = by_value + _bytes_read(plan, number, batch, first)
        largest = max(*(stage.written(tile, batch) for tile in stage.tiles), *together.values(), 0)
        chosen.append(stage.inline and largest <= limit and number not in inside)
        if chosen[-1]:
            by_value = together
    return tuple(chosen)


def _bytes_read(plan: Plan, number: int, batch: int, first: Mapping[int, int]) -> _Tiles:
    sizes: _Tiles = Counter()
    for later in range(number + 1, len(plan.stages)):
        for index, tile in enumerate(plan.stages[later].tiles):
            for piece in tile.pieces:
                if piece.stage == number:
                    sizes[first.get(later, later), index] += sum(part.length(batch) for part in piece.ranges)
    return sizes
