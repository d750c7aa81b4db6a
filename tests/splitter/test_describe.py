import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import serfer
from serfer.cli.main import app
from serfer.core.errors import InputError, ModelError, PlanError, UsageError
from serfer.core.plan import Pad, Preprocess, sealed
from serfer.plan_directory import load_cold_plan, load_plan, write_plan
from serfer.splitter.time_left import TimeLeft
from tests.e2e.detector import CLASSES as DETECTED
from tests.e2e.detector import split_detector
from tests.e2e.small import LABELS, PREPROCESS, split_small
from tests.splitter.models import Net
from tests.support.hand_clock import Clock

PADDED = Preprocess(None, "opencv-bilinear", "BGR", 1.0, (100.0, 110.0, 120.0), (50.0, 60.0, 70.0), Pad("centre", 114))
TOML = """
pad = "centre"
channels = "BGR"
scale = 1
mean = [100, 110, 120]
std = [50, 60, 70]
"""


@pytest.fixture(scope="module")
def undescribed(tmp_path_factory):
    return split_small(tmp_path_factory.mktemp("bare"), preprocess=None, labels=(), activation=None)


@pytest.fixture(scope="module")
def padded(tmp_path_factory):
    return split_small(tmp_path_factory.mktemp("padded"), preprocess=PADDED)


@pytest.fixture
def directory(undescribed, tmp_path):
    return shutil.copytree(undescribed, tmp_path / "plan")


@pytest.fixture
def picture(tmp_path):
    path = tmp_path / "picture.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (50, 90, 3), dtype=np.uint8)).save(path)
    return path


def answers(directory, picture):
    with serfer.open(directory, workers="inprocess") as pipeline:
        [result] = pipeline.classify([picture], top_k=len(LABELS))
        return [(prediction.label, prediction.score) for prediction in result.predictions]


def test_a_described_plan_answers_as_one_that_was_split_so(directory, padded, picture):
    digest = load_plan(directory).digest
    with pytest.raises(PlanError, match="serfer describe DIR --preprocess FILE"):
        answers(directory, picture)
    plan = serfer.describe(directory, preprocess=PADDED, labels=LABELS, activation="softmax")
    assert plan == load_plan(directory)
    assert plan.digest == digest
    assert answers(directory, picture) == answers(padded, picture)


def test_workers_that_know_the_old_preprocessing_apply_the_new_one(padded, tmp_path, picture):
    plan = shutil.copytree(padded, tmp_path / "other")
    serfer.describe(plan, preprocess=PREPROCESS)
    original = split_small(tmp_path / "original")
    assert answers(plan, picture) == answers(original, picture)
    assert answers(plan, picture) != answers(padded, picture)


def test_what_is_not_given_stays_and_what_was_comes_back(directory):
    before = (directory / "plan.json").read_bytes()
    serfer.describe(directory, labels=LABELS)
    plan = serfer.describe(directory, activation="sigmoid")
    assert (plan.labels, plan.activation, plan.preprocess) == (LABELS, "sigmoid", None)
    serfer.describe(directory, labels=(), activation="none")
    assert (directory / "plan.json").read_bytes() == before


def test_a_cold_plan_is_described_too(directory):
    cold = directory / "cold"
    shutil.copytree(directory, cold)
    plan = load_plan(cold)
    slower = tuple(replace(stage, memory_mb=stage.memory_mb + 1) for stage in plan.stages)
    write_plan(sealed(replace(plan, stages=slower)), cold)
    plan = serfer.describe(directory, preprocess=PADDED)
    assert load_cold_plan(directory, plan).preprocess == PADDED


def test_answers_that_were_kept_are_not_given_for_another_description(directory):
    def keys():
        with serfer.open(directory, workers="inprocess", cache_s=60) as pipeline:
            return pipeline.asynchronous._cache.key([b"image"])

    serfer.describe(directory, preprocess=PADDED)
    first = keys()
    serfer.describe(directory, preprocess=PREPROCESS)
    assert keys() != first


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"labels": ["a", "b"]}, InputError, "2 labels for a network with 7 outputs"),
        ({"activation": "relu"}, UsageError, "boxes, softmax, sigmoid or none"),
        (
            {"preprocess": replace(PADDED, channels="L", mean=(0.0,), std=(1.0,))},
            PlanError,
            "takes 3 channels, its preprocessing gives L",
        ),
        ({"preprocess": "missing.toml"}, InputError, "missing.toml does not exist"),
    ],
)
def test_mistakes_change_nothing(directory, given, error, words):
    before = (directory / "plan.json").read_bytes()
    with pytest.raises(error, match=words):
        serfer.describe(directory, **given)
    assert (directory / "plan.json").read_bytes() == before
    with pytest.raises(PlanError, match="is not a plan directory"):
        serfer.describe(directory.parent, activation="none")


class TestBoxes:
    @pytest.fixture
    def detector(self, tmp_path):
        """A plan that was split without a word on its boxes."""
        return split_detector(tmp_path / "detector", activation=None, labels=())

    def test_boxes_are_said_later_and_taken_back(self, detector):
        before = load_plan(detector)
        plan = serfer.describe(detector, activation="boxes,score=0.5", labels=DETECTED)
        assert (plan.detection.family, plan.detection.classes, plan.detection.min_score) == ("yolov8", 3, 0.5)
        assert load_plan(detector) == plan
        assert plan.digest == before.digest
        assert serfer.describe(detector, labels=DETECTED[:2]).detection.classes == 2
        assert serfer.describe(detector, activation="none", labels=()) == before

    def test_outputs_of_other_networks_are_refused(self, detector, directory):
        with pytest.raises(ModelError, match="not those of a detector"):
            serfer.describe(directory, activation="boxes")
        with pytest.raises(ModelError, match="4 labels for a detector with 3 classes"):
            serfer.describe(detector, activation="boxes", labels=list("abcd"))
        assert load_plan(detector).detection is None


class TestCommand:
    def run(self, *arguments):
        return CliRunner().invoke(app, ["describe", *map(str, arguments)], catch_exceptions=False)

    def test_it_changes_and_shows_a_plan(self, directory, tmp_path):
        shown = self.run(directory).output
        assert "the plan takes arrays only" in shown
        assert "no labels: classes are numbers" in shown
        (tmp_path / "p.toml").write_text(TOML)
        (tmp_path / "labels.txt").write_text("\n".join(LABELS))
        done = self.run(
            directory, "--preprocess", tmp_path / "p.toml", "--labels", tmp_path / "labels.txt", "--output", "softmax"
        )
        assert load_plan(directory).preprocess == PADDED
        assert (
            "an image is padded with 114 to 34 x 34 pixels (centre), opencv-bilinear; BGR; "
            "(x - (100, 110, 120)) / (50, 60, 70)" in done.output
        )
        assert "7 labels: label-0, label-1, label-2, label-3, label-4, ..." in done.output
        assert "start what serves the plan again" in done.output.replace("\n", " ")
        detector = split_detector(tmp_path / "detector", activation=None, labels=())
        shown = self.run(detector, "--output", "boxes:yolov8").output
        assert "boxes of 3 classes as yolov8 has them, in output0" in shown
        shown = json.loads(self.run(directory, "--json").stdout)
        assert (shown["activation"], shown["preprocess"]["pad"]) == ("softmax", {"place": "centre", "value": 114})


@pytest.fixture
def steps():
    return []


def left_in(steps):
    return [int(step.partition("(about ")[2].partition(" s left)")[0]) for step in steps]


def test_time_is_known_from_the_first_step_and_runs_down(steps):
    clock = Clock()
    left = TimeLeft(steps.append, nn.Sequential(*(nn.ReLU() for _ in range(300))), clock)
    for _ in range(4):
        left("a step")
        clock.now += 1.0
    assert left_in(steps) == sorted(left_in(steps), reverse=True)
    assert left_in(steps)[0] > left_in(steps)[-1] > 0


def test_a_machine_that_is_slower_than_expected_has_more_left(steps):
    for taken in (1.0, 60.0):
        clock = Clock()
        left = TimeLeft(steps.append, "alexnet", clock)
        clock.now += taken
        left.begin()
        left("choosing")
    fast, slow = left_in(steps)
    assert slow > 10 * fast


def test_the_network_that_was_read_says_what_follows(steps):
    net = Net(3, 64, 64)
    graph = net.graph(net.linear(net.flat("x"), 3 * 64 * 64, 5))
    left = TimeLeft(steps.append, "net.onnx", Clock())
    left.expect(graph)
    left.begin()
    left("choosing")
    for _ in range(9):
        left.begin()
    left("checking again")
    assert left_in(steps) == [1, 1]
