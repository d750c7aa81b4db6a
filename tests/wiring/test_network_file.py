"""A network's file in place of a plan directory: made once, kept by what it depends on, run whole."""

import errno
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import serfer
from serfer.core.errors import ModelError, PlanError, PlanWarning, UnavailableError, UsageError
from serfer.core.exactness import relative_error
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from serfer.splitter.network.description import Description
from serfer.wiring.network_file import assumed_preprocess, assumption, outside_weights, plan_of_file
from tests.e2e.small import CLASSES, LABELS, PREPROCESS, SIZE, batch, small_onnx
from tests.splitter.models import Net

ASSUMED = "stretched to 34 x 34 pixels, RGB, their values times 1/255"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def settings(cache):
    return Settings(cache_dir=cache)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("small") / "small.onnx"
    onnx.save(small_onnx(), path)
    return path


@pytest.fixture
def made(settings):
    def run(path, example=None, settings=settings, **described):
        said = []
        directory = plan_of_file(path, settings, said.append, example, Description(**described))
        return directory, any(text.startswith("reading small.onnx, once") for text in said)

    return run


def whole(path, images):
    return ort.InferenceSession(path).run(None, {"input": images})[0]


def test_a_file_is_opened_as_a_plan_directory_is_and_answers_as_onnx_runtime_does(file, settings):
    with pytest.warns(PlanWarning, match=ASSUMED):
        opened = serfer.open(str(file), store="memory://", settings=settings)
    with opened as pipeline:
        assert (pipeline.plan.model, pipeline.plan.tasks) == ("small", 1)
        images = batch(3)
        assert relative_error(pipeline.run(images), whole(file, images)) < 1e-6
        assert pipeline.run(np.zeros((2, SIZE, SIZE, 3), np.uint8)).shape == (2, CLASSES)


def test_what_says_how_images_and_answers_are_is_the_plans(file, settings, tmp_path):
    described = {"preprocess": PREPROCESS, "labels": LABELS, "activation": "softmax"}
    capitals = shutil.copyfile(file, tmp_path / "SMALL.ONNX")
    with serfer.open(capitals, store="memory://", settings=settings, **described) as pipeline:
        plan = pipeline.plan
    assert plan.model == "SMALL"
    assert (plan.preprocess, plan.labels, plan.activation) == tuple(described.values())
    assert assumption(plan) == ""


def test_a_plan_is_made_once_and_again_when_what_it_depends_on_changes(file, made, tmp_path):
    first, _ = made(file)
    assert made(file) == (first, False)
    other = tmp_path / "small.onnx"
    onnx.save(small_onnx(), other)
    assert made(other) == (first, False)  # wherever it lies
    onnx.save(small_onnx(seed=1), other)
    changed, is_new = made(other, labels=LABELS)
    assert (changed != first, is_new) == (True, True)
    assert load_plan(changed).labels == LABELS
    assert made(other, labels=LABELS) == (changed, False)


def test_weights_in_other_files_count_too(made, tmp_path):
    path = tmp_path / "small.onnx"
    onnx.save(small_onnx(), path, save_as_external_data=True, location="weights", size_threshold=0)
    assert {*outside_weights(path)} == {"weights"}
    first, _ = made(path)
    assert made(path) == (first, False)
    weights = tmp_path / "weights"
    weights.write_bytes((2 * np.frombuffer(weights.read_bytes(), np.float32)).tobytes())
    assert made(path)[0] != first


def test_a_plan_that_was_altered_in_the_cache_is_made_again(made, file, tmp_path):
    settings = Settings(cache_dir=tmp_path / "cache")
    directory, _ = made(file, settings=settings)
    (directory / load_plan(directory).unsplit.path).write_bytes(b"altered")
    assert made(file, settings=settings) == (directory, True)
    assert made(file, settings=settings) == (directory, False)


@pytest.mark.two_at_once
@pytest.mark.slow
def test_processes_that_want_a_plan_at_once_make_it_once(file, tmp_path):
    settings, said = Settings(cache_dir=tmp_path / "cache"), []
    with ThreadPoolExecutor(3) as threads:
        places = [*threads.map(lambda _: plan_of_file(file, settings, said.append), range(3))]
    assert len({*places}) == 1
    assert [text.partition(",")[0] for text in said].count("reading small.onnx") == 1
    assert load_plan(places[0]).model == "small"


def test_a_cache_that_cannot_be_written_serves_the_plans_that_it_has(file, made, monkeypatch, tmp_path):
    settings = Settings(cache_dir=tmp_path / "cache")
    directory, _ = made(file, settings=settings)
    opened = os.open

    def refused(*_, **__):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "utime", refused)
    monkeypatch.setattr(
        os,
        "open",
        lambda path, flags, *rest, **more: (refused if flags & os.O_CREAT else opened)(path, flags, *rest, **more),
    )
    assert made(file, settings=settings) == (directory, False)
    with pytest.raises(UnavailableError, match=r"Read-only .*; it lacks something that this needs"):
        made(file, settings=settings, labels=LABELS)


@pytest.mark.parametrize(
    "step", ["tempfile.mkdtemp", pytest.param("serfer.splitter.plan_dir.assemble.write_plan", marks=pytest.mark.slow)]
)
def test_a_cache_without_room_says_what_to_do_and_keeps_nothing(file, made, monkeypatch, tmp_path, step):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    settings = Settings(cache_dir=tmp_path / "cache")
    with monkeypatch.context() as patch:
        patch.setattr(step, full)
        with pytest.raises(UnavailableError, match=r"cache cannot be used: No space .*; free space"):
            made(file, settings=settings)
    assert [entry.suffix for entry in (tmp_path / "cache" / "plans").iterdir()] == [".lock"]
    assert made(file, settings=settings)[1]


def test_a_file_that_fails_leaves_nothing_in_the_cache(made, tmp_path):
    path = tmp_path / "small.onnx"
    path.write_bytes(b"not a network")
    settings = Settings(cache_dir=tmp_path / "cache")
    with pytest.raises(ModelError, match="not an ONNX model"):
        made(path, settings=settings)
    assert [entry.name for entry in (tmp_path / "cache" / "plans").iterdir() if not entry.name.endswith(".lock")] == []


@pytest.mark.parametrize(
    ("channels", "dtype", "expected"),
    [
        (3, "float32", "RGB, their values times 1/255"),
        (1, "float16", "grey, their values times 1/255"),
        (3, "uint8", "RGB, their values as they are, 0 to 255"),
        (4, "float32", "takes 4 channels of numbers that image files do not have: give it arrays (serfer run FILE.npy"),
        (3, "int8", "(N, 3, 34, 34) float32"),
    ],
)
def test_what_is_assumed_of_images_is_said(file, made, channels, dtype, expected):
    plan = load_plan(made(file)[0])
    plan = replace(plan, input=replace(plan.input, channels=channels), file=replace(plan.file, dtype=dtype))
    plan = replace(plan, preprocess=assumed_preprocess(plan))
    assert expected in assumption(plan)
    assert plan.preprocess is None or len(plan.preprocess.mean) == channels


def test_a_file_of_whole_numbers_gets_an_images_own(settings, tmp_path):
    net = Net(8, 8, 3, opset=13, batch=1)
    mean = net.op("ReduceMean", net.op("Cast", "x", to=onnx.TensorProto.FLOAT), axes=[1, 2], keepdims=0)
    model = net.model(mean, dims=(1, 3))
    model.graph.input[0].type.tensor_type.elem_type = onnx.TensorProto.UINT8
    onnx.save(model, tmp_path / "mean.onnx")
    with pytest.warns(PlanWarning, match="as they are, 0 to 255"):
        opened = serfer.open(tmp_path / "mean.onnx", store="memory://", settings=settings)
    with opened as pipeline:
        pixels = pipeline.pixels([Path(__file__).parents[2] / "examples" / "images" / "chelsea.png"])
        np.testing.assert_allclose(pipeline.run(pixels), pixels.mean((1, 2)), rtol=1e-5)


class TestWrongUse:
    def test_a_file_that_is_not_there_or_none(self, made, tmp_path):
        with pytest.raises(ModelError, match=r"no\.onnx does not exist: give an \.onnx file"):
            made(tmp_path / "no.onnx")
        os.mkfifo(tmp_path / "pipe.onnx")
        with pytest.raises(ModelError, match="is not a file"):
            made(tmp_path / "pipe.onnx")
        with (tmp_path / "large.onnx").open("wb") as file:
            file.truncate(2 * 1024**3 + 1)
        with pytest.raises(ModelError, match="larger than 2 GB"):
            made(tmp_path / "large.onnx")

    def test_a_file_is_not_a_plan_and_its_cache_has_to_be_a_folder(self, file, made, settings, tmp_path):
        with pytest.raises(UsageError, match="has no functions in AWS: split it"):
            serfer.open(file, workers="aws", store="s3://bucket", settings=settings)
        with pytest.raises(UsageError, match="describe a network"):
            serfer.open(made(file)[0], labels=LABELS, settings=settings)
        with pytest.raises(PlanError, match=r"is a network's file, not a plan directory: .*serfer split"):
            load_plan(file)
        (tmp_path / "taken").write_bytes(b"")
        with pytest.raises(UnavailableError, match=r"SERFER_CACHE_DIR: .*taken/cache cannot be used: Not a directory"):
            made(file, settings=Settings(cache_dir=tmp_path / "taken" / "cache"))
