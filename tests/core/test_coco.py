"""Boxes as a COCO data set, against values by hand."""

from serfer.core.detections import CocoAnnotation, CocoCategory, CocoImage, coco
from serfer.core.report import DetectedObject, PredictedImage


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
