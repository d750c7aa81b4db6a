"""Inline stages: the same answer as through the store, and nothing in the store."""

import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import onnx
import pytest

import serfer
from serfer.core.exactness import difference
from serfer.core.inline_outputs import inline_stages
from serfer.core.keys import StoreCounts, stage_of
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import load_plan
from serfer.storage.file.store import FileStore
from tests.e2e.small import batch, hand_on, split_small
from tests.splitter.models import Net

SAME = {"pads": [1, 1, 1, 1]}
CHOICES = [tuple(map(bool, map(int, each))) for each in ("0000", "1111", "1000", "0010", "0101", "1011")]
"""Which stages' outputs ride along: pairwise, all and none."""
LIMIT = int(6 * 1024 * 1024 * 0.7)  # of what a payload carries


def inlined(directory, target, inline):
    """Copy a plan directory, the stages in `inline` handing their output on inside answers and payloads."""
    shutil.copytree(directory, target)
    return hand_on(target, inline)


def moved(pipeline):
    """Return the bytes that each stage's tasks read and wrote, wherever."""
    return [(stage.bytes_in, stage.bytes_out) for stage in pipeline.last_report.stages]


@pytest.fixture(scope="module")
def joined(tmp_path_factory):
    """A residual block cut in two: the stage that adds reads one tensor of stage 0 and one of stage 2."""
    net = Net(3, 24, 20)
    head = net.op("Relu", net.conv("x", 3, 4, [3, 3], **SAME))
    one = net.op("Relu", net.conv(head, 4, 4, [3, 3], **SAME))
    two = net.conv(one, 4, 4, [3, 3], **SAME)
    total = net.conv(net.op("Add", head, two), 4, 4, [3, 3], **SAME)
    model = net.model(net.linear(net.flat(net.op("GlobalAveragePool", total)), 4, 5))
    directory = tmp_path_factory.mktemp("joined")
    onnx.save(model, directory / "joined.onnx")
    cuts = (head, one, two, total)
    serfer.split(
        str(directory / "joined.onnx"), np.zeros((1, 3, 24, 20), np.float32), out=directory / "plan",
        grids=["2x2", "1x2", "2x2", "2x1", "1"], cuts=cuts,
    )  # fmt: skip
    return directory / "plan"


def test_a_tile_reads_one_tensor_from_the_store_and_carries_another(joined, settings, tmp_path):
    images = np.random.default_rng(1).standard_normal((2, 3, 24, 20), dtype=np.float32)
    plan = load_plan(joined)
    assert {source.stage for source in plan.stages[3].inputs} == {0, 2}
    answers, bytes_moved = {}, []
    for number, rides in enumerate(CHOICES):
        inline = {stage for stage, rides_along in enumerate(rides) if rides_along}
        directory = inlined(joined, tmp_path / str(number), inline)
        with serfer.open(directory, settings=settings) as pipeline:
            answers[rides] = pipeline.run(images)
            report = pipeline.last_report
            stored = pipeline.asynchronous._plans.driver.store
        assert report.store.puts == sum(len(plan.stages[stage].tiles) for stage in range(4) if stage not in inline)
        assert stored._values == {}
        assert (report.store == StoreCounts()) == all(rides)
        bytes_moved.append(moved(pipeline))
    first = answers[False, False, False, False]
    assert difference(first, unsplit(plan, joined)(images)).exact
    assert all(np.array_equal(answer, first) for answer in answers.values())
    assert all(sizes == bytes_moved[0] for sizes in bytes_moved)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [pytest.param("inprocess", marks=pytest.mark.weekly), "local"])
def test_a_batch_too_large_for_payloads_goes_through_the_store(settings, tmp_path, redis, workers):
    wide = split_small(tmp_path, grids=[(1, 2), (1, 1)], cuts=("relu2",))
    directory = inlined(wide, tmp_path / "inline", {0})
    rides = load_plan(directory)
    most = max(count for count in range(1, 1025) if inline_stages(rides, count, LIMIT)[0])
    assert most < 1024
    whole = unsplit(rides, wide)
    with serfer.open(directory, store=redis, workers=workers, settings=settings) as pipeline:
        crops = 2 if workers == "local" else 0  # of many images: in process, nothing is encoded
        for count, puts in [(most, crops), (most + 1, crops + 2), (1, 0)]:
            images = batch(count)
            assert difference(pipeline.run(images), whole(images)).exact
            report = pipeline.last_report
            assert (report.store.puts, report.retries) == (puts, 0)


@pytest.mark.parametrize("workers", ["inprocess", pytest.param("local", marks=pytest.mark.weekly)])
def test_a_tile_reads_one_tensor_from_each_store(joined, settings, tmp_path, workers, monkeypatch):
    """What stage 0 hands on goes to the second store, what stage 2 does stays in the first; stage 3 reads both."""
    directory = shutil.copytree(joined, tmp_path / "plan")
    hand_on(directory, inline=(1,), objects=(0,))
    urls = [f"file://{tmp_path / name}" for name in ("main", "objects")]
    written, put = [], FileStore.put

    def counting(store, key, value, ttl):
        written.append((Path(store._directory._root).name, stage_of(key)))
        put(store, key, value, ttl)

    monkeypatch.setattr(FileStore, "put", counting)
    whole, images = unsplit(load_plan(directory), directory), np.ones((2, 3, 24, 20), np.float32)
    with serfer.open(directory, store=urls[0], object_store=urls[1], workers=workers, settings=settings) as pipeline:
        assert difference(pipeline.run(images), whole(images)).exact
        assert pipeline.last_report.store.puts == 4 + 4 + 2
    assert workers == "local" or Counter(written) == {("objects", 0): 4, ("main", 2): 4, ("main", 3): 2}
    for name in ("main", "objects"):
        assert [path.name for path in (tmp_path / name).iterdir()] == ["#lock"], "nothing is left in either"
