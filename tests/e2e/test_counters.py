"""How often something is built, read, sent and decoded where a whole plan is asked twice: no more than it takes once.

Seconds depend on the machine, these numbers do not. Each combination of workers, driver and store is asked the same.
"""

import io
import sys
import threading
from contextlib import contextmanager

import numpy as np
import pytest
from PIL import Image

import serfer
import serfer.pipeline.pipeline
import serfer.wiring.open_pipeline
from serfer.core.exactness import difference
from serfer.core.keys import StoreCounts
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import load_plan
from tests.e2e.gangs import images, split_gang
from tests.e2e.small import CLASSES, SIZE, batch, split_small
from tests.support.counting_store import CountingStore

MANY = [(3, 3), (3, 3), (1, 1)]
"""More graphs than the sixteen sessions that workers once kept."""
_opened = []
_watches = threading.Event()


def _watch(event, arguments):
    if event == "open" and _watches.is_set():
        _opened.append(str(arguments[0]))


@pytest.fixture(scope="module")
def opened():
    """Return a context that lists the files which this process opens; an audit hook cannot be taken away."""
    sys.addaudithook(_watch)

    @contextmanager
    def opened():
        _opened.clear()
        _watches.set()
        try:
            yield _opened
        finally:
            _watches.clear()

    return opened


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    return split_small(tmp_path_factory.mktemp("many"), grids=MANY)


@pytest.fixture
def stores(monkeypatch):
    """The stores that pipelines open, each counting what really reaches it."""
    made, open_routed = [], serfer.wiring.open_pipeline.open_routed

    def counting(*given):
        made.append(CountingStore(open_routed(*given)))
        return made[-1]

    monkeypatch.setattr(serfer.wiring.open_pipeline, "open_routed", counting)
    return made


def graphs(plan):
    return len({tile.graph for stage in plan.stages for tile in stage.tiles})


def planned(plan):
    """Return the puts and gets of one query whose payloads carry crops, and whose stages hand on through the store."""
    puts = sum(len(stage.tiles) for stage in plan.stages if not stage.inline)
    tiles = [tile for stage in plan.stages for tile in stage.tiles]
    return puts, sum(len(piece.ranges) for tile in tiles for piece in tile.pieces)


def sessions(result):
    return max(report.sessions for run in result.answer.stages for report in run.reports)


def between(before, after):
    return (after.puts - before.puts, after.gets - before.gets, after.exists - before.exists)


@pytest.mark.parametrize(
    ("driver", "kind"),
    [("push", "memory"), ("push", "file"), ("push", "redis"), ("push", "s3"), ("poll", "memory"), ("poll", "redis")],
)
def test_workers_in_process_build_each_session_once_and_ask_the_store_for_what_the_plan_says(
    many, settings, stores, opened, url_of, driver, kind
):
    plan, whole = load_plan(many), unsplit(load_plan(many), many)
    puts, gets = planned(plan)
    assert graphs(plan) > 16
    with serfer.open(
        many, store=url_of(kind), workers="inprocess", driver=driver, hedge=False, settings=settings
    ) as pipeline:
        [store] = stores
        for asked in range(3):
            before = store.counts
            with opened() as files:
                output = pipeline.run(batch(seed=asked))
            assert difference(output, whole(batch(seed=asked))).exact
            result = pipeline.last
            assert sessions(result) == graphs(plan)
            assert result.weight_loads == len(plan.functions)
            seen = between(before, store.counts)
            counted = between(StoreCounts(), result.report.store)
            if driver == "push":
                assert seen == counted == (puts, gets, 0)
            else:  # also the last stage's output, and a reply for each task, which is looked for until it is there
                more = len(plan.stages[-1].tiles) + plan.tasks
                assert seen[:2] == (puts + more, gets + more)
            if asked:
                assert [path for path in files if str(many) in path] == []


def test_a_gang_in_process_builds_each_session_once_and_sends_each_border_once(tmp_path, settings, stores):
    directory = split_gang(tmp_path)
    plan = load_plan(directory)
    assert plan.gangs
    with serfer.open(directory, workers="inprocess", hedge=False, settings=settings) as pipeline:
        seen = []
        for asked in range(3):
            before = stores[0].counts
            pipeline.run(images(plan, seed=asked))
            assert sessions(pipeline.last) == graphs(plan)
            assert pipeline.last.weight_loads == sum(len(stage.functions) for stage in plan.stages)
            seen.append(between(before, stores[0].counts))
            assert seen[-1] == between(StoreCounts(), pipeline.last_report.store) == seen[0]


@pytest.mark.parametrize("driver", ["push", pytest.param("poll", marks=pytest.mark.weekly)])
def test_functions_build_each_session_once_and_ask_the_store_for_what_the_plan_says(many, settings, redis, driver):
    alone = settings.model_copy(update={"local_concurrency": 1})  # an environment for each function
    plan = load_plan(many)
    chosen = {"workers": "local", "driver": driver, "hedge": False, "prewarm": "never", "settings": alone}
    with serfer.open(many, store=redis, **chosen) as pipeline:
        for _ in range(2):
            pipeline.run(batch())
            result = pipeline.last
            built = [max(report.sessions for report in run.reports) for run in result.answer.stages]
            assert built == [len(stage.functions[0].graphs) for stage in plan.stages]
            assert result.weight_loads == 1
            counted = between(StoreCounts(), result.report.store)
            if driver == "push":
                assert counted == (*planned(plan), 0)
            assert result.report.retries == 0


def test_an_image_is_decoded_once_a_query_and_computed_once_where_it_is_kept(many, settings, stores, monkeypatch):
    decoded, decode = [], serfer.pipeline.pipeline.decode_image
    monkeypatch.setattr(
        serfer.pipeline.pipeline,
        "decode_image",
        lambda data, name, *how, **more: decoded.append(name) or decode(data, name, *how, **more),
    )
    names = ["one", "two"]
    with serfer.open(many, cache_s=60, hedge=False, settings=settings) as pipeline:
        [store] = stores
        for asked in range(2):
            pictures = [picture(seed) for seed in (asked, 7)]
            decoded.clear()
            pipeline.classify(pictures, names=names)
            assert decoded == names
            before = store.counts
            pipeline.classify(pictures, names=names)
            assert decoded == names * 2
            assert between(before, store.counts) == (0, 1, 0)


def test_a_kept_answer_is_written_once_by_its_tiles_and_its_manifest_is_not_read_by_the_query(
    many, settings, stores, monkeypatch, tmp_path
):
    plan, made = load_plan(many), []
    open_store = serfer.wiring.open_pipeline.open_store
    monkeypatch.setattr(
        serfer.wiring.open_pipeline, "open_store", lambda url: made.append(CountingStore(open_store(url))) or made[-1]
    )
    with serfer.open(many, results=f"file://{tmp_path / 'results'}", hedge=False, settings=settings) as pipeline:
        [store], [results] = stores, made
        for _ in range(2):
            before, kept_before = store.counts, results.counts
            kept = pipeline.run_to_result(batch())
            assert between(before, store.counts) == (*planned(plan), 0)
            assert between(kept_before, results.counts) == (len(plan.stages[-1].tiles) + 1, 0, 0)
            read_before = results.counts
            assert kept.arrays()["logits"].shape == (1, CLASSES)
            assert between(read_before, results.counts) == (0, len(plan.stages[-1].tiles), 0)


def picture(seed):
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (SIZE, SIZE, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()
