"""Boxes of text from a map of probabilities, by the rules of differentiable binarisation, and their comparison.

Boxes are arrays (N, 5) of float32: the first row and column, the row and column behind the last, and the score.

Liao and others, "Real-time scene text detection with differentiable binarization", AAAI 2020, section 3.5; the numbers
are those of the package rapidocr-onnxruntime 1.4.4 (config.yaml) for PP-OCRv4. Its rectangles may be turned, these not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

Boxes = NDArray[np.float32]
Fate = Literal["same", "cut", "doubled", "lost"]

TEXT = 0.3  # a pixel with more is text
_SCORE, _UNCLIP, _LEAST_SIDE = 0.5, 1.6, 3
_SAME_IOU, _OVERLAP = 0.9, 0.5


def text_boxes(probabilities: NDArray[np.float32]) -> Boxes:
    """Return the boxes of a map (H, W): of pixels that touch one another and are text, enlarged to their letters' ends.

    Pixels of text are widened by one down and to the right first. What is narrower than 3 pixels, or whose rectangle
    has a mean of less than 0.5, which is its score, is no box.
    """
    text = probabilities > TEXT
    text[1:] |= text[:-1].copy()
    text[:, 1:] |= text[:, :-1].copy()
    labels, _ = ndimage.label(text, structure=np.ones((3, 3)), output=np.int32)
    found = []
    for rows, cols in ndimage.find_objects(labels):
        high, wide = rows.stop - rows.start, cols.stop - cols.start
        score = float(probabilities[rows, cols].mean())
        if min(high, wide) < _LEAST_SIDE or score < _SCORE:
            continue
        more = round(high * wide * _UNCLIP / (2 * (high + wide)))
        found.append((rows.start - more, cols.start - more, rows.stop + more, cols.stop + more, score))
    boxes = np.array(found, np.float32).reshape(-1, 5)
    limit = [*probabilities.shape] * 2
    boxes[:, :4] = np.clip(boxes[:, :4], 0, limit)
    return boxes


def merged(boxes: Boxes, least: float = 0.5) -> Boxes:
    """Return boxes of overlapping windows as SAHI 0.12.8 does by default (GREEDYNMM, IOS, 0.5).

    From the best box on, each takes in those that share `least` of the smaller one's area with it, as long as they
    still do with what it has become, and has the rectangle around all of them. Of boxes as good, the leftmost is first.
    """
    top, left, bottom, right, scores = boxes.T
    boxes = boxes[np.lexsort((bottom, right, top, left, -scores))]
    alone = np.ones(len(boxes), bool)
    kept = []
    for number, box in enumerate(boxes):
        if not alone[number]:
            continue
        alone[number] = False
        candidates = np.flatnonzero(alone & (of_smaller(boxes, box) >= least))
        alone[candidates] = False
        grown = box.copy()
        for other in boxes[candidates]:
            if of_smaller(other[None], grown)[0] >= least:
                grown[:2] = np.minimum(grown[:2], other[:2])
                grown[2:4] = np.maximum(grown[2:4], other[2:4])
        kept.append(grown)
    return np.array(kept, np.float32).reshape(-1, 5)


def areas(boxes: NDArray[Any]) -> NDArray[Any]:
    sides = boxes[..., 2:4] - boxes[..., :2]
    return np.asarray(sides[..., 0] * sides[..., 1])


def shared(boxes: Boxes, box: Boxes) -> NDArray[Any]:
    """Return the areas (N,) that boxes share with another one (5,)."""
    low, high = np.maximum(boxes[:, :2], box[:2]), np.minimum(boxes[:, 2:4], box[2:4])
    return np.asarray(np.maximum(high - low, 0).prod(axis=1))


def of_smaller(boxes: Boxes, box: Boxes) -> NDArray[Any]:
    """Return what boxes share with another one, relative to the smaller one of each pair."""
    smaller = np.minimum(areas(boxes), areas(box))
    return np.asarray(shared(boxes, box) / np.maximum(smaller, 1))


def belonging(boxes: Boxes, box: Boxes) -> NDArray[np.bool_]:
    """Return which boxes share with another one more than half of the smaller one of the two."""
    return np.asarray(of_smaller(boxes, box) > _OVERLAP)


@dataclass(frozen=True)
class Fates:
    """What became of each box of the reference, and how many boxes belong to none of them.

    A box of the reference is lost if no box belongs to it (`belonging`), doubled if two or more do, and else the same
    where intersection over union is 0.9 at least, or cut: a part of it, or more than it.
    """

    of: tuple[Fate, ...]
    added: int

    def count(self, fate: Fate) -> int:
        return self.of.count(fate)


def fates(boxes: Boxes, reference: Boxes) -> Fates:
    near = np.zeros(len(boxes), bool)
    found: list[Fate] = []
    for box in reference:
        belong = belonging(boxes, box)
        near |= belong
        found.append(_fate(boxes[belong], box))
    return Fates(tuple(found), int((~near).sum()))


def _fate(found: Boxes, box: Boxes) -> Fate:
    if len(found) != 1:
        return "doubled" if len(found) else "lost"
    common = shared(found, box)[0]
    union = areas(found)[0] + areas(box) - common
    return "same" if common / union >= _SAME_IOU else "cut"
