"""The Python API, over every store and kind of worker."""

import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

import serfer
from serfer.core.checksum import CHECKSUM_BYTES
from serfer.core.errors import DeadlineError, InputError, PlanError, UnavailableError, UsageError
from serfer.core.exactness import difference
from serfer.lambdas.sessions import SessionCache
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from tests.e2e.small import CLASSES, LABELS, SIZE, batch, split_small

PIXELS = np.random.default_rng(5).integers(0, 256, (3, SIZE, SIZE, 3), dtype=np.uint8)
PICTURES = ("chelsea.png", "coffee.png", "rocket.jpg")


def check_exact(pipeline, directory):
    whole = unsplit(pipeline.plan, directory)
    for images in (batch(1), batch(3, seed=1), PIXELS[:1], PIXELS):
        logits = pipeline.run(images)
        assert (logits.shape, logits.dtype) == ((len(images), CLASSES), np.float32)
        assert difference(logits, whole(images)).exact
        report = pipeline.last_report
        assert (report.store.exists, report.retries, report.hedges) == (0, 0, 0)
        assert report.store.puts == sum(stage.tasks for stage in report.stages[:-1])
        assert report.images == ()
        assert report.cost_usd > 0
        assert images.nbytes <= report.stages[0].bytes_in < 2 * images.nbytes
        assert report.stages[-1].bytes_out == logits.nbytes + CHECKSUM_BYTES


@pytest.mark.exact
@pytest.mark.parametrize("kind", ["default", "memory", "file", "redis"])
def test_inprocess_workers_equal_the_unsplit_model_over_every_store(plan, settings, kind, tmp_path, url_of):
    with serfer.open(plan, store=url_of(kind), settings=settings) as pipeline:
        check_exact(pipeline, plan)
    if kind == "file":
        assert [path for path in (tmp_path / "store").rglob("*") if path.is_file() and path.name != "#lock"] == []


@pytest.mark.parametrize(("grids", "threads"), [([(2, 2), (2, 2), (1, 1)], 2), ([(1, 1)] * 3, 8)])
def test_workers_in_process_share_the_cores_among_a_stages_tiles(settings, tmp_path, monkeypatch, grids, threads):
    sessions, build = [], SessionCache._build
    monkeypatch.setattr(SessionCache, "_build", lambda *known: sessions.append(build(*known)) or sessions[-1])
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(8))
    monkeypatch.setattr("serfer.wiring.in_process._SHORT_MS", 0)  # no pass is
    with serfer.open(split_small(tmp_path, grids=grids), settings=settings) as pipeline:
        pipeline.run(batch())
    assert {session.get_session_options().intra_op_num_threads for session in sessions} == {threads}


@pytest.mark.exact
@pytest.mark.parametrize("kind", ["default", "file", pytest.param("redis", marks=pytest.mark.weekly)])
def test_local_workers_equal_the_unsplit_model_over_every_shared_store(lean, settings, kind, url_of):
    with serfer.open(lean, store=url_of(kind), workers="local", settings=settings) as pipeline:
        check_exact(pipeline, lean)
        assert pipeline.last.weight_loads == 1
        assert sum(stage.cold for stage in pipeline.last_report.stages) == 0  # the first query warmed them


@pytest.mark.parametrize(("prewarm", "warm_ups"), [("auto", 1), ("never", 0)])
def test_environments_of_later_stages_start_with_the_first_query(lean, settings, redis, prewarm, warm_ups):
    with serfer.open(lean, store=redis, workers="local", prewarm=prewarm, settings=settings) as pipeline:
        pipeline.run(batch())
        answer, report = pipeline.last.answer, pipeline.last_report
        assert [stage.cold for stage in report.stages] == [2, 1]
        assert report.warm_ups == warm_ups
        [last] = answer.stages[-1].reports
        assert [(one.cold, one.result.environment) for one in answer.overheads.warm_ups] == [
            (True, last.environment)
        ] * warm_ups
        assert (last.init_ms > 0) is (warm_ups == 0)
        pipeline.run(batch())
        assert pipeline.last_report.warm_ups == 0
        assert sum(stage.cold for stage in pipeline.last_report.stages) == 0


def test_small_crops_are_inline_and_large_ones_stored(lean, settings, redis):
    whole = unsplit(load_plan(lean), lean)
    with serfer.open(lean, store=redis, workers="local", settings=settings) as pipeline:
        for count, stored in [(1, 0), (400, 2)]:  # about 8 kB and 3 MB for each tile
            images = batch(count)
            assert difference(pipeline.run(images), whole(images)).exact
            assert pipeline.last_report.store.puts == 2 + stored
            assert pipeline.last_report.retries == 0


@pytest.mark.parametrize("file", [pytest.param("plan.json", marks=pytest.mark.weekly), "stage-0/weights-0.bin"])
def test_a_cached_package_is_rebuilt_after_its_plan_was_altered(settings, tmp_path, file):
    """Function packages share files with plan directories: an alteration in place reaches both."""

    def check():
        with serfer.open(directory, workers="local", settings=settings) as pipeline:
            assert difference(pipeline.run(batch()), unsplit(pipeline.plan, directory)(batch())).exact

    directory = split_small(tmp_path, seed=len(file), grids=[(1, 1)])
    check()
    with (directory / file).open("r+b") as opened:
        opened.seek(100)
        opened.write(np.full(50, 3.0, dtype=np.float32).tobytes())
    with pytest.raises(PlanError):
        check()
    split_small(tmp_path, seed=len(file), grids=[(1, 1)])
    check()


def test_a_report_has_the_cost_of_its_query(plan, settings, examples):
    with serfer.open(str(plan), settings=settings) as pipeline:
        paths = [examples / name for name in PICTURES]
        answers = pipeline.classify([*paths, paths[0].read_bytes()], top_k=2)
        report = pipeline.last_report
    assert [answer.name for answer in answers] == [*map(str, paths), "image 3"]
    assert answers[0].predictions == answers[3].predictions
    assert all(len(answer.predictions) == 2 for answer in answers)
    assert [stage.grid for stage in report.stages] == ["2x2", "2x2", "1"]
    assert [stage.tasks for stage in report.stages] == [4, 4, 1]
    assert sum(stage.ms for stage in report.stages) <= report.latency_ms
    best = answers[0].predictions[0]
    assert best.label == LABELS[best.index]
    assert 0 < best.score <= 1


def test_there_is_no_report_before_the_first_query_and_no_query_behind_the_end(plan, settings):
    with serfer.open(plan, settings=settings) as pipeline:
        with pytest.raises(UsageError, match="no query yet"):
            _ = pipeline.last_report
        for image in ("a.png", Path("a.png"), b"png", 3):
            with pytest.raises(UsageError, match=f"a list of paths or of files' bytes, not a .*{type(image).__name__}"):
                pipeline.predict(image)
        pipeline.run(batch())
        assert pipeline.last_report.model == "small"
    pipeline.close()
    with pytest.raises(UsageError, match="closed"):
        pipeline.run(batch())


@pytest.mark.parametrize(
    "array",
    [
        batch()[0],
        batch().astype(np.float64),
        batch()[:, :, :-1],
        batch()[:0],
        np.zeros((1, 3, SIZE, SIZE), dtype=np.uint8),
        np.zeros((1025, 1, 1, 1), dtype=np.float32),
        np.float32(1),
        ["a"],
    ],
    ids=lambda array: f"{np.asarray(array).dtype}{np.shape(array)}",
)
def test_arrays_that_the_plan_does_not_take_are_refused(plan, settings, array):
    with serfer.open(plan, settings=settings) as pipeline, pytest.raises(InputError, match="this plan takes"):
        pipeline.run(array)


def test_tensors_with_gradients_are_taken_and_those_that_numpy_lacks_refused(plan, settings):
    tensor = torch.from_numpy(batch()).requires_grad_()
    with serfer.open(plan, settings=settings) as pipeline:
        assert np.array_equal(pipeline.run(tensor), pipeline.run(batch()))
        for other in (tensor.bfloat16(), tensor.to_sparse(), [[1.0], [1.0, 2.0]]):
            with pytest.raises(InputError, match=r"not an array: .*give float32"):
                pipeline.run(other)
        with pytest.raises(InputError, match="give float32"):
            pipeline.submit(tensor.bfloat16()).result()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_batch_with_values_that_are_not_finite_is_refused_by_image(plan, settings, value):
    array = batch(3)
    array[1, 2, 3, 4] = value
    with serfer.open(plan, settings=settings) as pipeline:
        with pytest.raises(InputError, match=r"image 1 .* NaN or infinite"):
            pipeline.run(array)
        assert np.isfinite(pipeline.run(batch(3))).all()


def test_the_parameters_of_classify_are_checked(plan, settings, examples):
    with serfer.open(plan, settings=settings) as pipeline:
        for images, top_k in [([], 1), ([examples / PICTURES[0]], 0)]:
            with pytest.raises(UsageError):
                pipeline.classify(images, top_k=top_k)


def test_a_plan_without_preprocessing_runs_but_does_not_classify(settings, tmp_path, examples):
    directory = split_small(tmp_path, grids=(1, 1), preprocess=None, labels=())
    with serfer.open(directory, settings=settings) as pipeline:
        assert pipeline.run(batch()).shape == (1, CLASSES)
        for images in ([examples / PICTURES[0]], [b"x"]):
            with pytest.raises(PlanError, match="preprocess"):
                pipeline.classify(images)
        with pytest.raises(PlanError, match="preprocess"):
            pipeline.run(PIXELS)


def test_opening_and_running_a_plan_imports_neither_torch_nor_boto3(plan, cache):
    code = """
import sys, numpy, serfer
with serfer.open(sys.argv[1]) as pipeline:
    pipeline.run(numpy.zeros((1, 3, 34, 34), numpy.float32))
print(sorted({"torch", "boto3", "onnx", "onnxscript"} & set(sys.modules)))
"""
    run = subprocess.run(
        [sys.executable, "-c", code, str(plan)],
        capture_output=True,
        text=True,
        check=True,
        env={"SERFER_CACHE_DIR": str(cache)},
    )
    assert run.stdout == "[]\n"


def test_an_unknown_attribute_of_serfer_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = serfer.nonsense


def children():
    return sorted(child.pid for child in psutil.Process().children())


def traces():
    ours = [thread.name for thread in threading.enumerate() if thread.name.startswith("serfer")]
    return children(), ours, len(list(Path("/proc/self/fd").iterdir()))


class TestLibraryUse:
    """Inside another program, a pipeline that is closed, or never opens, leaves no trace."""

    def test_an_open_and_closed_pipeline(self, lean, settings, redis):
        before = traces()
        for store in (None, redis):
            with serfer.open(lean, store=store, workers="local", settings=settings) as pipeline:
                pipeline.run(batch())
                assert len(children()) > len(before[0])
        assert traces() == before

    def test_a_pipeline_whose_service_finds_its_port_taken(self, lean, cache):
        before = traces()
        with socket.create_server(("127.0.0.1", 0)) as other:
            settings = Settings(cache_dir=cache, local_port=other.getsockname()[1])
            with pytest.raises(UnavailableError, match="cannot listen"):
                serfer.open(lean, workers="local", settings=settings)
        assert traces() == before

    def test_a_pipeline_whose_store_does_not_exist(self, lean, settings):
        before = traces()
        for workers in ("inprocess", "local"):
            with pytest.raises(UsageError, match="no store is known"):
                serfer.open(lean, store="ftp://x", workers=workers, settings=settings)
        assert traces() == before

    def test_a_query_that_fails(self, lean, settings, tmp_path):
        before = traces()
        store = tmp_path / "store"
        with (
            serfer.open(lean, store=f"file://{store}", workers="local", settings=settings) as pipeline,
            pytest.raises(DeadlineError),
        ):
            pipeline.run(batch(), deadline_s=0.001)
        assert traces() == before
        assert [path for path in store.iterdir() if path.name != "#lock"] == []

    @pytest.mark.killed
    def test_an_interrupted_query(self, lean, settings, redis):
        """What Ctrl-C does to a notebook: the query ends, the pipeline goes on."""
        with serfer.open(lean, store=redis, workers="local", settings=settings) as pipeline:
            here = threading.main_thread().ident
            timer = threading.Timer(0.1, signal.pthread_kill, [here, signal.SIGINT])
            timer.start()
            with pytest.raises(KeyboardInterrupt):
                pipeline.run(batch())  # cold: takes at least 300 ms
            timer.join()
            assert pipeline.run(batch()).shape == (1, CLASSES)

    def test_threads_may_share_a_pipeline(self, plan, settings):
        whole = unsplit(load_plan(plan), plan)
        with serfer.open(plan, settings=settings) as pipeline, ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(lambda seed: pipeline.run(batch(seed=seed)), range(12)))
        for seed, logits in enumerate(answers):
            assert difference(logits, whole(batch(seed=seed))).exact


def test_a_thread_has_the_report_of_its_own_newest_query(plan, settings):
    """Two threads that asked one pipeline were told of each other's query."""
    asked = threading.Barrier(2)

    def ask(images):
        pipeline.run(batch(images))
        asked.wait(60)
        return pipeline.last_report.stages[-1].bytes_out

    with serfer.open(plan, settings=settings) as pipeline:
        with ThreadPoolExecutor(2) as threads:
            sizes = list(threads.map(ask, (1, 3)))
        assert sizes == [4 * CLASSES * images + CHECKSUM_BYTES for images in (1, 3)]
        assert pipeline.last_report.stages[-1].bytes_out in sizes  # this thread has asked nothing
        submitted = pipeline.submit(batch(2)).result()
        assert pipeline.last_report is submitted.report
