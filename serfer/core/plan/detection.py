"""The head of a detector: which outputs hold its boxes, in which form, and which boxes are kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serfer.core.errors import PlanError

YOLOV5, YOLOV8, YOLOX, END2END, NMS, SELECTED = FAMILIES = ("yolov5", "yolov8", "yolox", "end2end", "nms", "selected")
"""Forms of what detectors give, one image's share (serfer/core/detections.py decodes them)."""
CORNERS = ("xyxy", "yxyx")
ROLES = {
    YOLOV5: ("predictions",),
    YOLOV8: ("predictions",),
    YOLOX: ("predictions",),
    END2END: ("predictions",),
    NMS: ("boxes", "scores", "classes"),
    SELECTED: ("indices", "boxes", "scores"),
}
"""What the outputs of each family are, in the order of `DetectionHead.outputs`."""
MIN_SCORE, MAX_IOU, MAX_BOXES = 0.25, 0.45, 300
BEFORE_CLASSES = {YOLOV5: 5, YOLOV8: 4, YOLOX: 5}
"""Values of a box before those of its classes, in YOLO's families."""
_MOST_BOXES = 1_000
_TABLE, _BOX, _ROW, _TRIPLE = 2, 4, 6, 3  # axes of a table; values of a box, of a whole row, of an index


@dataclass(frozen=True, slots=True)
class DetectionHead:
    """What a detector's outputs are, and which of its boxes are kept.

    `outputs` are the names of those that `ROLES` lists for `family`; of NMS and SELECTED perhaps one more, which says
    how many of the first one's rows there are.
    `classes` is how many there are; 0 where the outputs do not say. `corners` is the order of a box's coordinates where
    a box is two corners, and `relative` says that they are shares of the input's size, and not its pixels.

    Boxes with a score below `min_score` are left out, and so are those whose intersection with a better box of their
    class is more than `max_iou` of the union of both; of the others, the `max_boxes` best are kept. Raises PlanError
    for values that no head has.
    """

    family: str
    outputs: tuple[str, ...]
    classes: int = 0
    min_score: float = MIN_SCORE
    max_iou: float = MAX_IOU
    max_boxes: int = MAX_BOXES
    corners: str = CORNERS[0]
    relative: bool = False

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            raise PlanError(f"the family of a detector should be one of {', '.join(FAMILIES)}, not {self.family!r:.40}")
        if self.corners not in CORNERS:
            raise PlanError(f"a box's corners should be {' or '.join(CORNERS)}, not {self.corners!r:.40}")
        roles = len(ROLES[self.family])
        if len(self.outputs) not in {roles, roles + (self.family in (NMS, SELECTED))} or self.classes < 0:
            raise PlanError(f"a detector of the family {self.family} has {roles} outputs with boxes, and no others")
        for name, share in (("min_score", self.min_score), ("max_iou", self.max_iou)):
            if not 0 <= share <= 1:
                raise PlanError(f"{name} should be 0 to 1, not {share:g}")
        if not 1 <= self.max_boxes <= _MOST_BOXES:
            raise PlanError(f"max_boxes should be 1 to {_MOST_BOXES:,}, not {self.max_boxes}")

    def in_words(self) -> str:
        classes = f" of {self.classes} classes" if self.classes else ""
        overlaps = "" if self.max_iou == 1 else f", none over {self.max_iou:g} of the union with a better one"
        return (
            f"boxes{classes} as {self.family} has them, in {', '.join(self.outputs)}: at most {self.max_boxes}, of a "
            f"score of {self.min_score:g} or more{overlaps} (serfer predict)"
        )


def check_heads(family: str) -> None:
    """Raise PlanError for a family whose file keeps the best boxes itself: windows' boxes cannot be joined."""
    if family not in BEFORE_CLASSES:
        raise PlanError(
            f"a file of the family {family} keeps the best boxes of an image itself, and boxes of windows are chosen "
            "together: export the network without that (nms=None, ultralytics' default)"
        )


def head_fits(head: DetectionHead, dims: Sequence[tuple[int, ...]]) -> bool:
    """Return whether outputs of one image with these `dims`, in the order of `head.outputs`, may be those of `head`."""
    if head.family in BEFORE_CLASSES:
        [table] = dims
        return len(table) == _TABLE and min(table) > BEFORE_CLASSES[head.family]
    if head.family == END2END:
        return len(dims[0]) == _TABLE and dims[0][1] >= _ROW
    if head.family == SELECTED:
        indices, boxes, scores, *count = dims
        tables = all(len(table) == _TABLE for table in dims[:3])
        fits = tables and (indices[1], boxes[1], scores[1]) == (_TRIPLE, _BOX, boxes[0])
    else:
        boxes, scores, classes, *count = dims
        fits = len(boxes) == _TABLE and boxes[1] == _BOX and scores == classes == boxes[:1]
    return fits and count in ([], [()], [(1,)])
