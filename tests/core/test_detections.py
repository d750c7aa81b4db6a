"""Boxes from the outputs of detectors: against plain loops, and against boxes that were drawn into outputs."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from serfer.core.detections import (
    Boxes,
    CocoAnnotation,
    CocoCategory,
    CocoImage,
    best,
    coco,
    decoded,
    detected,
    without_overlaps,
)
from serfer.core.errors import PlanError
from serfer.core.plan.detection import DetectionHead
from serfer.core.report import DetectedObject, PredictedImage
from serfer.mapping import box_grid
from serfer.mapping.box_grid import without_overlaps_by_cells

SIZE = 64, 96  # rows, columns
CELLS = 8 * 12 + 4 * 6 + 2 * 3


def naive(boxes, max_iou, most):
    """Return the kept indices, by a loop over pairs in which nothing is shared with what is tested."""
    kept = []
    for index in range(len(boxes)):
        left, top, right, bottom = boxes.corners[index]
        overlaps = False
        for other in kept:
            other_left, other_top, other_right, other_bottom = boxes.corners[other]
            width = max(0.0, min(right, other_right) - max(left, other_left))
            height = max(0.0, min(bottom, other_bottom) - max(top, other_top))
            union = (right - left) * (bottom - top) + (other_right - other_left) * (other_bottom - other_top)
            union -= width * height
            same = boxes.classes[index] == boxes.classes[other]
            overlaps |= bool(same and width * height > max_iou * union)
        if not overlaps and len(kept) < most:
            kept.append(index)
    return kept


@st.composite
def some_boxes(draw):
    side = st.integers(0, 12)
    rows = draw(st.lists(st.tuples(side, side, side, side, st.integers(0, 2), st.integers(0, 20)), max_size=25))
    corners = [(left, top, left + width, top + height) for left, top, width, height, _, _ in rows]
    return Boxes(
        np.array(corners, dtype=np.float64).reshape(-1, 4),
        np.array([row[5] / 20 for row in rows], dtype=np.float64),
        np.array([row[4] for row in rows], dtype=np.int64),
    )


@given(boxes=some_boxes(), max_iou=st.sampled_from([0.0, 0.25, 0.45, 0.5, 1.0]), most=st.integers(1, 30))
def test_suppression_leaves_what_a_loop_over_pairs_leaves(boxes, max_iou, most):
    assert without_overlaps(boxes, max_iou, most).tolist() == naive(boxes, max_iou, most)


@given(boxes=some_boxes(), min_score=st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_the_best_come_first_and_none_is_below_the_threshold(boxes, min_score):
    kept = best(DetectionHead("nms", ("b", "s", "c"), min_score=min_score, max_iou=0.5), boxes)
    assert (kept.scores >= min_score).all()
    assert (np.diff(kept.scores) <= 0).all()
    again = best(DetectionHead("nms", ("b", "s", "c"), min_score=min_score, max_iou=0.5), kept)
    assert np.array_equal(again.corners, kept.corners)


def planted(columns, boxes, rows=CELLS):
    """Return predictions without a box but for those at some rows."""
    values = np.zeros((rows, columns), dtype=np.float32)
    for row, value in boxes.items():
        values[row] = value
    return values


YOLOV8 = planted(4 + 3, {5: [20, 15, 20, 10, 0.1, 0.8, 0.2], 6: [50, 20, 20, 40, 0.6, 0.1, 0.3]})
YOLOV5 = planted(5 + 2, {5: [20, 15, 20, 10, 0.8, 0.1, 1], 6: [50, 20, 20, 40, 0.75, 0.8, 0]}, 3 * CELLS)
YOLOX = {
    13: [20 / 8 - 1, 15 / 8 - 1, np.log(20 / 8), np.log(10 / 8), 0.8, 0, 1],  # of stride 8: column 1, row 1
    CELLS - 1: [50 / 32 - 2, 20 / 32 - 1, np.log(20 / 32), np.log(40 / 32), 1, 0.6, 0],  # of stride 32: column 2, row 1
}
BEHIND = {5: [20, 15, 20, 10, 0.1, 0.8] + [9.0] * 8, 6: [50, 20, 20, 40, 0.6, 0.1] + [9.0] * 8}
END2END = planted(6, {0: [40, 0, 60, 40, 0.6, 0], 1: [10, 10, 30, 20, 0.8, 1]}, 300)


@pytest.mark.parametrize(
    ("family", "classes", "output"),
    [
        ("yolov8", 3, YOLOV8),
        ("yolov8", 3, YOLOV8.T),
        ("yolov8", 2, planted(4 + 2 + 8, BEHIND).T),
        ("yolov5", 2, YOLOV5),
        ("yolox", 2, planted(7, YOLOX)),
        ("end2end", 2, END2END),
    ],
    ids=["yolov8", "transposed", "columns behind the classes", "yolov5", "yolox", "end2end"],
)
def test_family_finds_the_two_planted_boxes(family, classes, output):
    more = {"max_iou": 1.0} if family == "end2end" else {}
    found = detected(DetectionHead(family, ("out",), classes, **more), {"out": output[None]}, 0, SIZE)
    np.testing.assert_allclose(found.corners, [[10, 10, 30, 20], [40, 0, 60, 40]], atol=1e-4)
    np.testing.assert_allclose(found.scores, [0.8, 0.6], atol=1e-6)
    assert found.classes.tolist() == [1, 0]


@pytest.mark.parametrize("count", [None, 2])
def test_a_file_that_ends_in_suppression(count):
    corners = np.array([[10, 10, 30, 20], [40, 0, 60, 40], [0, 0, 64, 64]], dtype=np.float32)
    scores = np.array([0.8, 0.6, 0.9 if count else 0.0], dtype=np.float32)
    outputs = {"boxes": corners[None], "scores": scores[None], "labels": np.array([[1, 0, 0]])}
    names = ("boxes", "scores", "labels")
    if count:
        outputs["num"] = np.array([[count]])
        names = (*names, "num")
    found = detected(DetectionHead("nms", names, max_iou=1.0), outputs, 0, SIZE)
    assert found.corners.tolist() == corners[:2].tolist()
    assert found.classes.tolist() == [1, 0]
    head = DetectionHead("nms", ("b", "s", "c"), corners="yxyx", relative=True)
    outputs = {"b": np.array([[[0.25, 0.5, 0.75, 1.0]]]), "s": np.array([[0.9]]), "c": np.array([[3.0]])}
    found = detected(head, outputs, 0, SIZE)
    assert (found.corners.tolist(), found.classes.tolist()) == ([[48, 16, 96, 48]], [3])


def test_selected_indices_once_each_and_only_those_that_exist():
    indices = np.array([[0, 1, 2], [0, 0, 1], [0, 1, 2], [0, 7, 0], [0, 0, -1]])
    corners = np.array([[0, 0, 1, 1], [4, 4, 2, 2], [5, 5, 9, 9]], dtype=np.float32)
    scores = np.array([[0, 0.5, 0], [0, 0, 0.7]], dtype=np.float32)
    outputs = {"i": indices[None], "b": corners[None], "s": scores[None]}
    found = detected(DetectionHead("selected", ("i", "b", "s"), max_iou=1.0), outputs, 0, SIZE)
    assert found.corners.tolist() == [[5, 5, 9, 9], [2, 2, 4, 4]]
    assert found.classes.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"family": "rcnn"}, "one of yolov5"),
        ({"outputs": ("a", "b")}, "has 1 outputs"),
        ({"min_score": 1.1}, "min_score should be 0 to 1"),
        ({"max_iou": float("nan")}, "max_iou should be 0 to 1"),
        ({"max_boxes": 0}, "max_boxes should be 1 to"),
        ({"corners": "cxcywh"}, "xyxy or yxyx"),
    ],
)
def test_impossible_heads_and_outputs_are_refused(change, fault):
    with pytest.raises(PlanError, match=fault):
        DetectionHead(**{"family": "yolov8", "outputs": ("out",), **change})
    head = DetectionHead("yolox", ("out",), 2)
    with pytest.raises(PlanError, match="another family"):
        decoded(head, [np.zeros((CELLS + 2, 7), dtype=np.float32)], SIZE)
    assert np.isfinite(decoded(head, [np.full((CELLS, 7), 1e30, dtype=np.float32)], SIZE).corners).all()


def test_boxes_have_corner_and_sides_and_classes_and_images_count_from_one():
    empty = PredictedImage("a.png", height=80, width=120)
    found = PredictedImage(
        "b.png",
        height=40,
        width=50,
        boxes=(
            DetectedObject("cat", 0, 0.9, (3.125, 5.0, 13.5, 25.004)),
            DetectedObject("7", 7, 0.5, (0.0, 1.0, 2.0, 4.0)),
        ),
    )
    data = coco([empty, found], ["cat", "dog"])
    assert data.images == (CocoImage(1, "a.png", 80, 120), CocoImage(2, "b.png", 40, 50))
    assert data.annotations == (
        CocoAnnotation(1, 2, 1, 0.9, (3.12, 5.0, 10.38, 20.0), 207.54),
        CocoAnnotation(2, 2, 8, 0.5, (0.0, 1.0, 2.0, 3.0), 6.0),
    )
    assert data.categories == (CocoCategory(1, "cat"), CocoCategory(2, "dog"), CocoCategory(8, "7"))


SIDES = st.sampled_from([0.0, 0.3, 1.0, 2.0, 7.0, 8.0, 9.0, 63.0, 500.0, 1e7])
PLACES = st.one_of(st.integers(-20, 60).map(float), st.floats(-100, 3000), st.sampled_from([1e9, -1e12]))


@st.composite
def random_boxes(draw):
    rows = draw(st.lists(st.tuples(PLACES, PLACES, SIDES, SIDES, st.integers(0, 2)), max_size=60))
    table = np.array(rows, np.float64).reshape(-1, 5)
    corners = np.concatenate([table[:, :2], table[:, :2] + table[:, 2:4]], axis=1)
    return Boxes(corners, np.linspace(1, 0, len(table)), table[:, 4].astype(np.int64))


@given(
    boxes=random_boxes(), max_iou=st.sampled_from([0.0, 0.05, 0.45, 0.5, 0.9, 1.0]), block=st.sampled_from([1, 3, 2048])
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
