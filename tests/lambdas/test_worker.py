import json
import re
import shutil
import sys
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from serfer.core.checksum import protect, verified
from serfer.core.costs.sessions import session_bytes
from serfer.core.errors import AlteredPieceError, InputError, MissingKeyError, PlanError, StoreUnavailableError
from serfer.core.keys import ResultPlace, StoreCounts, input_key, output_key, reply_key
from serfer.core.plan import Levels, sealed
from serfer.core.plan.pixels import normalise
from serfer.core.wire import (
    Crop,
    Task,
    TaskError,
    decode_report,
    decode_reports,
    encode_task,
    encode_tasks,
    unpack_result,
)
from serfer.lambdas import sessions
from serfer.lambdas.artefacts import artefact_directory
from serfer.lambdas.sessions import SessionCache
from serfer.lambdas.worker import Worker
from serfer.pipeline.reference import normalised, unsplit
from serfer.plan_directory import load_plan, write_plan
from serfer.storage import open_store
from serfer.storage.memory import MemoryStore
from tests.e2e.small import GRIDS, batch, split_small
from tests.lambdas.started import ROOT, start
from tests.storage.s3_stub import stub

QUERY = "0123456789abcdef" * 2


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return split_small(tmp_path_factory.mktemp("small"), grids=[(3, 3), *GRIDS[1:]])


@pytest.fixture(scope="module")
def plan(directory):
    return load_plan(directory)


def task(plan, stage, tile, images=None):
    crop = None
    if stage == 0:
        rect = plan.stages[0].tiles[tile].inputs[0]
        crop = Crop("float32", np.ascontiguousarray(images[:, :, *rect.slices]).tobytes())
    count = 1 if images is None else len(images)
    return Task(plan.digest, QUERY, stage, tile, count, 60.0, crop, inline=stage == len(plan.stages) - 1)


def run_all(worker, plan, images, inline=()):
    """Run every task of a query and return all reports; the stages in `inline` answer with what they write."""
    reports, answers = [], {}
    for number, stage in enumerate(plan.stages):
        for index, tile in enumerate(stage.tiles):
            parts = [
                part
                for piece in tile.pieces
                for part in cut(answers.get((piece.stage, piece.tile)), piece, len(images))
            ]
            job = task(plan, number, index, images)
            report = worker.run(replace(job, inline=job.inline or number in inline, parts=tuple(parts)))
            answers[number, index] = report.output
            reports.append(report)
    return reports


def cut(output, piece, count):
    """Return the ranges of a piece, or None for each where its tile answered without what it wrote."""
    if output is None:
        return [None] * len(piece.ranges)
    return [output[part.start(count) :][: part.length(count)] for part in piece.ranges]


def floats(plan, stage, tile, count, value):
    """Return the values of all cells of what a tile wrote for `count` images."""
    words, end, values = np.frombuffer(value, "<f4"), 0, []
    for cell in plan.stages[stage].tiles[tile].cells:
        size = count * plan.stages[stage].outputs[cell.output].channels * cell.rect.area
        values.append(words[end : end + size])
        end += size + 1
    assert end == len(words)
    return np.concatenate(values)


@pytest.mark.parametrize("count", [1, 3])
def test_all_tasks_together_are_the_unsplit_network(worker, plan, directory, count):
    images = batch(count)
    output = verified(run_all(worker, plan, images)[-1].output, output_key(QUERY, 2, 0))
    logits = np.frombuffer(output, dtype=np.float32).reshape(count, -1)
    whole = unsplit(plan, directory)(images)
    assert np.abs(logits - whole).max() <= 1e-5 * np.ptp(whole)


def test_a_task_takes_few_calls(worker, plan):
    """Processes that take turns find each function out of the caches: what a task costs is how many it calls."""
    run_all(worker, plan, batch(1))
    events = [json.loads(encode_task(task(plan, 1, 0))), json.loads(encode_task(task(plan, 0, 0, batch(1))))]
    for event in events:
        calls = []
        sys.setprofile(
            lambda frame, kind, _, calls=calls: calls.append(frame.f_code.co_name) if kind == "call" else None
        )
        try:
            worker.handle(event)
        finally:
            sys.setprofile(None)
        cells = sum(len(run.cells) for piece in plan.stages[1].tiles[0].pieces for run in piece.ranges)
        assert len(calls) <= 130 + 10 * cells, Counter(calls).most_common(20)


@pytest.mark.exact
@pytest.mark.parametrize("inline", [{0}, {1}, {0, 1}])
def test_inline_outputs_equal_the_stored_ones(plan, directory, inline):
    stores = [MemoryStore(), MemoryStore()]
    workers = [Worker(plan, directory, store, "e", 1, 0.0) for store in stores]
    expected, got = run_all(workers[0], plan, batch(2)), run_all(workers[1], plan, batch(2), inline)
    assert got[-1].output == expected[-1].output
    places = [(number, tile) for number, stage in enumerate(plan.stages) for tile in range(len(stage.tiles))]
    for (number, tile), report in list(zip(places, got, strict=True))[:-1]:
        key = output_key(QUERY, number, tile)
        if number in inline:
            assert report.output == stores[0].get(key)
            assert report.counts.puts == 0
            assert not stores[1].exists([key])[0]
        else:
            assert report.output is None
            assert stores[1].get(key) == stores[0].get(key)
        assert (report.counts.gets == 0) == (number == 0 or number - 1 in inline)


def test_a_tile_reads_some_of_its_pieces_from_the_store_and_carries_the_others(plan, directory, store):
    """As a tile does that reads one tensor of an inline stage and one of a stored stage."""
    worker = Worker(plan, directory, store, "e", 1, 0.0)
    expected = run_all(worker, plan, batch(2))[-1].output
    tile = plan.stages[2].tiles[0]
    parts = [
        part
        for number, piece in enumerate(tile.pieces)
        for part in cut(store.get(output_key(QUERY, 1, piece.tile)) if number % 2 else None, piece, 2)
    ]
    store.delete([output_key(QUERY, 1, piece.tile) for piece in tile.pieces[1::2]])
    report = worker.run(replace(task(plan, 2, 0), batch=2, parts=tuple(parts)))
    assert report.output == expected
    assert report.counts.gets == parts.count(None) == len(parts) // 2


def test_pixels_are_normalised_by_the_worker(worker, plan, store):
    pixels = np.random.default_rng(3).integers(0, 256, (2, 34, 34, 3), dtype=np.uint8)
    rect = plan.stages[0].tiles[4].inputs[0]
    as_pixels = Crop("uint8", np.ascontiguousarray(pixels[:, *rect.slices]).tobytes())
    values = task(plan, 0, 4, normalised(plan, pixels))
    worker.run(values)
    expected = store.get(output_key(QUERY, 0, 4))
    worker.run(replace(values, crop=as_pixels))
    got = store.get(output_key(QUERY, 0, 4))
    actual, wanted = (floats(plan, 0, 4, 2, value) for value in (got, expected))
    assert np.abs(actual - wanted).max() < 1e-5


def test_pixels_with_levels_of_their_own_are_normalised_by_these(plan, directory, store):
    pixels = np.random.default_rng(3).integers(0, 256, (2, 34, 34, 3), dtype=np.uint8)
    other = Levels(1.0, (90.0, 100.0, 110.0), (60.0, 50.0, 40.0))
    rect, values = plan.stages[0].tiles[4].inputs[0], task(plan, 0, 4, normalise(pixels, other))
    crop = Crop("uint8", np.ascontiguousarray(pixels[:, *rect.slices]).tobytes())
    described = plan.redescribed(replace(plan.description, preprocess=None))
    worker = Worker(described, directory, store, "here", threads=1, init_ms=0.0)
    written = []
    for given in (values.crop, crop._replace(levels=other), crop):
        worker.run(replace(values, crop=given))
        written.append(store.get(output_key(QUERY, 0, 4)))
    assert written[0] == written[1] != written[2]
    Worker(plan, directory, store, "here", threads=1, init_ms=0.0).run(replace(values, crop=crop))
    assert store.get(output_key(QUERY, 0, 4)) == written[2]  # workers know the plan as it was split
    with pytest.raises(InputError, match="levels are of 1 channels, the tile has 3"):
        worker.run(replace(values, crop=crop._replace(levels=Levels(1.0, (0.0,), (1.0,)))))


def test_a_task_that_runs_twice_writes_the_same_bytes(plan, directory):
    stores = [MemoryStore(), MemoryStore()]
    outputs = [run_all(Worker(plan, directory, store, "e", 1, 0.0), plan, batch())[-1].output for store in stores]
    again = Worker(plan, directory, stores[0], "other", 1, 0.0)
    again.run(task(plan, 0, 0, batch()))
    assert outputs[0] == outputs[1]
    for number, stage in enumerate(plan.stages[:-1]):
        for tile in range(len(stage.tiles)):
            key = output_key(QUERY, number, tile)
            assert stores[0].get(key) == stores[1].get(key)


def test_a_report_counts_the_work_of_its_task(worker, plan, store):
    first, *others = run_all(worker, plan, batch())
    last = others[-1]
    assert (first.environment, first.init_ms) == ("here", 12.5)
    assert {report.init_ms for report in others} == {0.0}
    assert first.counts.puts == 1
    assert first.counts.bytes_put == len(store.get(output_key(QUERY, 0, 0)))
    assert last.counts.puts == 0
    cells = sum(len(tile.cells) for tile in plan.stages[1].tiles)
    assert last.counts.bytes_get == sum(4 * shape.elements for shape in plan.stages[1].outputs) + 4 * cells
    assert all(report.counts.exists == 0 for report in (first, *others))
    assert [report.output is None for report in (first, *others)] == [True] * len(others) + [False]
    assert first.total_ms >= first.compute_ms > 0


def test_a_payload_becomes_a_response(worker, plan):
    response = worker.handle(json.loads(encode_task(task(plan, 0, 0, batch()))))
    assert decode_report(json.loads(json.dumps(response))).counts.puts == 1


def test_a_crop_may_lie_in_the_store(worker, plan, store):
    job = task(plan, 0, 5, batch())
    worker.run(job)
    inline = store.get(output_key(QUERY, 0, 5))
    store.put(input_key(QUERY, 5), protect(job.crop.data, input_key(QUERY, 5)), 60)
    worker.run(replace(job, crop=Crop("float32", None)))
    assert store.get(output_key(QUERY, 0, 5)) == inline


class TestShared:
    """Tasks of several queries as one batch: each gets what it would have got alone."""

    def queries(self, plan, counts, stage, tile=0):
        return [
            replace(task(plan, stage, tile, batch(count, seed=seed)), query=f"{seed:032x}", batch=count)
            for seed, count in enumerate(counts)
        ]

    def earlier(self, worker, plan, counts, stage):
        for number in range(stage):
            for tile in range(len(plan.stages[number].tiles)):
                for job in self.queries(plan, counts, number, tile):
                    worker.run(job)

    def same(self, plan, job, got, expected):
        values, wanted = (floats(plan, job.stage, job.tile, job.batch, value) for value in (got, expected))
        assert len(values) == len(wanted)
        assert np.abs(values - wanted).max() <= 1e-5 * max(1.0, np.ptp(wanted))

    @pytest.mark.parametrize("counts", [(1, 1), (3, 1, 2), (1,) * 16])
    @pytest.mark.parametrize("stage", [0, 1, 2])
    def test_tasks_of_a_shared_invocation_produce_what_they_would_alone(self, worker, plan, store, counts, stage):
        self.earlier(worker, plan, counts, stage)
        jobs = self.queries(plan, counts, stage)
        reports = worker.run_shared(jobs)
        together = [
            report.output or store.get(output_key(job.query, stage, 0))
            for report, job in zip(reports, jobs, strict=True)
        ]
        for job, value in zip(jobs, together, strict=True):
            alone = worker.run(job).output or store.get(output_key(job.query, stage, 0))
            self.same(plan, job, value, alone)

    def test_pixels_and_floats_and_crops_in_the_store_mix(self, worker, plan, store):
        rect = plan.stages[0].tiles[4].inputs[0]
        pixels = np.random.default_rng(3).integers(0, 256, (2, 34, 34, 3), dtype=np.uint8)
        as_pixels = Crop("uint8", np.ascontiguousarray(pixels[:, *rect.slices]).tobytes())
        floats, stored = self.queries(plan, (2, 1), 0, 4)
        key = input_key(stored.query, 4)
        store.put(key, protect(stored.crop.data, key), 60)
        jobs = [floats, replace(stored, crop=Crop("float32", None)), replace(floats, query="a" * 32, crop=as_pixels)]
        reports = worker.run_shared(jobs)
        assert [report.counts.gets for report in reports] == [0, 1, 0]
        together = [store.get(output_key(job.query, 0, 4)) for job in jobs]
        for job, value in zip(jobs, together, strict=True):
            worker.run(job)
            self.same(plan, job, value, store.get(output_key(job.query, 0, 4)))

    def test_shared_reads_are_one_round_trip_and_counted_for_each_task(self, worker, plan, store, monkeypatch):
        counts = (1, 2, 3)
        self.earlier(worker, plan, counts, 2)
        jobs = self.queries(plan, counts, 2)
        alone = [worker.run(job).counts for job in jobs]
        trips, get_many = [], store.get_many
        monkeypatch.setattr(store, "get_many", lambda ranges: trips.append(len(ranges)) or get_many(ranges))
        reports = worker.run_shared(jobs)
        assert [report.counts for report in reports] == alone
        assert trips == [sum(one.gets for one in alone)]

    def test_times_are_divided_by_images_so_that_their_sums_stay_true(self, plan, directory, store):
        worker = Worker(plan, directory, store, "e", 1, 100.0)
        reports = worker.run_shared(self.queries(plan, (1, 3), 0))
        assert [report.init_ms for report in reports] == [25.0, 75.0]
        assert {report.shared for report in reports} == {2}
        for name in ("read_ms", "compute_ms", "write_ms", "total_ms"):
            one, other = (getattr(report, name) for report in reports)
            assert other == pytest.approx(3 * one)
        assert worker.run(task(plan, 0, 0, batch())).shared == 1

    def test_tiles_of_one_query_run_one_after_the_other_and_write_as_by_themselves(self, worker, plan, store):
        tiles = [self.queries(plan, (1,), 0, number)[0] for number in (2, 0, 1)]
        alone = []
        for task in tiles:
            worker.run(task)
            alone.append(bytes(store.get(output_key(task.query, 0, task.tile))))
            store.delete([output_key(task.query, 0, task.tile)])
        reports = worker.run_shared(tiles)
        assert [report.shared for report in reports] == [3, 3, 3]
        assert [bytes(store.get(output_key(task.query, 0, task.tile))) for task in tiles] == alone

    def test_a_task_with_lost_pieces_fails_alone(self, worker, plan, store):
        counts = (1, 1, 1)
        self.earlier(worker, plan, counts, 1)
        jobs = self.queries(plan, counts, 1)
        store.delete([output_key(jobs[1].query, 0, tile) for tile in range(9)])
        first, gone, last = worker.run_shared(jobs)
        assert (gone.error_type, jobs[1].query in gone.message) == ("MissingKeyError", True)
        assert (first.shared, last.shared) == (2, 2)
        assert store.exists([output_key(job.query, 1, 0) for job in jobs]) == [True, False, True]

    def test_a_task_with_wrong_parts_or_crop_fails_alone(self, worker, plan):
        good, bad = self.queries(plan, (1, 1), 0)
        results = worker.run_shared([replace(bad, crop=Crop("float32", b"")), good])
        assert results[0] == TaskError("InputError", results[0].message)
        assert results[1].shared == 1
        self.earlier(worker, plan, (1, 1), 2)
        good, bad = self.queries(plan, (1, 1), 2)
        assert [type(one) for one in worker.run_shared([good, replace(bad, parts=(b"",) * 3)])][1] is TaskError

    def test_each_task_has_an_error_where_all_pieces_are_lost(self, worker, plan):
        results = worker.run_shared(self.queries(plan, (1, 1), 1))
        assert [one.error_type for one in results] == ["MissingKeyError"] * 2
        jobs = [replace(job, plan="f" * 64) for job in self.queries(plan, (1, 1), 0)]
        with pytest.raises(InputError, match="another plan"):  # common to all tasks
            worker.run_shared(jobs)

    def test_a_payload_of_several_becomes_a_response_about_each(self, worker, plan):
        payload = json.loads(encode_tasks(self.queries(plan, (1, 2), 0)))
        reports = decode_reports(json.loads(json.dumps(worker.handle(payload))), 2)
        assert [report.counts.puts for report in reports] == [1, 1]


class TestRefused:
    @pytest.mark.parametrize(
        ("change", "error"),
        [
            ({"plan": "f" * 64}, InputError),
            *(
                ({"stage": stage, "tile": tile}, InputError)
                for stage, tile in [(0, 9), (3, 0), (1, 4), (-1, 0), (0, -1)]
            ),
            ({"crop": lambda data: data + bytes(4)}, InputError),
            ({"crop": lambda data: data[:-4]}, InputError),
            ({"crop": None}, MissingKeyError),
            ({"stage": 1}, MissingKeyError),  # whose pieces nobody has written
            ({"stage": 2, "parts": (b"",)}, InputError),
            ({"stage": 2, "parts": (b"",) * 5}, InputError),
        ],
    )
    def test_a_task_that_cannot_be_run(self, worker, plan, change, error):
        job = task(plan, 0, 0, batch())
        if change.get("crop"):
            change = {"crop": Crop("float32", change["crop"](job.crop.data))}
        with pytest.raises(error):
            worker.run(replace(job, **change))

    @pytest.mark.parametrize("carried", [False, True])
    @pytest.mark.parametrize("change", [lambda value: value + bytes(4), lambda value: value[:-4]])
    def test_a_piece_of_another_size(self, worker, plan, store, carried, change):
        run_all(worker, plan, batch())
        *keys, last = (output_key(QUERY, 1, tile) for tile in range(4))
        parts = (*map(store.get, keys), change(store.get(last)))
        store.put(last, parts[-1], 60)
        with pytest.raises(AlteredPieceError, match="another size"):
            worker.run(replace(task(plan, 2, 0), parts=parts if carried else ()))

    @pytest.mark.parametrize("alter", [lambda _: b"\xff\xff\xff\x7f", lambda value: bytes([value[0] ^ 1]) + value[1:4]])
    @pytest.mark.parametrize("carried", [False, True])
    def test_a_piece_that_was_altered(self, worker, plan, store, alter, carried):
        """A float of each cell that stage 1 wrote, and each checksum, in turn: as NaN, and with one bit flipped."""
        run_all(worker, plan, batch())
        keys = [output_key(QUERY, 1, tile) for tile in range(4)]
        whole = [bytes(store.get(key)) for key in keys]
        for number, tile in enumerate(plan.stages[1].tiles):
            end = 0
            for cell in tile.cells:
                size = 4 * plan.stages[1].outputs[cell.output].channels * cell.rect.area
                for place in (end, end + size - 4, end + size):
                    value = whole[number]
                    altered = value[:place] + alter(value[place : place + 4]) + value[place + 4 :]
                    parts = (*whole[:number], altered, *whole[number + 1 :])
                    store.put(keys[number], altered, 60)
                    with pytest.raises(AlteredPieceError, match=keys[number]):
                        worker.run(replace(task(plan, 2, 0), parts=parts if carried else ()))
                end += size + 4
            store.put(keys[number], whole[number], 60)
        worker.run(task(plan, 2, 0))

    def test_a_piece_of_another_tile_or_query(self, worker, plan, store):
        """As a store's client returns it that hands out the response to another request."""
        run_all(worker, plan, batch())
        keys = [output_key(QUERY, 1, tile) for tile in range(4)]
        sizes = [len(store.get(key)) for key in keys]
        assert sizes[0] == sizes[1], "same length, so that only the checksum differs"
        store.put(keys[0], store.get(keys[1]), 60)
        with pytest.raises(AlteredPieceError, match=keys[0]):
            worker.run(task(plan, 2, 0))
        run_all(worker, plan, batch())
        other = "f" * 32
        for tile in range(4):
            store.put(output_key(other, 1, tile), store.get(keys[tile]), 60)
        with pytest.raises(AlteredPieceError, match=other):
            worker.run(replace(task(plan, 2, 0), query=other))

    def test_a_crop_that_was_altered_in_the_store(self, worker, plan, store):
        job = task(plan, 0, 5, batch())
        key = input_key(QUERY, 5)
        value = bytearray(protect(job.crop.data, key))
        value[17] ^= 4
        store.put(key, bytes(value), 60)
        with pytest.raises(AlteredPieceError, match=key):
            worker.run(replace(job, crop=Crop("float32", None)))

    @pytest.mark.parametrize(
        "event",
        [None, {}, [], "x", {"task": 5}, {"task": "!"}, {"task": "gqFhAaFiAg=="}, {"tasks": 5}, {"tasks": "gA=="}],
    )
    def test_an_event_that_is_not_a_task(self, worker, event):
        with pytest.raises(InputError):
            worker.handle(event)

    def test_a_package_without_its_stage(self, plan, directory, store, tmp_path):
        part = tmp_path / "package"
        shutil.copytree(directory / "stage-0", part / "stage-0")
        run_all(Worker(plan, directory, store, "e", 1, 0.0), plan, batch())
        worker = Worker(plan, part, store, "e", 1, 0.0)
        worker.run(task(plan, 0, 0, batch()))
        with pytest.raises(PlanError, match=r"stage-1/weights-0\.bin cannot be read"):
            worker.run(task(plan, 1, 0))

    @pytest.mark.parametrize("case", ["too large, folded", "too large", "an operator that there is not"])
    def test_a_graph_that_onnx_runtime_refuses(self, plan, directory, store, tmp_path, case):
        """160 TB, whether ONNX Runtime knows the shape before it runs or computes it from the input's, among others."""
        shutil.copytree(directory, tmp_path / "plan")
        last = plan.stages[-1].tiles[0]
        path = tmp_path / "plan" / last.graph
        model = onnx.load(path, load_external_data=False)
        if "too large" in case:
            greedy(model, folded="folded" in case)
        else:
            model.graph.node[-1].op_type = "NoSuchOperator"
        path.write_bytes(model.SerializeToString())
        run_all(Worker(plan, directory, store, "e", 1, 0.0), plan, batch())
        reason = " takes 1[0-9,]+ bytes" if "too large" in case else "NoSuchOperator"
        with pytest.raises(PlanError, match=rf"{last.graph} cannot be computed: .*{reason}"):
            Worker(plan, tmp_path / "plan", store, "e", 1, 0.0).run(task(plan, 2, 0))

    def test_a_function_without_room_for_what_onnx_runtime_takes_besides(self):
        error = RuntimeError("[ONNXRuntimeError] : 1 : FAIL : std::bad_alloc")
        said = str(sessions._failure_text("stage-0/a.onnx", error))
        assert said.startswith("stage-0/a.onnx cannot be computed: the function has too little memory")
        assert "--memory" in said


def greedy(model, *, folded):
    """Let a tile's graph add the sum of a tensor of zeros far beyond any memory to its output."""
    graph, side = model.graph, 2 * 10**6
    output = graph.output[0].name
    last = next(node for node in graph.node if output in node.output)
    last.output[:] = ["before"]
    graph.initializer.append(numpy_helper.from_array(np.array([side, side], dtype=np.int64), "side"))
    shape = "side"
    if not folded:
        graph.node.append(helper.make_node("Shape", ["before"], ["shape"]))
        graph.node.append(helper.make_node("Mul", ["shape", "side"], ["large"]))
        shape = "large"
    graph.node.append(helper.make_node("ConstantOfShape", [shape], ["huge"]))
    graph.node.append(helper.make_node("ReduceSum", ["huge"], ["sum"], keepdims=0))
    graph.node.append(helper.make_node("Add", ["before", "sum"], [output]))


class TestSessions:
    def test_weights_are_read_once_over_many_tile_shapes(self, worker, plan):
        graphs = {tile.graph for tile in plan.stages[0].tiles}
        reports = [worker.run(task(plan, 0, tile, batch())) for tile in range(9)] * 2
        assert len(graphs) > 3
        assert {report.weight_loads for report in reports} == {1}
        assert max(report.sessions for report in reports) == len(graphs)

    def test_memory_bounds_sessions_and_the_oldest_is_evicted(self, plan, directory):
        stage = plan.stages[0]
        first, second, third = list({tile.graph: tile for tile in stage.tiles}.values())[:3]
        room = sum(session_bytes(stage.functions[0], tile.graph) for tile in (first, second, third)) - 1
        cache = SessionCache(directory, threads=1, most_bytes=room)
        kept = cache.get(stage, first)
        cache.get(stage, second)
        assert cache.get(stage, first) is kept
        cache.get(stage, third)  # the second goes
        assert cache.get(stage, first) is kept
        assert cache.built == 3
        cache.get(stage, second)
        assert (cache.built, cache.weight_loads) == (4, 1)

    def test_a_session_larger_than_all_memory_is_kept_until_the_next_one(self, plan, directory):
        stage = plan.stages[0]
        first, second = list({tile.graph: tile for tile in stage.tiles}.values())[:2]
        cache = SessionCache(directory, threads=1, most_bytes=0)
        assert cache.get(stage, first) is cache.get(stage, first)
        cache.get(stage, second)
        cache.get(stage, first)
        assert cache.built == 3

    def test_building_a_session_holds_up_nobody_who_needs_another(self, plan, directory, monkeypatch):
        stage = plan.stages[0]
        there, new = list({tile.graph: tile for tile in stage.tiles}.values())[:2]
        cache = SessionCache(directory, threads=1)
        ready, begun, go_on = cache.get(stage, there), threading.Event(), threading.Event()
        session = sessions._session

        def slow(*given):
            begun.set()
            assert go_on.wait(30)
            return session(*given)

        monkeypatch.setattr(sessions, "_session", slow)
        with ThreadPoolExecutor(3) as pool:
            first = pool.submit(cache.get, stage, new)
            assert begun.wait(30)
            second = pool.submit(cache.get, stage, new)
            assert pool.submit(cache.get, stage, there).result(30) is ready
            assert not [one for one in (first, second) if one.done()]
            go_on.set()
            assert first.result() is second.result()
        assert cache.built == 2

    def test_a_session_that_could_not_be_built_is_tried_again(self, plan, directory, monkeypatch):
        stage, session = plan.stages[0], sessions._session
        cache = SessionCache(directory, 1)
        monkeypatch.setattr(sessions, "_session", lambda *_: 1 / 0)
        with pytest.raises(PlanError, match="cannot be computed"):
            cache.get(stage, stage.tiles[0])
        monkeypatch.setattr(sessions, "_session", session)
        assert cache.get(stage, stage.tiles[0])
        assert cache.built == 1

    def test_threads_share_sessions_and_answers_do_not_mix(self, plan, directory, store):
        worker = Worker(plan, directory, store, "e", 1, 7.0)
        seeds = range(12)

        def one(seed):
            job = replace(task(plan, 0, seed % 9, batch(seed=seed)), query=f"{seed:032x}")
            return worker.run(job)

        with ThreadPoolExecutor(8) as threads:
            reports = list(threads.map(one, seeds))
        assert {report.weight_loads for report in reports} == {1}
        assert max(report.sessions for report in reports) == len({tile.graph for tile in plan.stages[0].tiles})
        alone = Worker(plan, directory, MemoryStore(), "alone", 1, 0.0)
        for seed in seeds:
            alone._store = MemoryStore()
            alone.run(replace(task(plan, 0, seed % 9, batch(seed=seed)), query=f"{seed:032x}"))
            key = output_key(f"{seed:032x}", 0, seed % 9)
            assert alone._store.get(key) == store.get(key)


class TestBootstrap:
    def test_a_function_without_its_store_or_plan_fails_in_init_with_the_reason(self, directory, tmp_path):
        for home, variables, reason in (
            (directory, {"SERFER_STORE": ""}, "SERFER_STORE is not set"),
            (tmp_path, {}, "plan.json"),
        ):
            run = start(home, **variables)
            assert run.returncode != 0
            assert re.search(f"PlanError: .*{reason}", run.stderr.splitlines()[-1])

    @pytest.mark.parametrize("path", ["objects", "cache"])
    def test_a_second_store_is_opened_for_a_plan_that_uses_it(self, plan, directory, tmp_path, path):
        first, *others = plan.stages
        apart = sealed(replace(plan, stages=(replace(first, path=path), *others)))
        write_plan(apart, tmp_path)
        shutil.copytree(directory / "stage-0", tmp_path / "stage-0")
        code = (
            "from serfer.core.keys import output_key; "
            "[b._WORKER._store.put(output_key('0' * 32, number, 0), b'x', 60) for number in (0, 1)]"
        )
        urls = {"SERFER_STORE": f"file://{tmp_path}/main", "SERFER_OBJECT_STORE": f"file://{tmp_path}/objects"}
        run = start(tmp_path, code, **urls)
        assert run.returncode == 0, run.stderr
        assert (tmp_path / "objects").exists() == (path == "objects")
        with open_store(urls["SERFER_STORE"]) as store:
            assert store.exists([output_key("0" * 32, number, 0) for number in (0, 1)]) == [path == "cache", True]

    def test_artefacts_missing_from_the_package_are_read_from_a_layer(self, directory, tmp_path):
        package, layer = tmp_path / "package", tmp_path / "layer"
        package.mkdir()
        shutil.copy(directory / "plan.json", package)
        shutil.copytree(directory / "stage-1", layer / "serfer_plan" / "stage-1")
        code = "print(b._WORKER._sessions._directory)"
        run = start(package, code, PYTHONPATH=f"{ROOT}:{layer}")
        assert (run.returncode, run.stdout.strip()) == (0, str(layer / "serfer_plan")), run.stderr
        run = start(package)
        assert "PlanError: neither " in run.stderr.splitlines()[-1]

    def test_copies_of_a_snapshot_have_their_own_environment_id_and_store(self, directory):
        """Lambda's runtime runs the hooks in each copy, before its first invocation."""
        code = """
from snapshot_restore_py import get_after_restore
from serfer.core.wire import WarmUp
worker, plan = b._WORKER, b._PLAN
request = WarmUp(plan.digest, 0, 0, 0.0)
first, again = worker.warm(request), worker.warm(request)
assert first.init_ms > 0 and again.init_ms == 0, (first, again)
store = worker._store
[(hook, arguments, named)] = get_after_restore()
hook(*arguments, **named)
copy, later = worker.warm(request), worker.warm(request)
assert copy.environment not in {"", first.environment} and worker._store is not store
assert copy.init_ms > 0 and later.init_ms == 0, (copy, later)
assert copy.sessions == again.sessions > 0
"""
        run = start(directory, code)
        assert run.returncode == 0, run.stderr

    def test_two_copies_of_one_snapshot_share_no_id_jitter_or_connection(self, directory):
        """A forked process is a copy of the image, once it has the image's process id and random numbers, too.

        obstore's threads are in a snapshot, but not in a fork: so its connections are looked at in one process.
        """
        code = """
import json, os, random, sys
from types import SimpleNamespace
from snapshot_restore_py import get_after_restore
worker, closed = b._WORKER, []
worker._sessions._source = SimpleNamespace(close=lambda: closed.append("weights"))
numbers, process = random.getstate(), os.getpid()
[(hook, arguments, named)] = get_after_restore()
for copy in ("one", "two"):
    if child := os.fork():
        assert os.waitpid(child, 0)[1] == 0
        continue
    random.setstate(numbers)
    os.getpid = lambda: process
    hook(*arguments, **named)
    worker._store.put(copy, b"x", 60)
    print(json.dumps([worker._environment, random.random(), closed]), flush=True)
    os._exit(0)
worker._store.put("image", b"x", 60)
hook(*arguments, **named)
worker._store.put("restored", b"x", 60)
"""
        with stub(lambda _: (200, {"ETag": '"e"', "x-amz-request-id": "r"}, b"")) as (endpoint, seen):
            access = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1"}
            run = start(directory, code, SERFER_STORE=f"s3://bucket/p?endpoint={endpoint}", **access)
        assert run.returncode == 0, run.stderr
        one, two = map(json.loads, run.stdout.splitlines())
        assert one[0] != two[0]
        assert one[1] != two[1]
        assert one[2] == two[2] == ["weights"]
        assert len({request.port for request in seen}) == len(seen) == 4

    @pytest.mark.parametrize(("error", "level"), [("GangAbortedError", "INFO"), ("GangStalledError", "ERROR")])
    def test_a_member_that_was_told_to_stop_logs_no_error(self, directory, error, level):
        code = f"""
from types import SimpleNamespace
from serfer.core import errors
def stopped(event):
    raise errors.{error}("why")
b._WORKER.handle = stopped
try:
    b.handler({{}}, SimpleNamespace(aws_request_id="an id"))
except errors.{error}:
    print("a function error")
"""
        run = start(directory, code)
        line, raised = run.stdout.splitlines()
        log = json.loads(line)
        assert (log["level"], log["invocation"], raised) == (level, "an id", "a function error")

    @pytest.mark.parametrize("name", ["POWERTOOLS_LOG_LEVEL", "LOG_LEVEL"])
    def test_log_level_in_lower_case_is_taken_beside_lambdas_own(self, directory, name):
        for own, details in (("DEBUG", True), ("info", False)):
            run = start(directory, "print(b._logs_details())", **{name: "debug", "AWS_LAMBDA_LOG_LEVEL": own})
            assert (run.returncode, run.stdout) == (0, f"{details}\n"), run.stderr

    def test_a_runtime_without_snapshots_starts(self, directory):
        run = start(directory, before="import sys; sys.modules['snapshot_restore_py'] = None\n")
        assert run.returncode == 0, run.stderr

    def test_a_start_imports_no_more_than_its_first_task_takes(self, directory, tmp_path):
        """Each module is processor time in every cold start: one that a task may need is imported by that task."""
        package = tmp_path / "function"
        shutil.copytree(directory, package, ignore=shutil.ignore_patterns("explanation.json"))
        code = (
            "import sys; stage = b._PLAN.stages[0]; "
            "b._WORKER._sessions.get(stage, stage.tiles[0]); "
            "print(*(name for name in sys.modules if name.partition('.')[0] in "
            "{'redis', 'aws_lambda_powertools', 'botocore', 'asyncio', 'ssl', 'uuid', 'torch', 'onnx', 'boto3', "
            "'pydantic', 'typer', 'rich', 'PIL', 'aiohttp', 'concurrent'} or name.startswith('serfer.')))"
        )
        run = start(package, code, SERFER_STORE="redis://127.0.0.1:1/0")
        assert run.returncode == 0, run.stderr
        assert {*run.stdout.split()} <= STARTED_WITH

    def test_a_start_leaves_numpy_without_threads(self, directory):
        code = "import os; print(len(os.listdir('/proc/self/task')))"
        run = start(directory, code)
        assert (run.returncode, run.stdout) == (0, "1\n"), run.stderr


STARTED_MODULES = """
core core.checksum core.costs core.costs.sessions core.costs.vcpus core.dataclass_codec core.errors core.geometry
core.keys core.plan core.plan.codec core.plan.detection core.plan.image_normalisation core.plan.layout
core.plan.model core.plan.pixels core.plan.preprocess core.plan.sizes core.plan.statistics core.plan.validation
core.plan.windows core.retry core.units core.wire
lambdas lambdas.artefacts lambdas.bootstrap lambdas.cell_codec lambdas.deferred_init lambdas.sessions
lambdas.stage_share lambdas.worker
storage storage.coordination storage.exchange storage.redis storage.redis.errors
storage.redis.node storage.redis.resp storage.redis.store storage.redis.url storage.routed storage.store
extras plan_directory storage.wrapping
"""
STARTED_WITH = {f"serfer.{name}" for name in STARTED_MODULES.split()}
"""What a worker imports of these packages until its first session, with a store on Redis."""


def as_step(one):
    names = ("plan", "query", "stage", "tile", "batch", "ttl")
    return {"step": {**{name: getattr(one, name) for name in names}, "dtype": "float32"}}


class TestOtherPayloads:
    """What a state machine, the poll driver and a warm-up send."""

    def test_a_step_functions_step_equals_a_task(self, worker, plan, directory, store):
        images = batch(2)
        for number, stage in enumerate(plan.stages):
            for tile in range(len(stage.tiles)):
                one = task(plan, number, tile, images)
                if number == 0:
                    key = input_key(QUERY, tile)
                    store.put(key, protect(one.crop.data, key), 60)
                assert decode_report(worker.handle(as_step(replace(one, batch=2)))).counts.puts == 1
        key = output_key(QUERY, len(plan.stages) - 1, 0)
        logits = np.frombuffer(verified(store.get(key), key), "<f4").reshape(2, -1)
        assert np.allclose(logits, unsplit(plan, directory)(images), atol=1e-5)

    @pytest.mark.hostile
    @pytest.mark.parametrize(
        "change",
        [{"query": "x"}, {"stage": "0"}, {"tile": -1}, {"batch": 0}, {"ttl": "60"}, {"dtype": "pickle"}, {"plan": 1}],
    )
    def test_a_malformed_step_is_refused(self, worker, plan, change):
        step = as_step(task(plan, 0, 0, batch(1)))
        step["step"] |= change
        with pytest.raises(InputError):
            worker.handle(step)

    def test_an_events_report_is_written_to_its_reply_key(self, worker, plan, store):
        one = replace(task(plan, 0, 3, batch(1)), reply=7)
        assert worker.handle(json.loads(encode_task(one))) == {}
        report = unpack_result(verified(store.get(reply_key(QUERY, 0, 3, 7)), reply_key(QUERY, 0, 3, 7)))
        assert report.counts.puts == 1
        assert store.exists([output_key(QUERY, 0, 3)]) == [True]
        assert worker.handle(json.loads(encode_task(replace(task(plan, 2, 0), reply=0)))) == {}
        error = unpack_result(verified(store.get(reply_key(QUERY, 2, 0, 0)), reply_key(QUERY, 2, 0, 0)))
        assert (type(error), error.error_type) == (TaskError, "MissingKeyError")

    def test_a_task_that_is_not_an_event_has_no_reply(self, worker, plan):
        with pytest.raises(InputError, match="not an event"):
            worker.reply(task(plan, 0, 3, batch(1)))

    def test_writing_a_reply_is_retried_while_the_store_is_unavailable(self, plan, directory, monkeypatch):
        class Shaky(MemoryStore):
            left = 3

            def put(self, key, value, ttl):
                if ":r" in key and (left := self.left):
                    self.left = left - 1
                    raise StoreUnavailableError("gone")
                super().put(key, value, ttl)

        waits = []
        monkeypatch.setattr("time.sleep", waits.append)
        store = Shaky()
        worker = Worker(plan, directory, store, "here", threads=1, init_ms=0.0)
        one = replace(task(plan, 0, 3, batch(1)), reply=7)
        worker.reply(one)
        key = reply_key(QUERY, 0, 3, 7)
        assert unpack_result(verified(store.get(key), key)).counts.puts == 1
        assert waits == sorted(waits)
        assert len(waits) == 3
        store.left = 1000
        with pytest.raises(StoreUnavailableError):
            worker.reply(one)

    @pytest.mark.parametrize("keep", [True, False])
    def test_clean_up_deletes_only_the_keys_of_its_query(self, worker, plan, store, keep):
        last = len(plan.stages) - 1
        other = "f" * 32
        for query in (QUERY, other):
            for number, stage in enumerate(plan.stages):
                for tile in range(len(stage.tiles)):
                    store.put(output_key(query, number, tile), b"x", 60)
            store.put(input_key(query, 0), b"x", 60)
        assert worker.handle({"clean_up": {"plan": plan.digest, "query": QUERY, "keep_answer": keep}}) == {}
        left = {key for key in store._values if QUERY in key}
        assert left == ({output_key(QUERY, last, 0)} if keep else set())
        assert sum(other in key for key in store._values) == sum(len(stage.tiles) for stage in plan.stages) + 1

    def test_warming_up_builds_every_session_of_a_function(self, worker, plan):
        event = {"warm": {"plan": plan.digest, "stage": 0, "part": 0, "hold_s": 0}}
        graphs = {tile.graph for tile in plan.stages[0].tiles}
        known = {"environment": "here", "sessions": len(graphs), "fetch_ms": 0.0}
        assert worker.handle(event) == {"warm": {**known, "init_ms": 12.5}}
        assert worker.handle(event)["warm"] == {**known, "init_ms": 0.0}
        assert worker.run(task(plan, 0, 0, batch(1))).init_ms == 0.0

    def test_warming_up_for_one_tile_builds_its_session(self, worker, plan):
        event = {"warm": {"plan": plan.digest, "stage": 0, "part": 0, "hold_s": 0, "tile": 1}}
        assert len({tile.graph for tile in plan.stages[0].tiles}) > 1
        assert worker.handle(event)["warm"]["sessions"] == 1

    @pytest.mark.hostile
    @pytest.mark.parametrize(
        "payload",
        [
            {"warm": {"plan": "{digest}", "stage": 9, "part": 0, "hold_s": 0}},
            {"warm": {"plan": "{digest}", "stage": 0, "part": 9, "hold_s": 0}},
            {"warm": {"plan": "{digest}", "stage": 0, "part": 0, "hold_s": 1e9}},
            {"warm": {"plan": "{digest}", "stage": -1, "part": 0, "hold_s": 0}},
            {"warm": {"plan": "{digest}", "stage": 0, "part": 0, "hold_s": 0, "tile": "0"}},
            {"warm": {"plan": "another", "stage": 0, "part": 0, "hold_s": 0}},
            {"warm": {}},
            {"warm": None},
            {"clean_up": {"plan": "another", "query": QUERY, "keep_answer": True}},
            {"clean_up": {"plan": "{digest}", "query": "*", "keep_answer": True}},
            {"clean_up": {"plan": "{digest}", "query": QUERY, "keep_answer": "yes"}},
            {"clean_up": []},
        ],
    )
    def test_a_malformed_request_is_refused(self, worker, plan, payload):
        text = json.dumps(payload).replace("{digest}", plan.digest)
        with pytest.raises(InputError):
            worker.handle(json.loads(text))


class TestArtefacts:
    def test_the_package_is_searched_before_the_layers_in_order(self, plan, directory, tmp_path):
        layers = [tmp_path / name for name in ("empty", "near", "far")]
        for layer, stage in zip(layers[1:], ("stage-0", "stage-1"), strict=True):
            shutil.copytree(directory / stage, layer / "serfer_plan" / stage)
        entries = ["", *map(str, layers)]
        assert artefact_directory(plan, directory, entries) == directory
        assert artefact_directory(plan, tmp_path, entries) == layers[1] / "serfer_plan"
        assert artefact_directory(plan, tmp_path, entries[::-1]) == layers[2] / "serfer_plan"

    @pytest.mark.parametrize("lost", ["weights-0.bin", "*.onnx"])
    def test_incomplete_functions_and_other_plans_files_are_ignored(self, plan, directory, tmp_path, lost):
        shutil.copytree(directory / "stage-0", tmp_path / "serfer_plan" / "stage-0")
        file = next((tmp_path / "serfer_plan" / "stage-0").glob(lost))
        data = file.read_bytes()
        for change in (lambda: file.write_bytes(data + b"x"), file.unlink):
            change()
            with pytest.raises(PlanError, match=f"the plan {plan.digest[:12]}: package and deploy"):
                artefact_directory(plan, tmp_path / "package", [str(tmp_path)])


class TestResults:
    PLACE = ResultPlace("ab" * 32, "0" * 32, 60.0)
    CHUNK = "0/c/0/0"
    KEY = PLACE.key(CHUNK)

    def test_the_last_stage_writes_its_result_to_the_store_of_results_and_nowhere_else(self, plan, directory):
        store, results = MemoryStore(), MemoryStore()
        worker = Worker(plan, directory, store, "e", 1, 0.0, results=results)
        answer = run_all(worker, plan, batch(2))[-1].output
        before = set(store._values)
        for _ in range(2):
            report = worker.run(replace(task(plan, 2, 0), batch=2, inline=False, result=self.PLACE))
            assert report.output is None
            written = results.get(self.KEY)
            assert report.counts - StoreCounts(bytes_put=len(written), puts=1) == StoreCounts(
                bytes_get=report.counts.bytes_get, gets=report.counts.gets
            )
            assert written[:-4] == verified(answer, output_key(QUERY, 2, 0))
        assert set(store._values) == before
        assert set(results._values) == {self.KEY}

    def test_tasks_of_one_invocation_write_each_to_its_own_place(self, plan, directory):
        store, results = MemoryStore(), MemoryStore()
        worker = Worker(plan, directory, store, "e", 1, 0.0, results=results)
        run_all(worker, plan, batch(1))
        places = [replace(self.PLACE, id=digit * 32) for digit in "12"]
        tasks = [replace(task(plan, 2, 0), inline=False, result=place) for place in places]
        carried, *kept = worker.run_shared([task(plan, 2, 0), *tasks])
        assert [report.output for report in kept] == [None, None]
        values = [results.get(place.key(self.CHUNK))[:-4] for place in places]
        assert values == [verified(carried.output, output_key(QUERY, 2, 0))] * 2

    def test_a_worker_without_a_store_of_results_says_so(self, plan, directory, store):
        worker = Worker(plan, directory, store, "e", 1, 0.0)
        run_all(worker, plan, batch(1))
        with pytest.raises(PlanError, match="SERFER_RESULTS is not set"):
            worker.run(replace(task(plan, 2, 0), result=self.PLACE))

    def test_what_is_no_answer_is_no_result(self, plan, directory, store):
        worker = Worker(plan, directory, store, "e", 1, 0.0, results=store)
        with pytest.raises(InputError, match="last stage"):
            worker.run(replace(task(plan, 0, 0, batch(1)), result=self.PLACE))
