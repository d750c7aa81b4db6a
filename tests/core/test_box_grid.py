"""Suppression by cells keeps what the plain loop keeps, whatever the boxes, and compares few pairs of many boxes."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from serfer.core import box_grid
from serfer.core.box_grid import without_overlaps_by_cells
from serfer.core.detections import Boxes, without_overlaps

SIDES = st.sampled_from([0.0, 0.3, 1.0, 2.0, 7.0, 8.0, 9.0, 63.0, 500.0, 1e7])
PLACES = st.one_of(st.integers(-20, 60).map(float), st.floats(-100, 3000), st.sampled_from([1e9, -1e12]))


@st.composite
def some_boxes(draw):
    rows = draw(st.lists(st.tuples(PLACES, PLACES, SIDES, SIDES, st.integers(0, 2)), max_size=60))
    table = np.array(rows, np.float64).reshape(-1, 5)
    corners = np.concatenate([table[:, :2], table[:, :2] + table[:, 2:4]], axis=1)
    return Boxes(corners, np.linspace(1, 0, len(table)), table[:, 4].astype(np.int64))


@given(
    boxes=some_boxes(), max_iou=st.sampled_from([0.0, 0.05, 0.45, 0.5, 0.9, 1.0]), block=st.sampled_from([1, 3, 2048])
)
@settings(max_examples=300, deadline=None)
@example(  # one box is a million times as large as the other
    boxes=Boxes(np.array([[0, 0, 1e7, 1e7], [5, 5, 5.3, 5.3]]), np.array([1.0, 0.5]), np.zeros(2, np.int64)),
    max_iou=0.0,
    block=1,
)
@example(boxes=Boxes(np.zeros((0, 4)), np.zeros(0), np.zeros(0, np.int64)), max_iou=0.5, block=1)
def test_cells_keep_what_the_plain_loop_keeps(boxes, max_iou, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(box_grid, "_FIRST_BLOCK", block)
        kept = without_overlaps_by_cells(boxes, max_iou)
    assert kept.tolist() == without_overlaps(boxes, max_iou, len(boxes) + 1).tolist()


def objects(count, each, seed=0):
    """`count` objects in a square of 30,000 pixels, each found `each` times, in order of their scores."""
    random = np.random.default_rng(seed)
    centres = np.repeat(random.uniform(0, 30_000, (count, 2)), each, axis=0) + random.normal(0, 2, (count * each, 2))
    halves = np.repeat(np.exp(random.uniform(1.5, 4, (count, 2))), each, axis=0) * random.uniform(
        0.9, 1.1, (count * each, 2)
    )
    classes = np.repeat(random.integers(0, 5, count), each)
    order = random.permutation(count * each)
    corners = np.concatenate([centres - halves, centres + halves], axis=1)[order]
    return Boxes(corners, np.linspace(1, 0, count * each), classes[order])


def test_a_hundred_thousand_boxes_are_compared_in_few_pairs(monkeypatch):
    boxes, compared = objects(20_000, 5), []

    def overlapping(self, ones, others):
        compared.append(len(ones))
        return original(self, ones, others)

    original = box_grid._Grids._overlapping
    monkeypatch.setattr(box_grid._Grids, "_overlapping", overlapping)
    kept = boxes[without_overlaps_by_cells(boxes, 0.45)]
    assert sum(compared) < 100 * len(boxes)  # all pairs are 50,000 times the boxes
    assert max(compared) <= box_grid._MOST_PAIRS
    inside = (kept.corners[:, :2] < 3_000).all(axis=1)
    near = boxes[(boxes.corners[:, :2] < 3_500).all(axis=1)]
    plain = near[without_overlaps(near, 0.45, len(near))]
    assert np.array_equal(kept.corners[inside], plain.corners[(plain.corners[:, :2] < 3_000).all(axis=1)])


def test_boxes_on_one_place_take_bounded_memory(monkeypatch):
    monkeypatch.setattr(box_grid, "_MOST_PAIRS", 10_000)
    corners = np.tile([10.0, 10.0, 50.0, 50.0], (3_000, 1))
    boxes = Boxes(corners, np.linspace(1, 0, 3_000), np.zeros(3_000, np.int64))
    assert without_overlaps_by_cells(boxes, 0.45).tolist() == [0]
