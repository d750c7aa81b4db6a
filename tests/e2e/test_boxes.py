"""A detector from its file to boxes."""

from dataclasses import replace

import onnx
import pytest

import serfer
from serfer.core.errors import ModelError, PlanError, UsageError
from serfer.core.plan import DetectionHead, dump_plan, parse_plan, sealed
from serfer.plan_directory import load_plan
from tests.e2e.detector import CLASSES, detector_onnx, split_detector


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
    return split_detector(tmp_path_factory.mktemp("detector"))


def test_a_plan_says_where_its_boxes_are(plan):
    assert load_plan(plan).detection == DetectionHead("yolov8", ("output0",), len(CLASSES))


@pytest.mark.parametrize(
    "head",
    [
        DetectionHead("yolov8", ("output1",)),
        DetectionHead("nms", ("output0", "output0", "output0")),
        DetectionHead("end2end", ("boxes",)),
        DetectionHead("yolov8", ("output0",), 2),  # of three labels
    ],
)
def test_a_plan_whose_head_is_of_other_outputs_is_refused(plan, head):
    with pytest.raises(PlanError):
        parse_plan(dump_plan(sealed(replace(load_plan(plan), detection=head))))


def test_what_contradicts_boxes_is_refused(tmp_path):
    path = tmp_path / "detector.onnx"
    onnx.save(detector_onnx(), path)
    with pytest.raises(UsageError, match="with --output boxes there is none"):
        serfer.split(path, out=tmp_path / "plan", activation="boxes", reduce="argmax")
    with pytest.raises(ModelError, match="4 labels for a detector with 3 classes"):
        serfer.split(path, out=tmp_path / "plan", activation="boxes", labels=list("abcd"), grids="1")
