"""Which stages hand their output on inside answers and payloads, and which by way of a store."""

from __future__ import annotations

from collections import Counter

from serfer.core.plan import Plan
from serfer.core.wire import DTYPES

FLOAT_BYTES = DTYPES["float32"]
_Tiles = Counter[tuple[int, int]]


def inline_stages(plan: Plan, batch: int, limit: int) -> tuple[bool, ...]:
    """Say for each stage whether its tiles answer with their output, where `batch` images are asked about.

    They do where the plan says so, no answer has more than `limit` bytes, and no later task carries more, whatever it
    reads of the stages before. It depends on nothing else, so all of a query's tasks agree on it. A stage that may not
    goes through the store, however large it is; the store of objects is for those that the plan sends there.
    """
    most = limit // (FLOAT_BYTES * batch)
    carried: _Tiles = Counter()
    chosen = []
    for number, stage in enumerate(plan.stages):
        together = carried + _read(plan, number)
        fits = all(stage.written(tile) <= most for tile in stage.tiles) and max(together.values(), default=0) <= most
        chosen.append(stage.inline and fits)
        if chosen[-1]:
            carried = together
    return tuple(chosen)


def _read(plan: Plan, number: int) -> _Tiles:
    """Count the values of one image that each later (stage, tile) reads of a stage."""
    found: _Tiles = Counter()
    for later in range(number + 1, len(plan.stages)):
        for index, tile in enumerate(plan.stages[later].tiles):
            for piece in tile.pieces:
                if piece.stage == number:
                    found[later, index] += sum(part.elements for part in piece.ranges)
    return found
