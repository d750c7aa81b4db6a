"""`serfer run`: the outputs of a network as files."""

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image, ImageSequence

import serfer
from serfer.core.costs import aws
from serfer.plan_directory import load_plan
from serfer.raster.palette import palette
from tests.e2e.dense import OUTPUTS, dense_onnx
from tests.e2e.small import SIZE
from tests.raster.files import read_depth

SMALL_PAYLOADS = re.sub(
    r"(sync_payload_limit\]\nvalue = )6291456",
    r"\g<1>10240",
    Path(aws.__file__).with_name("aws.toml").read_text("utf-8"),
)
FILES = {name: name.replace("/", "_") for name in OUTPUTS}


@pytest.fixture(scope="module")
def answer(dense, examples):
    with serfer.open(dense) as pipeline:
        return pipeline.run(pipeline.pixels([examples / "rocket.jpg"]))


@pytest.fixture
def run(serfer_here, dense):
    def command(*arguments, plan=dense):
        return serfer_here("run", "--plan", plan, "--workers", "inprocess", *arguments)

    return command


def test_each_output_of_each_image_becomes_a_file(run, answer, examples, tmp_path):
    result = run(examples / "rocket.jpg", examples / "coffee.png", "--out", tmp_path / "made" / "here", "--json")
    assert (result.code, result.err) == (0, "")
    first, second = map(json.loads, result.lines)
    assert (first["image"], second["image"]) == (str(examples / "rocket.jpg"), str(examples / "coffee.png"))
    for output, (name, (dtype, dims)) in zip(first["outputs"], OUTPUTS.items(), strict=True):
        values = np.load(tmp_path / "made" / "here" / f"rocket.{FILES[name]}.npy")
        assert np.array_equal(values, answer[name])
        assert output == {
            "name": name,
            "shape": [1, *dims],
            "dtype": dtype,
            "min": values.min(),
            "max": values.max(),
            "file": str(tmp_path / "made" / "here" / f"rocket.{FILES[name]}.npy"),
        }
    assert {"stages", "store", "cost_usd", "latency_ms"} <= first.keys()
    assert len(list((tmp_path / "made" / "here").iterdir())) == 2 * len(OUTPUTS)


@pytest.mark.parametrize(
    ("option", "more"), [("--compare", ("0 retries", "same first class")), ("--keep", ("result ", "until 20"))]
)
def test_the_text_output_lists_outputs_stages_and_dollars(serfer_here, dense, examples, tmp_path, option, more):
    given = ("run", "--plan", dense, examples / "rocket.jpg", "--out", tmp_path / "maps", option)
    result = serfer_here(*given, SERFER_RESULTS=f"file://{tmp_path}/results")
    assert (result.code, result.err) == (0, "")
    for words in ("1x5x34x34", "int64", "rocket.head_depth.npy", "stage-0", "$", *more):
        assert words in result.out
    assert {path.name for path in (tmp_path / "maps").iterdir()} == {f"rocket.{name}.npy" for name in FILES.values()}


def test_png_holds_masks_and_maps_of_one_channel(run, answer, examples, tmp_path):
    assert run(examples / "rocket.jpg", "--out", tmp_path / "maps", "--format", "png").code == 0
    assert sorted(path.name for path in (tmp_path / "maps").iterdir()) == [
        *("rocket.classes.png", "rocket.embedding.npy", "rocket.head_depth.png", "rocket.scores.npy")
    ]
    with Image.open(tmp_path / "maps" / "rocket.classes.png") as mask:
        assert mask.mode == "P"
        assert np.array_equal(np.asarray(mask), answer["classes"][0])
        assert tuple(mask.getpalette()[3:6]) == palette()[1] == (128, 0, 0)
    depth = answer["head/depth"][0, 0]
    assert np.abs(read_depth(tmp_path / "maps" / "rocket.head_depth.png") - depth).max() <= np.ptp(depth) / 130_000


def test_tiff_holds_every_channel_in_float32(run, answer, examples, tmp_path):
    assert run(examples / "rocket.jpg", "--out", tmp_path, "--format", "tiff").code == 0
    with Image.open(tmp_path / "rocket.scores.tiff") as pages:
        read = [np.asarray(page) for page in ImageSequence.Iterator(pages)]
    assert np.array_equal(np.stack(read), answer["scores"][0])
    assert read[0].dtype == np.float32
    assert (tmp_path / "rocket.embedding.npy").exists()


def test_an_array_is_the_input_itself(run, dense, tmp_path):
    batch = np.random.default_rng(0).standard_normal((3, 3, SIZE, SIZE), dtype=np.float32)
    np.save(tmp_path / "input.npy", batch)
    assert run(tmp_path / "input.npy", "--out", tmp_path / "maps").code == 0
    with serfer.open(dense) as pipeline:
        assert np.array_equal(np.load(tmp_path / "maps" / "input.scores.npy"), pipeline.run(batch)["scores"])
    run(tmp_path / "input.npy", "--out", tmp_path / "pictures", "--format", "png").complains(3, "3 images", "npy")
    assert list((tmp_path / "pictures").iterdir()) == []


def test_a_file_that_exists_is_replaced_only_on_demand(run, examples, tmp_path):
    there = tmp_path / "rocket.classes.npy"
    there.write_bytes(b"mine")
    run(examples / "rocket.jpg", "--out", tmp_path).complains(3, str(there), "exists", "--overwrite")
    assert (there.read_bytes(), [*tmp_path.glob("rocket*")]) == (b"mine", [there])
    assert run(examples / "rocket.jpg", "--out", tmp_path, "--overwrite").code == 0
    assert np.load(there).shape == (1, SIZE, SIZE)


def test_an_image_that_fails_does_not_stop_the_others_and_a_folder_gives_its_images(run, examples, tmp_path):
    (tmp_path / "text.png").write_text("no image")
    (tmp_path / "odd.npy").write_bytes(b"\x93NUMPY no array")
    np.save(tmp_path / "pickled.npy", np.array([{}], dtype=object))
    np.save(tmp_path / "other.npy", np.zeros((1, 3, 9, 9), np.float32))
    np.save(tmp_path / "cut.npy", np.zeros((1, 3, SIZE, SIZE), np.float32))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "cut.npy").read_bytes()[:-1])
    (tmp_path / "photos").mkdir()
    photo = tmp_path / "photos" / "rocket.jpg"
    photo.symlink_to(examples / "rocket.jpg")
    bad = [tmp_path / name for name in ("text.png", "odd.npy", "pickled.npy", "other.npy", "cut.npy", "none.npy")]
    result = run(*bad, photo.parent, "--out", tmp_path / "maps", "--json")
    lines = [json.loads(line) for line in result.lines]
    assert result.code == 3
    assert [line["image"] for line in lines] == [*map(str, [*bad, photo])]
    assert all(path.name in line for path, line in zip(bad, result.err.splitlines(), strict=True))
    assert all(line["error"] and not line["outputs"] for line in lines[:-1])
    assert len(lines[-1]["outputs"]) == len(OUTPUTS)


def test_explain_lists_outputs_and_warns_of_answers_that_no_response_carries(serfer_here, dense, tmp_path):
    shown = serfer_here("explain", dense)
    assert shown.code == 0
    assert "through the store" not in shown.out
    for row in ("scores +5x34x34 +float32 +22.6 kB", "classes +34x34 +int64 +9.0 kB", "embedding +5 +float32"):
        assert re.search(row, shown.out)
    (tmp_path / "aws.toml").write_text(SMALL_PAYLOADS)
    small = serfer_here("explain", dense, SERFER_AWS_FILE=str(tmp_path / "aws.toml"))
    assert re.search(
        r"answers an image with up to \d+\.\d kB, .* carries 7\.0 kB .*through the store.*reduce=", small.out
    )


def test_reductions_are_options_of_split(serfer_here, run, examples, tmp_path):
    path = tmp_path / "dense.onnx"
    onnx.save(dense_onnx(["scores"]), path)
    chosen = ("--grids=2x2", "--set=reduce=argmax", "--set=resize_output=68x51")
    described = ("--preprocess", examples.parent / "preprocess.toml")
    made = serfer_here("split", path, "--out", tmp_path / "plan", *chosen, *described)
    assert (made.code, made.err.count("\n"), "resized to 256" in made.err) == (0, 1, True), made.err
    assert "reduce=argmax, resize_output=68x51 makes 3,468 bytes of 23,120" in load_plan(tmp_path / "plan").why
    assert serfer_here("verify", tmp_path / "plan").code == 0
    result = run(examples / "rocket.jpg", "--out", tmp_path, "--format", "png", "--compare", plan=tmp_path / "plan")
    assert result.code == 0
    with Image.open(tmp_path / "rocket.scores.png") as mask:
        assert (mask.mode, mask.size) == ("P", (51, 68))


@pytest.fixture
def keep(serfer_here, dense, tmp_path):
    def command(*arguments, **variables):
        given = {"SERFER_RESULTS": f"file://{tmp_path}/results", **variables}
        return serfer_here("run", "--plan", dense, "--workers", "inprocess", *arguments, **given)

    return command


@pytest.fixture
def result(serfer_here, tmp_path):
    url = f"file://{tmp_path}/results"
    return lambda *arguments: serfer_here("result", *arguments, "--results", url)


def test_kept_outputs_are_shown_fetched_and_deleted_by_id(keep, result, answer, examples, tmp_path):
    kept = keep(examples / "rocket.jpg", examples / "coffee.png", "--keep", "--json")
    assert (kept.code, kept.err) == (0, "")
    first, second = map(json.loads, kept.lines)
    assert first["image"] == str(examples / "rocket.jpg")
    assert first["result"] != second["result"]
    assert first["expires"] - first["created"] == 86_400
    assert [(each["name"], each["dtype"], each["shape"]) for each in first["outputs"]] == [
        (name, dtype, [1, *dims]) for name, (dtype, dims) in OUTPUTS.items()
    ]
    assert {"stages", "store", "cost_usd", "latency_ms"} <= first.keys()
    shown = result("show", first["result"], "--json")
    assert json.loads(shown.out) == {key: first[key] for key in json.loads(shown.out)}
    fetched = result("get", first["result"], "--out", tmp_path / "maps")
    assert fetched.lines == [str(tmp_path / "maps" / f"{first['result']}.{name}.npy") for name in FILES.values()]
    for path, name in zip(fetched.lines, OUTPUTS, strict=True):
        assert np.array_equal(np.load(path), answer[name])
    result("get", first["result"], "--out", tmp_path / "maps").complains(3, "exists")
    assert result("delete", first["result"]).code == 0
    result("show", first["result"]).complains(3, f"there is no result {first['result']}")
    assert result("show", second["result"]).code == 0


def test_without_a_store_of_results_they_lie_in_the_users_cache(keep, serfer_here, examples, cache):
    kept = keep(examples / "rocket.jpg", "--keep", "--json", SERFER_RESULTS="")
    name = json.loads(kept.out)["result"]
    assert (cache / "results").stat().st_mode & 0o777 == 0o700
    assert serfer_here("result", "show", name).code == 0
    assert serfer_here("result", "delete", name).code == 0
