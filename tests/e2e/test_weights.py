"""Plans whose functions have their weights elsewhere than in a zip, answered by local workers."""

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import serfer
from serfer.core.errors import InputError, SerferError
from serfer.packaging.bundle import dependencies, directory_bytes, function_directory, keep_weights
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from serfer.storage.s3.objects import S3Ranges
from serfer.wiring import local
from serfer_bench.core.s3_server import S3Server
from tests.e2e.small import batch, put_weights_in, split_small


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a function that splits the small network with its weights in a place."""
    made = {}

    def split_in(place):
        if place not in made:
            made[place] = split_small(tmp_path_factory.mktemp(place), grids=[(1, 1)])
            put_weights_in(made[place], place)
        return made[place]

    return split_in


def answer(directory, settings, **choices):
    with serfer.open(directory, settings=settings, **{"workers": "local", **choices}) as pipeline:
        return pipeline.run(batch(2)), pipeline.last


@pytest.mark.exact
@pytest.mark.parametrize("where", ["fetched", "image"])
def test_answers_are_those_of_zips_bit_for_bit(place, settings, where):
    expected, _ = answer(place("zip"), settings, workers="inprocess")
    logits, last = answer(place(where), settings)
    assert np.array_equal(logits, expected)
    assert last.weight_loads == 1
    assert np.array_equal(answer(place(where), settings, workers="inprocess")[0], expected)


def limits(tmp_path, **values):
    path = tmp_path / "aws.toml"
    path.write_text("[lambda]\n" + "".join(f"{name} = {value}\n" for name, value in values.items()), encoding="utf-8")
    return path


def test_zips_and_images_are_held_to_their_own_limits(place, cache, tmp_path):
    directory = place("zip")
    package = function_directory(load_plan(directory), directory, 0, 0, dependencies(cache))
    weights = load_plan(directory).stages[0].functions[0].weights.bytes
    most = directory_bytes(package) - weights // 2
    settings = Settings(cache_dir=cache, aws_file=limits(tmp_path, package_limit=most, image_limit=2 * most))
    with pytest.raises(InputError, match="bytes unzipped"):
        answer(directory, settings)
    for where in ("fetched", "image"):
        assert len(answer(place(where), settings)[0]) == 2
    settings = Settings(cache_dir=cache, aws_file=limits(tmp_path, package_limit=2 * most, image_limit=most))
    with pytest.raises(InputError, match=f"container image .* bytes, Lambda's limit is {most:,}"):
        answer(place("image"), settings)


@pytest.mark.hostile
def test_weights_are_kept_by_their_digest_and_replaced_where_damaged(place, tmp_path):
    directory = place("fetched")
    plan = load_plan(directory)
    names = {stage.functions[0].weights.sha256 for stage in plan.stages}
    old, foreign, mark = (tmp_path / "weights" / name for name in ("0" * 64, "1" * 64, ".serfer-cache"))
    old.parent.mkdir()
    for path, age_s in ((old, 8 * 86_400), (foreign, 0), (mark, 0)):
        path.write_bytes(b"x")
        os.utime(path, (path.stat().st_mtime - age_s,) * 2)
    with ThreadPoolExecutor(2) as both:
        list(both.map(lambda _: keep_weights(plan, directory, tmp_path), range(2)))
    assert {path.name for path in old.parent.iterdir()} == names | {foreign.name, mark.name}
    entry = old.parent / plan.stages[0].functions[0].weights.sha256
    whole = entry.read_bytes()
    kept = entry.stat().st_ino
    keep_weights(plan, directory, tmp_path)
    assert entry.stat().st_ino == kept
    entry.write_bytes(b"x" + whole[1:])
    keep_weights(plan, directory, tmp_path)
    assert entry.read_bytes() == whole


def test_local_functions_fetch_from_a_bucket_and_start_only_with_the_plans_weights(place, settings, monkeypatch):
    directory = place("fetched")
    function = load_plan(directory).stages[0].functions[0]
    whole = (directory / function.weights.path).read_bytes()
    expected, _ = answer(place("zip"), settings, workers="inprocess")
    with S3Server() as server:
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        url = f"s3://{server.bucket}/weights"
        monkeypatch.setattr(local, "_weights_url", lambda *_: url)
        with (
            contextlib.closing(S3Ranges(url)) as ranges,
            serfer.open(
                directory, workers="local", store=f"s3://{server.bucket}/pieces", settings=settings
            ) as pipeline,
        ):
            for data, what in ((None, "not there"), (whole[:-1], "cut short"), (b"x" + whole[1:], "another digest")):
                if data is not None:
                    put(ranges, function.weights.sha256, data)
                with pytest.raises(
                    SerferError, match=rf"stage-0/weights-0\.bin at {url}/.*{what}.*deploy the plan again"
                ):
                    pipeline.run(batch(2))
            put(ranges, function.weights.sha256, whole)
            assert np.array_equal(pipeline.run(batch(2)), expected)
            assert pipeline.last_report.stages[0].fetch_ms > 0
            assert pipeline.last.weight_loads == 1


def put(ranges, name, data):
    ranges._client.put(f"weights/{name}", data, 0.0)
