"""Answers that stay where the last stage's tiles wrote them: equal to those that are carried, whole or not there."""

import io
from itertools import repeat

import numpy as np
import onnx
import pytest

import serfer
from serfer.core.errors import NotFiniteError, ResultGoneError, StoreUnavailableError, TaskFailedError, UsageError
from serfer.core.keys import LOCAL_OWNER, ResultPlace
from serfer.core.plan.answers import answer_arrays
from serfer.core.run_machine import Retry
from serfer.drivers.driver import RequestContext
from serfer.pipeline.result_cache import Keeper
from serfer.results import Results
from serfer.splitter.whole import whole_plan
from serfer.storage import open_store
from serfer.storage.memory import MemoryStore
from serfer.storage.wrapping import WrapperStore
from tests.e2e.conftest import keys
from tests.e2e.dense import split_dense
from tests.e2e.detector import SIZE as DETECTOR_SIZE
from tests.e2e.detector import suppressed_onnx
from tests.e2e.small import PREPROCESS, SIZE

MAPS = ("scores", "classes", "head/depth")


@pytest.fixture(scope="module")
def tiled(tmp_path_factory):
    """Two stages of four tiles; the last one has all outputs."""
    return split_dense(tmp_path_factory.mktemp("tiled"), MAPS, grids=["2x2", "2x2"], cuts=["relu1"])


@pytest.fixture(scope="module")
def gang(tmp_path_factory):
    """The same, as a gang whose last stage ends the plan."""
    where = tmp_path_factory.mktemp("gang")
    return split_dense(where, MAPS, grids=["2x2", "2x2"], cuts=["relu1"], gang="always")


@pytest.fixture
def url(tmp_path):
    return f"file://{tmp_path}/results"


def images(count, seed=0):
    return np.random.default_rng(seed).standard_normal((count, 3, SIZE, SIZE), dtype=np.float32)


def same(kept, answer):
    arrays = kept.arrays()
    assert {name: (value.dtype, value.shape) for name, value in arrays.items()} == {
        name: (value.dtype, value.shape) for name, value in answer.items()
    }
    assert all(np.array_equal(arrays[name], value) for name, value in answer.items())


class Refusing(WrapperStore):
    """Keeps what is put there, but under the keys that end like one of `refused`."""

    def __init__(self, refused, error=StoreUnavailableError):
        super().__init__(MemoryStore())
        self.refused, self.error = refused, error
        self.put_keys = []

    def put(self, key, value, ttl):
        if key.endswith(self.refused):
            raise self.error("the store is full")
        self.put_keys.append(key)
        super().put(key, value, ttl)


@pytest.fixture
def opened_with(tiled, monkeypatch):
    """Open the plan, workers in process, with a store of results of the test's own."""

    def make(store, **options):
        monkeypatch.setattr("serfer.wiring.open_pipeline.open_store", lambda _: store)
        return serfer.open(tiled, results="memory://", **options)

    return make


@pytest.mark.exact
@pytest.mark.filterwarnings("ignore:reduce is for one output")
@pytest.mark.parametrize("grid", [pytest.param("1", marks=pytest.mark.weekly), "3x2", "4x4"])
def test_kept_answers_equal_carried_ones_bit_for_bit(tmp_path, url, grid):
    plan = split_dense(tmp_path, grids=grid, reduce="argmax", resize_output=(27, 41))
    with serfer.open(plan, results=url) as pipeline:
        for count in (1, 3):
            batch = images(count)
            answer = pipeline.run(batch)
            assert {value.dtype.name for value in answer.values()} >= {"uint8", "int64", "float32"}
            same(pipeline.run_to_result(batch), answer)


def test_a_kept_output_has_the_size_that_the_images_had(tmp_path, url):
    onnx.save(suppressed_onnx(gathered=True), tmp_path / "net.onnx")
    plan = whole_plan(tmp_path / "net.onnx", out=tmp_path / "plan", preprocess=PREPROCESS)
    assert plan.output_tensors[0].sized_by == "found_boxes.size"
    batch = np.random.default_rng(0).standard_normal((2, 3, DETECTOR_SIZE, DETECTOR_SIZE), dtype=np.float32)
    batch *= np.float32([[[[0.1]]], [[[0.01]]]])
    with serfer.open(tmp_path / "plan", results=url) as pipeline:
        for some in (batch, batch[1:]):
            answer, kept = pipeline.run(some), pipeline.run_to_result(some)
            same(kept, answer)
            files = kept.save(tmp_path / f"out-{len(some)}", "net")
            assert all(np.array_equal(np.load(file), value) for file, value in zip(files, answer.values(), strict=True))
            assert pipeline.stored(kept.id).manifest == kept.manifest
            assert kept.manifest.outputs[0].dims == plan.output_tensors[0].dims
            assert 0 < answer["found_boxes"].shape[1] < plan.output_tensors[0].dims[0]


def test_nothing_of_a_kept_answer_passes_through_the_driver(tiled, url):
    with serfer.open(tiled, results=url) as pipeline:
        kept = pipeline.run_to_result(images(2))
        last = pipeline.last
        assert last.outputs == {}
        assert last.answer.outputs == ()
        assert all(report.output is None for report in last.answer.stages[-1].reports)
        manifest_bytes = last.answer.overheads.counts.bytes_put
        assert last.answer.overheads.counts.bytes_get == 0
        assert 0 < manifest_bytes < 10_000 < kept.manifest.nbytes
        written = sum(report.counts.bytes_put for report in last.answer.stages[-1].reports)
        assert last.report.store.bytes_put >= written + manifest_bytes
        assert written >= kept.manifest.nbytes


def test_a_result_outlives_its_pipeline_and_is_read_without_a_plan(tiled, url, tmp_path):
    with serfer.open(tiled, results=url) as pipeline:
        answer = pipeline.run(images(1))
        kept = pipeline.run_to_result(images(1))
    with open_store(url) as store:
        results = Results(store)
        manifest = results.read(LOCAL_OWNER, kept.id)
        assert manifest == kept.manifest
        for output in manifest.outputs:
            read = np.load(io.BytesIO(b"".join(results.npy_chunks(manifest, output))))
            assert np.array_equal(read, answer[output.name])
    with serfer.open(tiled, results=url) as pipeline:
        found = pipeline.stored(kept.id)
        files = found.save(tmp_path / "out", "street")
        assert [file.name for file in files] == [f"street.{name.replace('/', '_')}.npy" for name in MAPS]
        assert all(np.array_equal(np.load(file), answer[name]) for file, name in zip(files, MAPS, strict=True))
        with pytest.raises(serfer.InputError, match="exists"):
            found.save(tmp_path / "out", "street")
        found.delete()
        with pytest.raises(ResultGoneError):
            pipeline.stored(kept.id)


def test_members_of_a_gang_write_the_result(gang, url):
    with serfer.open(gang, results=url) as pipeline:
        answer = pipeline.run(images(3))
        same(pipeline.run_to_result(images(3)), answer)
        assert [stage.gang for stage in pipeline.last_report.stages] == [0, 0]
    with serfer.open(gang, results=url, gangs="never") as pipeline:
        same(pipeline.run_to_result(images(3)), answer)


@pytest.mark.parametrize(
    ("driver", "workers"),
    [("push", "local"), ("poll", "inprocess"), pytest.param("poll", "local", marks=pytest.mark.weekly)],
)
def test_functions_write_the_result_to_the_store_that_they_were_started_with(
    tiled, url, settings, redis, driver, workers
):
    settings = settings.model_copy(update={"local_concurrency": 2})  # not all tiles need an environment of their own
    chosen = {"workers": workers, "driver": driver, "settings": settings, "store": redis}
    with serfer.open(tiled, results=url, **chosen) as pipeline:
        answer = pipeline.run(images(2))
        same(pipeline.run_to_result(images(2)), answer)
    assert keys(redis) == []


def test_redis_holds_results_apart_from_queries(tiled, redis):
    with serfer.open(tiled, store=redis, results=redis) as pipeline:
        answer = pipeline.run(images(1))
        kept = pipeline.run_to_result(images(1), ttl_s=60)
        assert sorted(keys(redis)) == sorted(key.encode() for key in kept.manifest.place.keys(kept.manifest.outputs))
        same(kept, answer)
        kept.delete()


def test_several_queries_that_share_invocations_keep_their_own(tiled, url):
    with serfer.open(tiled, results=url) as pipeline:
        batches = [images(1, seed) for seed in range(6)]
        places = [pipeline.new_result() for _ in batches]
        futures = [
            pipeline.submit(batch, context=RequestContext(result=place))
            for batch, place in zip(batches, places, strict=True)
        ]
        kept = [future.result().kept for future in futures]
        for batch, place, manifest in zip(batches, places, kept, strict=True):
            assert manifest.id == place.id
            arrays = pipeline.asynchronous.results.arrays(manifest)
            answer = pipeline.run(batch)
            assert all(np.array_equal(arrays[name], value) for name, value in answer.items())


HUGE = np.full((1, 3, SIZE, SIZE), 3e38, dtype=np.float32)


@pytest.mark.parametrize(
    ("refused", "times", "batch", "raised", "words", "puts"),
    [
        (("2/c/0/0/1/1", RuntimeError), repeat(0.0), images(1), TaskFailedError, "full", 1),
        (("/zarr.json",), repeat(0.0), images(1), StoreUnavailableError, "full", 4 * len(MAPS)),
        (("none",), iter([0.0, 0.0, 100.0]), images(1), ResultGoneError, "expired before", 1),
        (("none",), repeat(0.0), HUGE, NotFiniteError, "NaN or infinite", 0),
    ],
    ids=["a tile", "the manifest", "late", "not finite"],
)
def test_a_query_that_fails_leaves_nothing_of_its_result(opened_with, refused, times, batch, raised, words, puts):
    store = Refusing(*refused)
    with opened_with(store) as pipeline:
        results = Results(store, clock=lambda: next(times))
        pipeline.asynchronous._keeper = Keeper(results, retry=Retry(unavailable_attempts=2))
        with pytest.raises(raised, match=words):
            pipeline.run_to_result(batch, ttl_s=50)
    assert len(store.put_keys) >= puts
    assert not any(store.exists(store.put_keys))


@pytest.mark.parametrize(("share", "retries"), [(False, 1), (True, 2)])
def test_a_tile_that_fails_once_is_written_again_the_same(opened_with, monkeypatch, share, retries):
    """With the tile that shared its invocation, if any did: two do where four tiles have two processors."""

    class Once(Refusing):
        def put(self, key, value, ttl):
            super().put(key, value, ttl)
            if key.endswith("0/c/0/0/1/0") and self.put_keys.count(key) == 1:
                self.first = bytes(value)
                raise RuntimeError("died after it had written")

    monkeypatch.setattr("serfer.wiring.open_pipeline.processors", lambda: 2)
    store = Once("none")
    with opened_with(store, share=share) as pipeline:
        answer = pipeline.run(images(2))
        kept = pipeline.run_to_result(images(2))
        assert pipeline.last_report.retries == retries
        same(kept, answer)
        assert store.get(kept.manifest.place.key("0/c/0/0/1/0")) == store.first


def test_a_cancelled_query_leaves_nothing(opened_with):
    store = Refusing("none")
    with opened_with(store) as pipeline:
        place = pipeline.new_result()
        future = pipeline.submit(images(4), context=RequestContext(result=place))
        future.cancel()
    assert not any(store.exists(place.keys(answer_arrays(pipeline.plan, 4))))


def test_what_cannot_keep_an_answer_says_so_before_anything_runs(tiled):
    with serfer.open(tiled) as pipeline:
        with pytest.raises(UsageError, match="SERFER_RESULTS"):
            pipeline.run_to_result(images(1))
        context = RequestContext(result=ResultPlace(LOCAL_OWNER, "0" * 32))
        with pytest.raises(UsageError, match="SERFER_RESULTS"):
            pipeline.submit(images(1), context=context)


@pytest.mark.slow
def test_a_state_machine_refuses_by_name(tiled, url, settings, redis):
    chosen = {"workers": "local", "driver": "stepfunctions", "settings": settings, "store": redis}
    with (
        serfer.open(tiled, results=url, **chosen) as pipeline,
        pytest.raises(UsageError, match=r"state machine.*--engine push"),
    ):
        pipeline.run_to_result(images(1))


@pytest.mark.parametrize("workers", ["local", "aws"])
def test_functions_cannot_reach_a_store_of_results_in_memory(tiled, workers):
    with pytest.raises(UsageError, match="--results memory://"):
        serfer.open(tiled, workers=workers, store="redis://127.0.0.1:1", results="memory://")


def test_the_setting_names_the_store_where_no_option_does(tiled, url, settings):
    with serfer.open(tiled, settings=settings.model_copy(update={"results": url, "results_ttl_s": 77.0})) as pipeline:
        manifest = pipeline.run_to_result(images(1)).manifest
        assert manifest.expires - manifest.created == 77.0
