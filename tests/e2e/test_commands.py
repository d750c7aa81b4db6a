"""The command line without errors."""

import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import onnx
import pytest
from onnx import helper

import serfer
from serfer.core.plan import Artefact, sealed
from serfer.plan_directory import file_sha256, load_plan, write_plan
from tests.e2e.conftest import keys
from tests.e2e.small import CLASSES, LABELS, SIZE

ANSWERS = {"chelsea.png": "Egyptian cat", "coffee.png": "espresso", "rocket.jpg": "missile"}
FIELDS = {
    "": {
        *("model", "images", "latency_ms", "cost_usd", "plan", "target", "stages", "store", "retries", "hedges"),
        *("restarts", "weights", "untrained", "wait_gb_s", "disbanded", "warm_ups", "plan_reason"),
    },
    "images": {"name", "predictions"},
    "predictions": {"label", "index", "score"},
    "stages": {
        *("name", "grid", "tasks", "ms", "cold", "bytes_in", "bytes_out"),
        *("gang", "bytes_exchanged", "wait_ms", "fetch_ms"),
    },
    "store": {"bytes_put", "bytes_get", "puts", "gets", "exists"},
}


def check_fields(answer):
    assert set(answer) == FIELDS[""]
    for image in answer["images"]:
        assert set(image) == FIELDS["images"]
        assert all(set(prediction) == FIELDS["predictions"] for prediction in image["predictions"])
    assert all(set(stage) == FIELDS["stages"] for stage in answer["stages"])
    assert set(answer["store"]) == FIELDS["store"]


@pytest.mark.slow
def test_the_zoo_model_recognises_real_photographs(serfer_, serfer_here, examples, tmp_path):
    """The main job with all its defaults: split once, and a plan of one function computes in the process itself."""
    result = serfer_(
        *("classify", "--demo", *(examples / name for name in ANSWERS), "--json", "--top-k", "3"),
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "torch"),  # torch's export would make one in TMPDIR
    )
    assert result.code == 0
    lines = result.err.splitlines()
    assert lines == [] or lines[0].startswith("serfer: planning efficientnet-lite0, once")
    assert all(line.startswith("serfer: ") for line in lines)
    answers = list(map(json.loads, result.lines))
    for answer, (name, label) in zip(answers, ANSWERS.items(), strict=True):
        check_fields(answer)
        [image] = answer["images"]
        assert image["name"] == str(examples / name)
        assert len(image["predictions"]) == 3
        assert image["predictions"][0]["label"] == label
        assert (answer["model"], answer["weights"]) == ("efficientnet-lite0", "ImageNet (pretrained)")
        assert answer["untrained"] is False
        assert answer["store"]["exists"] == 0
        assert [stage["grid"] for stage in answer["stages"]] == ["1"]
    assert [answer["stages"][0]["cold"] for answer in answers] == [0, 0, 0]  # no function starts
    again = serfer_here("classify", "--demo", examples / "rocket.jpg", "--compare")
    assert again.code == 0
    assert "missile" in again.out
    assert "efficientnet-lite0, weights: ImageNet (pretrained)" in again.out
    assert "same first class" in again.out
    [hint] = [line for line in again.lines if line.startswith("efficientnet-lite0 is whole, as serfer split advises")]
    split, show = re.search("To see them: serfer (split .*), then serfer (classify .*)", hint).groups()
    assert serfer_(*split.split(), TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "torch")).code == 0
    tiled = serfer_here(*show.replace("IMAGE", str(examples / "rocket.jpg")).split(), "--workers", "inprocess")
    assert tiled.code == 0
    assert "missile" in tiled.out
    assert "same first class" in tiled.out
    assert [line.split()[1:3] for line in tiled.lines if line.startswith("stage-")] == [
        ["2x2", "4"],
        ["2x2", "4"],
        ["1", "1"],
    ]


def test_text_lists_classes_and_stages_and_gives_times_of_this_machine_no_price(serfer_here, lean, examples):
    """A cold query on two cores at the price of 5,307 MB looked 10 to 100 times dearer than what Lambda charges."""
    images = (examples / "rocket.jpg", examples / "coffee.png")
    shown = serfer_here("classify", "--plan", lean, *images, "--compare", "--top-k", "2")
    assert (shown.code, shown.err) == (0, "")
    assert sum("label-" in line for line in shown.lines) == sum(line.startswith("stage-") for line in shown.lines) == 4
    for words in ("rocket.jpg", "2 cold", "0 polls", "0 retries", "same first class"):
        assert words in shown.out
    first, second = [line for line in shown.lines if "$" in line]
    predicted = f"${load_plan(lean).predicted_usd * 1e6:.2f} for a million queries of one image on Lambda, warm"
    assert first.startswith(predicted)
    assert first.endswith("this machine's, 3 of 3 tasks cold")
    assert second.startswith(predicted)
    assert second.endswith("this machine's")


@pytest.mark.exact
@pytest.mark.slow
def test_every_store_gives_the_same_answer(serfer_here, plan, lean, examples, redis, tmp_path):
    def scores(*options, directory=plan):
        result = serfer_here(
            "classify", "--plan", directory, examples / "coffee.png", "--json", "--top-k", "70", *options
        )
        assert (result.code, result.err) == (0, "")
        [answer] = map(json.loads, result.lines)
        check_fields(answer)
        assert answer["store"]["exists"] == 0
        return {one["label"]: round(one["score"], 4) for one in answer["images"][0]["predictions"]}

    expected = scores("--workers", "inprocess")
    assert set(expected) == set(LABELS)
    assert scores("--workers", "inprocess", "--store", "memory://") == expected
    assert scores("--workers", "inprocess", "--store", redis) == expected
    assert scores("--store", f"file://{tmp_path / 'store'}", directory=lean) == expected
    assert scores("--store", redis, directory=lean) == expected
    assert keys(redis) == []


def test_an_image_may_come_from_standard_input(serfer_, serfer_here, plan, examples):
    data = (examples / "rocket.jpg").read_bytes()
    result = serfer_("classify", "--plan", plan, "--workers", "inprocess", "-", "--json", stdin=data)
    assert (result.code, result.err) == (0, "")
    [by_name] = serfer_here(
        "classify", "--plan", plan, "--workers", "inprocess", examples / "rocket.jpg", "--json"
    ).lines
    [image], [same] = json.loads(result.out)["images"], json.loads(by_name)["images"]
    assert image == {**same, "name": "-"}


def test_file_names_may_be_anything(serfer_here, plan, examples, tmp_path):
    names = [b"two\nlines.jpg", b"\xff\xfe.jpg", "größe [bold].jpg".encode(), b"-dash.jpg"]
    for name in names:
        shutil.copy(examples / "rocket.jpg", bytes(tmp_path / "x").removesuffix(b"x") + name)
    names = [name.decode(errors="surrogateescape") for name in names]
    for options in ([], ["--json"]):
        result = serfer_here("classify", "--plan", plan, "--workers", "inprocess", *options, "--", *names)
        assert (result.code, result.err) == (0, "")
    assert [json.loads(line)["images"][0]["name"] for line in result.lines] == names


def test_split_explain_and_verify_a_users_network(serfer_here, plan, examples, tmp_path):
    model = plan.parent / "small.onnx"
    made = serfer_here("split", model, "--out", tmp_path / "mine", "--grids", "1x2,2x2,1", "--json")
    assert (made.code, made.err) == (0, "")
    assert json.loads(made.out)["digest"] == load_plan(tmp_path / "mine").digest
    assert [stage["grid"] for stage in json.loads(made.out)["stages"]] == [
        {"rows": rows, "cols": cols, "columns": False} for rows, cols in [(1, 2), (2, 2), (1, 1)]
    ]
    shown = serfer_here("explain", tmp_path / "mine")
    assert (shown.code, shown.err) == (0, "")
    assert sum(line.startswith("stage-") and "MB" in line for line in shown.lines) == 6  # stages and functions
    assert f"3x{SIZE}x{SIZE} in, {CLASSES} out, 7 tasks" in shown.out
    assert json.loads(serfer_here("explain", tmp_path / "mine", "--json").out) == json.loads(made.out)
    checked = serfer_here("verify", tmp_path / "mine", "--json", "--random", "3")
    assert (checked.code, checked.err) == (0, "")
    *answers, summary = map(json.loads, checked.lines)
    assert (summary["inputs"], summary["agreement"], summary["loss"]) == (3, 1.0, None)
    assert [answer["exact"] for answer in answers] == [True] * 3
    assert all(answer["error"] <= 1e-4 for answer in answers)
    images = examples / "coffee.png", examples / "rocket.jpg"
    pictured = serfer_here("verify", plan, "--images", *images, "--random", "0")
    assert (pictured.code, pictured.err) == (0, "")
    assert "coffee.png" in pictured.out
    assert "rocket.jpg" in pictured.out
    assert "2 inputs" in pictured.out


@pytest.fixture
def tampered(plan, tmp_path):
    """A plan that is consistent in itself, but whose unsplit model answers otherwise."""
    directory = tmp_path / "tampered"
    shutil.copytree(plan, directory)
    path = directory / "unsplit.onnx"
    model = onnx.load(path, load_external_data=False)
    name = model.graph.output[0].name
    last = next(node for node in model.graph.node if name in node.output)
    last.output[:] = ["before"]
    model.graph.node.append(helper.make_node("Neg", ["before"], [name], "tampered"))
    path.write_bytes(model.SerializeToString())
    unsplit = Artefact("unsplit.onnx", path.stat().st_size, file_sha256(path))
    write_plan(sealed(replace(load_plan(plan), unsplit=unsplit)), directory)
    return directory


def test_verify_detects_a_plan_of_another_network(serfer_here, tampered):
    result = serfer_here("verify", tampered, "--json")
    result.complains(1, "by more than 0.0001 of their range")
    *rows, summary = (json.loads(line) for line in result.lines)
    assert [row["exact"] for row in rows] == [False, False]
    assert (summary["inputs"], summary["exact"]) == (2, False)
    assert "NO" in serfer_here("verify", tampered).out


def test_doctor_passes_on_this_machine(serfer_here, cache):
    result = serfer_here("doctor", "--json")
    checks = list(map(json.loads, result.lines))
    assert (result.code, result.err) == (0, "")
    assert all(set(check) == {"name", "ok", "found", "remedy"} for check in checks)
    assert all(check["ok"] for check in checks)
    status = {check["name"]: check["found"] for check in checks}
    assert {"python", "platform", "redis-server", "torch", "onnxruntime", "cache", "space", "profiles"} <= set(status)
    assert status["cache"] == str(cache)
    assert sum(line.startswith("ok") for line in serfer_here("doctor").lines) == len(checks)


def test_version(serfer_):
    result = serfer_("--version")
    assert (result.code, result.out, result.err) == (0, f"serfer {serfer.__version__}\n", "")
    as_module = subprocess.run(
        [sys.executable, "-m", "serfer", "--version"], capture_output=True, text=True, check=True
    )
    assert as_module.stdout == result.out
