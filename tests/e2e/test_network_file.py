"""An .onnx file where a plan directory is taken: its first answer without `split`."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest

from serfer.cli.shared import service_options
from serfer.cli.shared.service_options import as_plans, served_models
from serfer.core.errors import UsageError
from serfer.plan_directory import load_plan
from tests.e2e.small import CLASSES, LABELS, small_onnx, split_small

HERE = ("--workers", "inprocess")
ASSUMED = "serfer: assumed: images of small are stretched to 34 x 34 pixels, RGB, their values times 1/255"
PREPROCESS = 'crop = "none"\nscale = 1.0\n'


@pytest.fixture(scope="session")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("file") / "small.onnx"
    onnx.save(small_onnx(), path)
    return path


@pytest.fixture
def labels(tmp_path):
    path = tmp_path / "labels.txt"
    path.write_text("\n".join(LABELS))
    return path


@pytest.fixture
def preprocess(tmp_path):
    path = tmp_path / "preprocess.toml"
    path.write_text(PREPROCESS)
    return path


def test_classify_takes_a_file_among_its_images_and_says_what_is_assumed(serfer_here, file, examples):
    image = examples / "rocket.jpg"
    first = serfer_here("classify", file, image, *HERE, "--compare")
    assert first.code == 0
    assert (
        f"serfer: reading small.onnx, once: its plan stays in {first.err.split(' stays in ')[1].split()[0]}"
        in first.err
    )
    assert first.err.splitlines()[-1].startswith(ASSUMED)
    assert "difference from the unsplit model: 0.0e+00" in first.out
    assert "%" not in first.out  # no output says that its numbers are shares
    second = serfer_here("classify", image, "--plan", file, *HERE, "--json")
    assert second.err.startswith(ASSUMED)
    assert second.err.count("\n") == 1
    [image] = json.loads(second.out)["images"]
    assert {prediction["label"] for prediction in image["predictions"]} <= {str(number) for number in range(CLASSES)}


def test_only_output_keeps_its_name_scores_say_what_they_are_and_options_of_other_kinds_are_named(
    serfer_here, tmp_path, examples
):
    model, file = small_onnx(), tmp_path / "vectors.onnx"
    model.graph.output[0].name = model.graph.node[-1].output[0] = "embedding"
    onnx.save(model, file)
    asked = (file, examples / "rocket.jpg", *HERE)
    told = serfer_here("predict", *asked, "--json", "--top-k", "2")
    [output] = json.loads(told.out)["images"][0]["outputs"]
    assert (output["name"], len(output["values"]), "--top-k" in told.err) == ("embedding", CLASSES, True)
    assert serfer_here("predict", *asked, "--min-score", "0.5").code == 2
    assert "; scores: the network's own numbers" in serfer_here("classify", *asked).out
    assert "; scores: softmax" in serfer_here("predict", *asked, "--output", "softmax").out
    [written] = json.loads(serfer_here("run", *asked, "--out", tmp_path / "out", "--json").out)["outputs"]
    assert (written["name"], Path(written["file"]).name) == ("embedding", "rocket.embedding.npy")


def test_labels_preprocessing_and_scores_are_given_as_to_split(serfer_here, file, labels, preprocess, examples):
    described = ("--labels", labels, "--preprocess", preprocess, "--output", "softmax")
    told = serfer_here("classify", file, examples / "rocket.jpg", *described, *HERE, "--json", "--top-k", CLASSES)
    assert told.code == 0
    assert "assumed" not in told.err
    [image] = json.loads(told.out)["images"]
    assert {prediction["label"] for prediction in image["predictions"]} == {*LABELS}
    assert sum(prediction["score"] for prediction in image["predictions"]) == pytest.approx(1)


def test_run_takes_a_file_and_arrays(serfer_here, file, tmp_path):
    np.save(tmp_path / "batch.npy", np.zeros((2, 3, 34, 34), np.float32))
    told = serfer_here("run", file, tmp_path / "batch.npy", "--out", tmp_path / "out", *HERE)
    assert told.code == 0, told.err
    assert np.load(tmp_path / "out" / "batch.logits.npy").shape == (2, CLASSES)


def test_a_plan_of_another_size_is_another_plan(serfer_here, tmp_path, examples):
    model = small_onnx()
    for dim in model.graph.input[0].type.tensor_type.shape.dim[2:]:
        dim.dim_param = "any"
    onnx.save(model, tmp_path / "free.onnx")
    refused = serfer_here("classify", "free.onnx", examples / "rocket.jpg", *HERE)
    assert (refused.code, "--size HEIGHTxWIDTH" in refused.err) == (3, True)
    told = serfer_here("classify", "free.onnx", examples / "rocket.jpg", "--size", "20x24", *HERE)
    assert told.code == 0, told.err
    assert "stretched to 20 x 24 pixels" in told.err


@pytest.mark.parametrize(
    "command", ["classify", *(pytest.param(command, marks=pytest.mark.slow) for command in ("run", "predict"))]
)
def test_a_plan_directory_among_the_images_is_the_network(serfer_here, tmp_path, examples, command):
    plan = split_small(tmp_path / "other", activation="sigmoid")
    told = serfer_here(
        command, plan, examples / "rocket.jpg", *HERE, "--json", *(["--out", "o"] if command == "run" else [])
    )
    assert told.code == 0, told.err
    assert json.loads(told.out)["plan"] == load_plan(plan).digest
    serfer_here(command, plan).complains(2, "is a network: name images, too")
    serfer_here(command, plan, "cat.png", "--plan", plan).complains(2, "are several networks: give one")


@pytest.mark.slow
def test_a_network_of_torchvision_is_named_where_a_file_is(serfer_here, examples):
    named = ("classify", "torchvision:shufflenet_v2_x0_5", examples / "rocket.jpg", "--size", "64x64", *HERE)
    refused = serfer_here(*named)
    assert (refused.code, "--random" in refused.err) == (3, True), refused.err
    told = serfer_here(*named, "--random", "--compare")
    assert (told.code, "building torchvision:shufflenet_v2_x0_5, once" in told.err) == (0, True), told.err
    assert "weights: random (seed 0): answers mean nothing" in told.out
    assert "difference from the unsplit model: 0.0e+00" in told.out
    assert "once" not in serfer_here(*named, "--random").err


def test_split_writes_the_plan_of_a_file_as_it_is_and_refuses_what_is_about_parts(serfer_here, file, labels, examples):
    chosen = ("--out", "plan", "--whole")
    written = serfer_here("split", file, *chosen, "--labels", labels, "--memory", "1769", "--set", "weights=zip")
    assert (written.code, "small is kept whole: one function of 1,769 MB" in written.out) == (0, True), written.err
    compared = serfer_here("run", examples / "rocket.jpg", "--plan", "plan", "--out", "out", "--compare", *HERE)
    assert (compared.code, compared.err) == (0, ""), compared.err
    verified = serfer_here("verify", "plan")
    assert (verified.code, "largest error 0.0e+00" in verified.out) == (0, True)


def test_files_plans_and_names_are_served_in_their_order(file, lean, cache, monkeypatch):
    """What a driver behind a balancer is told are plans: it makes none."""
    monkeypatch.setenv("SERFER_CACHE_DIR", str(cache))
    monkeypatch.setattr(service_options, "plan_directory", lambda _plan, _name, **_: lean)
    served = served_models(None, [f"second={lean}"], [f"net={file}", str(lean)])
    assert [*served] == ["net", "small", "second"]
    assert load_plan(served["net"]).tasks == 1
    assert as_plans(served) == [f"--plan={name}={directory}" for name, directory in served.items()]
    assert served_models(None, None, ["alexnet"]) == {"small": lean}
    with pytest.raises(UsageError, match=f"two models are called net: name one of them, NAME={lean}$"):
        served_models(None, None, [f"net={file}", f"net={lean}"])
    unnamed = file.with_name("модель.onnx")
    unnamed.write_bytes(file.read_bytes())
    assert [*served_models(None, None, [str(unnamed)])] == ["network"]
