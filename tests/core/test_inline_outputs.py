"""Inline stages: those of the plan, within the limit of payloads."""

from dataclasses import replace

import pytest

from serfer.core.geometry import Rect, Span
from serfer.core.inline_outputs import inline_stages
from serfer.core.plan import CACHE, INLINE, OBJECTS, Cell, Piece, Range, Shape
from tests.core.plans import small_plan


def vectors(lengths, reads, inline):
    """Return a plan of one tile a stage; stage k writes `lengths[k]` values and reads all of stages `reads[k]`."""
    first, template = small_plan().stages
    stages = []
    for number, (length, sources) in enumerate(zip(lengths, reads, strict=True)):
        rects = [Rect(Span(0, 1), Span(0, lengths[source])) for source in sources]
        pieces = tuple(
            Piece(source, 0, (Range(0, lengths[source], 0, (Cell(0, rect),)),))
            for source, rect in zip(sources, rects, strict=True)
        )
        base = template if number else first
        whole = Shape.vector(length).whole
        tile = replace(base.tiles[0], outputs=(whole,), cells=(Cell(0, whole),), pieces=pieces)
        stages.append(
            replace(base, outputs=(Shape.vector(length),), tiles=(tile,), path=INLINE if inline[number] else CACHE),
        )
    return replace(small_plan(), stages=tuple(stages))


THREE = [10, 20, 5], [[], [0], [0, 1]]
TWO = [20, 5], [[], [0]]


@pytest.mark.parametrize(
    ("lengths", "reads", "inline", "batch", "limit", "expected"),
    [
        (*THREE, [True, False, True], 1, 10**6, (True, False, True)),  # the plan's, where everything fits
        (*TWO, [True, True], 1, 84, (True, True)),
        (*TWO, [True, True], 1, 83, (False, True)),
        *((*TWO, [True, True], batch, 80 * 50 + 4, (batch <= 50, True)) for batch in (1, 50, 51)),
        (*THREE, [True, True, True], 1, 4 * 30 + 8, (True, True, True)),  # what a task reads is carried together
        (*THREE, [True, True, True], 1, 4 * 30 + 7, (True, False, True)),
        (*THREE, [False, True, True], 1, 4 * 20 + 4, (False, True, True)),  # what the store has takes no payload
        ([1, 5], [[], [0]], [True, True], 1, 23, (True, False)),
    ],
)
def test_stages_are_inline_within_the_limit_of_payloads(lengths, reads, inline, batch, limit, expected):
    assert inline_stages(vectors(lengths, reads, inline), batch, limit) == expected


def test_many_small_answers_may_exceed_their_readers_payload():
    plan = small_plan()
    assert inline_stages(plan, 1, 10**6) == (False, True)
    first, last = plan.stages
    plan = replace(plan, stages=(replace(first, path=INLINE), last))
    assert inline_stages(plan, 1, 4 * 48 + 8) == (True, True)
    assert inline_stages(plan, 1, 4 * 48 + 7) == (False, True)


def test_object_store_tensors_are_never_inline():
    plan = vectors([10, 20, 5], [[], [0], [0, 1]], [True, True, True])
    apart = replace(plan, stages=(plan.stages[0], replace(plan.stages[1], path=OBJECTS), plan.stages[2]))
    assert inline_stages(apart, 1, 4 * 10 + 4) == (True, False, True)
