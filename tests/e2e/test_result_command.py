"""`serfer run --keep` and `serfer result`: outputs that stay in the store of results."""

import json

import numpy as np
import pytest

import serfer
from tests.e2e.dense import OUTPUTS

FILES = [name.replace("/", "_") for name in OUTPUTS]


@pytest.fixture
def run(serfer_here, dense, tmp_path):
    def command(*arguments, **variables):
        given = {"SERFER_RESULTS": f"file://{tmp_path}/results", **variables}
        return serfer_here("run", "--plan", dense, "--workers", "inprocess", *arguments, **given)

    return command


@pytest.fixture
def result(serfer_here, tmp_path):
    url = f"file://{tmp_path}/results"
    return lambda *arguments: serfer_here("result", *arguments, "--results", url)


def test_kept_outputs_are_shown_fetched_and_deleted_by_id(run, result, dense, examples, tmp_path):
    kept = run(examples / "rocket.jpg", examples / "coffee.png", "--keep", "--json")
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
    assert fetched.lines == [str(tmp_path / "maps" / f"{first['result']}.{name}.npy") for name in FILES]
    with serfer.open(dense) as pipeline:
        answer = pipeline.run(pipeline.pixels([examples / "rocket.jpg"]))
    for path, name in zip(fetched.lines, OUTPUTS, strict=True):
        assert np.array_equal(np.load(path), answer[name])
    result("get", first["result"], "--out", tmp_path / "maps").complains(3, "exists")
    assert result("delete", first["result"]).code == 0
    result("show", first["result"]).complains(3, f"there is no result {first['result']}")
    assert result("show", second["result"]).code == 0


def test_the_text_says_what_is_kept_where_and_how_long(run, examples, tmp_path):
    kept = run(examples / "rocket.jpg", "--keep", "--out", tmp_path / "maps")
    assert (kept.code, kept.err) == (0, "")
    for words in ("1x5x34x34", "int64", "result ", "until 20", "rocket.head_depth.npy", "stage-0", "$"):
        assert words in kept.out
    assert sorted(path.name for path in (tmp_path / "maps").iterdir()) == sorted(f"rocket.{name}.npy" for name in FILES)


def test_without_a_store_of_results_they_lie_in_the_users_cache(run, serfer_here, examples, cache):
    kept = run(examples / "rocket.jpg", "--keep", "--json", SERFER_RESULTS="")
    name = json.loads(kept.out)["result"]
    assert (cache / "results").stat().st_mode & 0o777 == 0o700
    assert serfer_here("result", "show", name).code == 0
    assert serfer_here("result", "delete", name).code == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "--out, the folder for outputs, or --keep"),
        (("--out", "maps", "--results", "file:///tmp/x"), "give --keep too"),
        (("--keep", "--compare"), "--keep goes without"),
        (("--keep", "--format", "png"), "--keep goes without"),
        (("--keep", "--results", "memory://"), "ends with this command"),
    ],
)
def test_what_cannot_be_kept_is_refused(run, examples, arguments, words):
    run(examples / "rocket.jpg", *arguments).complains(2, words)


@pytest.mark.parametrize("name", ["x", "0" * 31, "../" + "0" * 29])
def test_what_is_no_id_is_refused(result, name):
    result("show", name).complains(3, "32 hex digits")
