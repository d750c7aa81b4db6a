"""Workers in the driver's own process, as a driver function has them: files in a layer, weights fetched, threads."""

import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest

import serfer
import serfer.lambdas.worker
from serfer.core.costs.sessions import watched_runs
from serfer.core.errors import MissingKeyError, PlanError, QueryError, UsageError
from serfer.core.units import MIB
from serfer.drivers.inprocess import InProcessInvoker
from serfer.lambdas.artefacts import IN_LAYER
from serfer.packaging.bundle import WEIGHTS, keep_weights
from serfer.pipeline.event_loop import LoopThread
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from serfer.wiring.in_process import _session_threads
from serfer.wiring.open_pipeline import open_pipeline
from tests.e2e.small import batch, put_weights_in, split_small

MEMORY_MB = 3000  # 1.7 vCPUs


@pytest.fixture(scope="module")
def zipped(tmp_path_factory):
    return split_small(tmp_path_factory.mktemp("zipped"), grids=[(1, 1)])


@pytest.fixture(scope="module")
def fetched(tmp_path_factory):
    return put_weights_in(split_small(tmp_path_factory.mktemp("fetched"), grids=[(1, 1)]), "fetched")


@pytest.fixture
def layered(tmp_path, monkeypatch):
    """Return a function's own directory of a plan, whose packaged files lie in a layer."""

    def layered(directory):
        plan, own = load_plan(directory), tmp_path / "function"
        own.mkdir()
        shutil.copyfile(directory / "plan.json", own / "plan.json")
        for artefact in plan.packaged(0, 0):
            place = tmp_path / "layer" / IN_LAYER / artefact.path
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(directory / artefact.path, place)
        monkeypatch.syspath_prepend(str(tmp_path / "layer"))
        return own

    return layered


@pytest.fixture
def threads(monkeypatch):
    made, worker = [], serfer.lambdas.worker.Worker

    def watched(plan, directory, store, environment, threads, *more, **named):
        made.append(threads)
        return worker(plan, directory, store, environment, threads, *more, **named)

    monkeypatch.setattr(serfer.lambdas.worker, "Worker", watched)
    return made


def answer(directory, settings):
    with open_pipeline(directory, workers="inprocess", settings=settings) as pipeline:
        return pipeline.run(batch(2))


def test_a_function_finds_its_files_in_a_layer_and_computes_on_its_own_vcpus(zipped, layered, threads):
    with serfer.open(zipped, workers="inprocess") as pipeline:
        expected = pipeline.run(batch(2))
    found = answer(layered(zipped), Settings(function_memory_mb=MEMORY_MB))
    assert threads[-1] == 2
    np.testing.assert_array_equal(found, expected)


@pytest.mark.two_at_once
def test_as_many_threads_compute_a_pass_as_were_set(zipped, threads):
    answer(zipped, Settings(session_threads=3))
    assert threads == [3]


@pytest.mark.parametrize(("predicted", "expected"), [((1.0, 18.9), 1), ((1.0, 19.0), 5), ((None, None), 5)])
def test_a_short_pass_has_one_thread_and_others_all_cores(zipped, monkeypatch, predicted, expected):
    monkeypatch.setattr("serfer.wiring.in_process.processors", lambda: 5)
    plan = load_plan(zipped)
    tile = replace(plan.stages[0].tiles[0], serial_ms=predicted[0], parallel_ms=predicted[1])
    plan = replace(plan, stages=[replace(plan.stages[0], tiles=[tile])])
    assert _session_threads(plan, Settings(), None) == expected


def test_a_query_needs_no_new_thread(zipped, monkeypatch):
    def start(_):
        raise RuntimeError("there is no memory for a thread")  # for want of which Thread.start may wait for ever

    watched_runs.cache_clear()
    with serfer.open(zipped, workers="inprocess") as pipeline:
        monkeypatch.setattr(threading.Thread, "start", start)
        assert pipeline.run(batch(2)).shape[0] == 2
        monkeypatch.undo()


def test_sessions_take_what_was_set_or_a_functions_memory_leaves_or_half_of_what_is_free(zipped, layered, monkeypatch):
    rooms, worker = [], serfer.lambdas.worker.Worker

    def watched(*given, session_bytes, **named):
        rooms.append(session_bytes)
        return worker(*given, session_bytes=session_bytes, **named)

    monkeypatch.setattr(serfer.lambdas.worker, "Worker", watched)
    monkeypatch.setattr("serfer.wiring.in_process.available_bytes", lambda: 1000 * MIB)
    answer(zipped, Settings(sessions_mb=5))
    answer(zipped, Settings())
    answer(layered(zipped), Settings(function_memory_mb=MEMORY_MB))
    assert rooms == [megabytes * MIB for megabytes in (5, 500, MEMORY_MB - 120)]


def test_elsewhere_a_directory_has_to_be_whole(zipped, layered):
    with pytest.raises(PlanError, match="is missing"):
        answer(layered(zipped), Settings())


def test_a_layer_of_another_plan_is_refused(zipped, layered, tmp_path):
    own = layered(zipped)
    (graph,) = (tmp_path / "layer" / IN_LAYER).rglob("*.onnx")
    graph.write_bytes(b"")
    with pytest.raises(PlanError, match="has the weights and graphs of a function of the plan"):
        answer(own, Settings(function_memory_mb=MEMORY_MB))


def test_weights_are_fetched_by_digest(fetched, layered, tmp_path):
    with serfer.open(fetched, workers="inprocess") as pipeline:
        expected = pipeline.run(batch(2))
    keep_weights(load_plan(fetched), fetched, tmp_path)
    url = (tmp_path / WEIGHTS).as_uri()
    found = answer(layered(fetched), Settings(function_memory_mb=MEMORY_MB, weights=url))
    np.testing.assert_array_equal(found, expected)


def test_weights_to_fetch_need_their_place_and_memory(fetched, layered, tmp_path):
    own = layered(fetched)
    with pytest.raises(UsageError, match="SERFER_WEIGHTS is not set"):
        answer(own, Settings(function_memory_mb=MEMORY_MB))
    with pytest.raises(PlanError, match="of memory are too small"):
        answer(own, Settings(function_memory_mb=1, weights=tmp_path.as_uri()))


@pytest.mark.parametrize(("limit_s", "at_init"), [(10, True), (1, False)])
def test_weights_are_fetched_at_init_where_lambda_gives_the_time(fetched, layered, tmp_path, limit_s, at_init):
    facts = tmp_path / "aws.toml"
    facts.write_text(
        f'[lambda.init_limit]\nvalue = {limit_s}\nunit = "s"\ndate = "2026-11"\ntag = "K"\nsource = "this test"\n'
    )
    own, empty = layered(fetched), tmp_path / "empty"
    empty.mkdir()
    settings = Settings(function_memory_mb=MEMORY_MB, weights=empty.as_uri(), aws_file=facts)
    if at_init:
        with pytest.raises(PlanError, match="are not there"):
            open_pipeline(own, workers="inprocess", settings=settings)
        return
    with (
        open_pipeline(own, workers="inprocess", settings=settings) as pipeline,
        pytest.raises((PlanError, QueryError, MissingKeyError), match="are not there"),
    ):
        pipeline.run(batch())


def test_a_service_of_workers_in_its_process_imports_no_client_of_others():
    code = "import sys, serfer.cli.serve; print({'aiohttp', 'botocore', 'torch'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n", "15 MB of a service's memory"


def test_a_pipeline_that_is_complete_but_was_not_returned_is_closed(tmp_path, monkeypatch):
    plan = split_small(tmp_path, grids=[(1, 1)])
    closed, close, wait = [], InProcessInvoker.close, LoopThread.wait

    async def watched(invoker):
        closed.append(invoker)
        await close(invoker)

    def interrupted(loop, coroutine):
        monkeypatch.setattr(LoopThread, "wait", wait)
        loop.wait(coroutine)
        raise KeyboardInterrupt

    monkeypatch.setattr(InProcessInvoker, "close", watched)
    monkeypatch.setattr(LoopThread, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_pipeline(plan, workers="inprocess", settings=Settings())
    assert len(closed) == 1


LIMITED = """
import sys
import numpy as np, onnxruntime as ort
from onnx import parser

cpu = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
ort.create_and_register_allocator(cpu, ort.OrtArenaCfg({"max_mem": 1 << 20}))
options, head = ort.SessionOptions(), "<ir_version: 8, opset_import: ['': 17]>"
options.add_session_config_entry("session.use_env_allocators", "1")
options.log_severity_level = 4
model = parser.parse_model(head.replace("'", '"') + "g (float[n] x) => (float[n] y) {y = Abs(x)}").SerializeToString()

def limited():
    try:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return not session.run(None, {"x": np.zeros(1 << 20, np.float32)})
    except Exception as error:
        return "memory" in str(error)

assert limited()
"""
OPENED = (
    "import serfer\nwith serfer.open({!r}, workers='inprocess') as pipeline:\n    pipeline.run(np.zeros({}, 'f'))\n"
)
COMMAND = (
    "from serfer.__main__ import main\nsys.argv[1:] = ['verify', {!r}]\ntry:\n    main()\nexcept SystemExit: pass\n"
)


@pytest.mark.parametrize(
    ("program", "setting", "kept"),
    [(OPENED, "", True), (OPENED, "1", False), (COMMAND, "", False), (COMMAND, "0", True)],
)
def test_arena_of_a_program_keeps_its_limit_where_the_process_is_not_ours(zipped, program, setting, kept):
    code = LIMITED + program.format(str(zipped), batch(1).shape) + f"assert limited() is {kept}"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "SERFER_SHARE_ARENA": setting})
