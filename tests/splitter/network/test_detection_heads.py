"""Detectors are known by their outputs, or by what --output says of them."""

import pytest

from serfer.core.errors import ModelError, PlanError, UsageError
from serfer.core.plan import OutputTensor, Shape
from serfer.core.plan.detection import DetectionHead
from serfer.splitter.network.detection_heads import BoxOptions, is_boxes

INPUT = Shape(3, 640, 640, flat=False)
COCO = 80


def floats(name, *dims):
    return OutputTensor(name, dims, "float32")


def head(*tensors, text="boxes", labels=0, shape=INPUT):
    return BoxOptions.of(text).head(tensors, shape, labels)


@pytest.mark.parametrize(
    ("dims", "family"), [((84, 8400), "yolov8"), ((25200, 85), "yolov5"), ((8400, 85), "yolox"), ((300, 6), "end2end")]
)
def test_one_output(dims, family):
    found = head(floats("output0", *dims))
    assert (found.family, found.outputs) == (family, ("output0",))
    assert found.classes == (0 if family == "end2end" else COCO)


def test_labels_tell_a_transposed_yolov8_head_from_yolox():
    assert head(floats("output0", 8400, 84), labels=COCO).family == "yolov8"
    assert head(floats("output0", 8400, 85), labels=COCO).family == "yolox"


def test_a_network_that_also_segments_has_fewer_classes_than_columns():
    masks = floats("output1", 32, 160, 160)
    assert head(floats("output0", 116, 8400), masks).classes == COCO
    assert head(floats("output0", 56, 8400), labels=1).classes == 1  # a person and 17 keypoints


def test_training_outputs_beside_the_predictions_are_passed_over():
    others = [floats(f"raw{number}", 3, side, side, 85) for number, side in enumerate((80, 40, 20))]
    assert head(*others, floats("output", 25200, 85)).outputs == ("output",)


@pytest.mark.parametrize(
    ("tensors", "family", "outputs"),
    [
        (
            [floats("boxes", 100, 4), OutputTensor("labels", (100,), "int64"), floats("scores", 100)],
            "nms",
            ("boxes", "scores", "labels"),
        ),
        (
            [
                OutputTensor("num_dets", (1,), "int32"),
                floats("det_boxes", 100, 4),
                floats("det_scores", 100),
                OutputTensor("det_classes", (100,), "int32"),
            ],
            "nms",
            ("det_boxes", "det_scores", "det_classes", "num_dets"),
        ),
        (
            [OutputTensor("selected", (200, 3), "int64"), floats("boxes", 8400, 4), floats("scores", 80, 8400)],
            "selected",
            ("selected", "boxes", "scores"),
        ),
    ],
)
def test_files_that_end_in_suppression(tensors, family, outputs):
    found = head(*tensors)
    assert (found.family, found.outputs, found.max_iou) == (family, outputs, 1.0)


def test_tensorflow_names_boxes_by_rows_and_as_shares():
    names = ("detection_boxes", "detection_scores", "detection_classes", "num_detections")
    boxes, *rest = names
    found = head(floats(boxes, 100, 4), *(floats(name, 100) for name in rest[:2]), floats(rest[2], 1))
    assert found == DetectionHead("nms", names, max_iou=1.0, corners="yxyx", relative=True)


def test_a_family_and_thresholds_that_are_said():
    found = head(floats("out", 1000, 85), text="boxes:yolov5,score=0.1,iou=.6,most=20")
    assert found == DetectionHead("yolov5", ("out",), COCO, min_score=0.1, max_iou=0.6, max_boxes=20)
    assert head(floats("out", 8400, 85), text="boxes:yolov5").family == "yolov5"


@pytest.mark.parametrize(
    "text", ["boxes:rcnn", "boxes,score", "boxes,score=x", "boxes,score=1,score=1", "boxes,iou=-1", "boxes,most=1.5"]
)
def test_what_cannot_be_said_is_refused(text):
    with pytest.raises(UsageError):
        BoxOptions.of(text)
    with pytest.raises(PlanError):
        DetectionHead("", ())
    assert all(map(is_boxes, ("boxes", "boxes:yolov8", "boxes,score=1")))
    assert not any(map(is_boxes, ("softmax", "boxesque")))


def test_thresholds_that_no_head_has_and_outputs_that_no_detector_has():
    with pytest.raises(UsageError, match="min_score"):
        head(floats("out", 84, 8400), text="boxes,score=1.5")
    with pytest.raises(ModelError, match=r"name its family, as in --output boxes:yolov5"):
        head(floats("logits", 1000))
    with pytest.raises(ModelError, match="not those of a detector of the family nms"):
        head(floats("out", 84, 8400), text="boxes:nms")
    with pytest.raises(ModelError, match="81 labels for a detector with 80 classes"):
        head(floats("out", 84, 8400), labels=81)
