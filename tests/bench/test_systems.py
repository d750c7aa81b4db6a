"""Every system that is put under load: the same answer, bytes and polls counted rightly, nothing left running."""

import itertools
import json
import shutil
from dataclasses import replace
from functools import partial

import numpy as np
import psutil
import pytest

import serfer
from serfer.core.errors import DeadlineError, InputError, QueryError, UsageError
from serfer.core.exactness import difference
from serfer.core.keys import StoreCounts
from serfer.core.plan import PackageLimit, sealed
from serfer.pipeline.reference import unsplit
from serfer.plan_directory import load_plan, write_plan
from serfer.settings import Settings
from serfer.storage import open_store
from serfer.storage.memory import MemoryStore
from serfer_bench.core.part_times import LAYER, MERGE, MISS, POLL, READ, SPLIT, WRITE
from serfer_bench.load.pipeline_system import PipelineSystem
from serfer_bench.load.systems import BASELINES, SERFER, Setup, open_systems
from serfer_bench.study.baselines.deployment import package, queries_at_once
from serfer_bench.study.baselines.fork_join import ForkJoin, held_groups
from serfer_bench.study.baselines.handlers.environment import Environment
from serfer_bench.study.baselines.handlers.gillis_worker import work
from serfer_bench.study.baselines.handlers.lambda_layer import run_task
from serfer_bench.study.baselines.handlers.objects import View, decode, encode
from serfer_bench.study.baselines.handlers.payload import from_json, to_json
from serfer_bench.study.papers.serfer.poll_driver import POLLS_BEFORE_RETRY, PollDriver
from tests.core.plans import small_plan
from tests.e2e.conftest import PATIENCE, eventually
from tests.e2e.small import CLASSES, GRIDS, SIZE

PIXELS = np.random.default_rng(5).integers(0, 256, (3, SIZE, SIZE, 3), dtype=np.uint8)
IMAGE_BYTES = 4 * 3 * SIZE * SIZE
HEADERS = 1.1  # of what is stored: what the baselines' objects may have besides tensors


@pytest.fixture(scope="module")
def plan(directory):
    return load_plan(directory)


@pytest.fixture(scope="module")
def whole(plan, directory):
    return unsplit(plan, directory)


def descendants():
    return set(psutil.Process().children(recursive=True))


def ours(directory, settings, workers="inprocess", in_flight=None):  # noqa: ARG001 - as baselines are made
    pipeline = serfer.open(directory, workers=workers, settings=settings)
    return PipelineSystem(SERFER, pipeline, deadline_s=PATIENCE)


SYSTEMS = {SERFER: partial(ours, workers="local"), **BASELINES}
FEW = ("gillis",)
"""What is started at a commit: ours has tests of its own (tests/e2e), and the papers' come every week."""


def marked(names):
    return [name if name in FEW else pytest.param(name, marks=pytest.mark.weekly) for name in names]


@pytest.fixture(scope="class")
def system(request, lean, settings):
    """A system that tests of a class share: what it starts takes seconds. It leaves no process."""
    before = descendants()
    with SYSTEMS[request.param](lean, settings, in_flight=2) as system:
        yield system
        assert descendants() > before
    assert descendants() == before


class TestStarted:
    @pytest.mark.parametrize("system", marked(SYSTEMS), indirect=True)
    def test_it_answers_as_the_unsplit_model_and_refuses_pixels_that_do_not_fit_at_once(self, system, lean, request):
        assert system.name == request.node.callspec.params["system"]
        batches = [PIXELS[:1], PIXELS, PIXELS[1:2]]  # more than may be in flight
        for pixels, future in [(pixels, system.submit(pixels)) for pixels in batches]:
            logits = future.result(PATIENCE)
            assert (logits.shape, logits.dtype) == ((len(pixels), CLASSES), np.float32)
            assert difference(logits, unsplit(load_plan(lean), lean)(pixels)).exact
        for pixels in (PIXELS[:, 1:], PIXELS[0], PIXELS[:0]):
            with pytest.raises(InputError, match="the batch is uint8 with shape"):
                system.submit(pixels)

    @pytest.mark.weekly
    @pytest.mark.parametrize("system", ["serfer-published", "serfer-repaired"], indirect=True)
    def test_serfers_counts_are_those_of_redis_and_its_keys_stay(self, system, lean):
        before = system.counts()
        for future in [system.submit(PIXELS[:1]) for _ in range(3)]:
            future.result(PATIENCE)
        counts = system.counts()
        with open_store(system.store_url) as store:
            keys = store.execute([("KEYS", "*")])[0]
            sizes = store.execute([("STRLEN", key) for key in keys])
            calls = {name: _calls(store, name) for name in ("get", "set", "del", "unlink")}
        assert (counts - before).puts == 3 * 2 * load_plan(lean).tasks
        assert counts.exists > 0  # of the first query at least, which waits for processes to start
        assert len(keys) == counts.puts == calls["set"]
        assert counts.bytes_put == sum(sizes)
        assert counts.gets + counts.exists == calls["get"]
        assert counts.bytes_get >= counts.bytes_put  # everything is read once at least
        assert calls["del"] == calls["unlink"] == 0


class TestEverySystem:
    @pytest.mark.parametrize("name", marked(BASELINES))
    def test_closing_a_baseline_ends_queries_in_flight(self, name, directory, settings):
        before = descendants()
        with BASELINES[name](directory, settings, in_flight=1) as system:
            idle = descendants()
            futures = [system.submit(PIXELS) for _ in range(3)]
            eventually(
                lambda: len(descendants() - idle) >= GRIDS[0][0] * GRIDS[0][1], "the first stage's workers start"
            )
        assert descendants() == before
        assert all(future.done() for future in futures)

    def test_an_unknown_one_is_refused_with_the_names_that_there_are(self, directory, settings):
        engines = "poll, stepfunctions, stepfunctions-express"
        words = (
            f"serfer, unshared, {engines}, function, unsplit, serfer-published, serfer-repaired, gillis, not 'pocket'"
        )
        with (
            pytest.raises(UsageError, match=words),
            open_systems(["pocket"], directory, Setup("local", 2), settings, lambda _: None),
        ):
            pytest.fail("it opened")

    def test_one_that_does_not_open_leaves_no_process(self, directory, settings, monkeypatch):
        before = descendants()
        monkeypatch.setattr("serfer_bench.study.papers.serfer.driver_process.dying_with_me", lambda *_: ["/bin/false"])
        with pytest.raises(QueryError, match="the driver's process has ended"):
            BASELINES["serfer-repaired"](directory, settings, in_flight=2)
        assert descendants() == before


class TestCounts:
    def test_ours_and_their_parts_are_those_of_the_reports(self, directory, settings, plan):
        with ours(directory, settings) as system:
            system.submit(PIXELS[:1]).result(PATIENCE)
            one = system.counts()
            assert (one.exists, system.totals().polls, system.totals().bytes_put) == (0, 0, one.bytes_put)
            assert one.bytes_get > 0
            system.submit(PIXELS[:1]).result(PATIENCE)
            assert system.counts() == one + one
            times = system.take_times()
            assert system.take_times() == {}
        stages = range(1, len(plan.stages) + 1)
        assert {part: len(ms) for part, ms in times.items()} == {
            SPLIT: 2,
            READ: 2 * (plan.tasks - len(plan.stages[0].tiles)),
            WRITE: 2 * (plan.tasks - 1),
            **{LAYER.format(number): 2 for number in stages},
        }
        assert all(ms > 0 for part in times.values() for ms in part)


def _calls(store, name):
    lines = store.execute([("INFO", "commandstats")])[0].decode().splitlines()
    return next((int(line.partition("calls=")[2].split(",")[0]) for line in lines if f"_{name}:" in line), 0)


class Functions:
    """Runs events at once and in this thread, but for those whose number is in `lost`."""

    def __init__(self, plan, directory, lost=()):
        self.store = MemoryStore()
        self.events = []
        self._lost = lost
        self._environment = Environment(plan, directory, threads=1)

    def invoke(self, function, payload):
        self.events.append((function, json.loads(payload)))
        if len(self.events) - 1 not in self._lost:
            run_task(self.events[-1][1], self._environment, self.store)

    def tiles(self):
        return [(event["stage"], event["tile"]) for _, event in self.events]


def every_tile(plan):
    return [(number, tile) for number, stage in enumerate(plan.stages) for tile in range(len(stage.tiles))]


class TestPollDriver:
    def driver(self, plan, functions, *, contiguous=True, **settings):
        return PollDriver(plan, functions.store, functions.invoke, contiguous=contiguous, **settings)

    def test_it_invokes_one_tile_after_the_other_and_times_every_part_until_taken(self, plan, directory, whole):
        functions = Functions(plan, directory)
        driver = self.driver(plan, functions)
        assert difference(driver.run(PIXELS), whole(PIXELS)).exact
        assert functions.tiles() == every_tile(plan)
        assert all(function == plan.function(event["stage"], 0) for function, event in functions.events)
        times = driver.take_times()
        stages = len(plan.stages)
        assert {part: len(ms) for part, ms in times.items()} == {
            READ: plan.tasks,
            WRITE: plan.tasks,
            SPLIT: plan.tasks,
            MERGE: stages,
            POLL: stages,
            **{LAYER.format(number): 1 for number in range(1, stages + 1)},
        }
        assert driver.take_times() == {}

    def test_as_published_a_tile_is_stored_with_the_whole_tensor_that_it_is_cut_from(self, plan, directory):
        stored = {}
        for contiguous in (False, True):
            driver = self.driver(plan, Functions(plan, directory), contiguous=contiguous)
            driver.run(PIXELS[:1])
            stored[contiguous] = driver.counts.bytes_put
        written = [
            4 * sum(stage.outputs[cell.output].channels * cell.rect.area for tile in stage.tiles for cell in tile.cells)
            for stage in plan.stages
        ]
        maps = [4 * sum(shape.elements for shape in stage.outputs) for stage in plan.stages]
        wholes = 4 * IMAGE_BYTES + 4 * maps[0] + maps[1] + sum(maps)
        tiles = sum(
            4 * stage.inputs[0].shape.channels * tile.inputs[0].area for stage in plan.stages for tile in stage.tiles
        )
        assert wholes < stored[False] < HEADERS * wholes
        assert tiles + sum(maps) < stored[True] < HEADERS * (tiles + sum(maps))
        ours = sum(written[:-1])  # crops ride along, and so does the answer
        assert stored[False] > 8 * ours
        assert stored[True] > 2 * ours

    def test_a_straggler_is_invoked_again_after_ten_thousand_polls_and_earlier_values_read_again(
        self, plan, directory, whole
    ):
        functions = Functions(plan, directory, lost={2})
        driver = self.driver(plan, functions)
        assert difference(driver.run(PIXELS), whole(PIXELS)).exact
        first, second, third, fourth, *later = every_tile(plan)
        assert functions.tiles() == [first, second, third, fourth, third, *later]
        assert driver.counts.exists == POLLS_BEFORE_RETRY == 10_000
        assert len(driver.take_times()[MISS]) == POLLS_BEFORE_RETRY
        early = self.driver(plan, Functions(plan, directory))
        early.run(PIXELS)
        again = driver.counts - early.counts
        assert again.gets == 2 * POLLS_BEFORE_RETRY + 1  # tiles 0 and 1 each time, and the lost task's own
        assert again.puts == 1

    def test_it_gives_up_at_its_deadline(self, plan, directory):
        ticks = itertools.count()
        functions = Functions(plan, directory, lost=range(4, 9))
        driver = self.driver(plan, functions, deadline_s=50.0, clock=lambda: float(next(ticks)))
        with pytest.raises(DeadlineError, match="stage 1 did not end within 50 s"):
            driver.run(PIXELS)
        assert driver.counts.exists == 51


class TestForkJoin:
    def test_a_master_takes_the_first_groups_that_fit_its_memory_and_its_package(self, plan):
        sizes = [stage.functions[0].bytes for stage in plan.stages]
        everything = [(0, 0), (1, 0), (2, 0)]
        assert held_groups(plan, 1769) == everything
        assert held_groups(plan, 120) == []
        for room, held in ((sum(sizes), 3), (sum(sizes) - 1, 2), (sizes[0] - 1, 0)):
            small = replace(plan, limit=PackageLimit(1000 + room, 1000))
            assert len([one for one in held_groups(small, 1769) if one in everything[:held]]) == held

    @pytest.mark.parametrize("with_room", [True, False])
    def test_payloads_carry_every_part_but_what_the_master_has_room_for_both_ways(
        self, with_room, tmp_path, lean, settings
    ):
        directory, plan = shutil.copytree(lean, tmp_path / "plan"), load_plan(lean)
        if not with_room:
            write_plan(sealed(replace(plan, limit=PackageLimit(1000, 1000))), directory)
        with ForkJoin(directory, settings, in_flight=1) as system:
            assert bool(system.held) == with_room
            logits = system.submit(PIXELS[:1]).result(PATIENCE)
            sent = [tile for tile in every_tile(plan) if tile[1] > 0 or not with_room]
            assert system.payload_bytes == sum(carried(plan, tile) for tile in sent)
            assert system.counts() == StoreCounts()
        assert difference(logits, unsplit(plan, lean)(PIXELS[:1])).exact

    def test_a_worker_that_fails_ends_the_query_with_its_words(self, directory, settings, monkeypatch):
        monkeypatch.setattr(
            "serfer_bench.study.baselines.fork_join.to_json", lambda array: {**to_json(array), "shape": [1, 1]}
        )
        with (
            ForkJoin(directory, settings, in_flight=1) as system,
            pytest.raises(QueryError, match="tensor does not have the bytes that its shape needs"),
        ):
            system.submit(PIXELS).result(PATIENCE)


def carried(plan, place):
    """Return the bytes of a part's activations in one image's payloads: an image travels as bytes."""
    stage, tile = plan.stages[place[0]], plan.stages[place[0]].tiles[place[1]]
    scale = 4 if place[0] else 1
    read = sum(source.shape.channels * rect.area for source, rect in zip(stage.inputs, tile.inputs, strict=True))
    written = sum(shape.channels * rect.area for shape, rect in zip(stage.outputs, tile.outputs, strict=True))
    return scale * read + 4 * written


def test_as_many_queries_are_in_flight_as_are_never_refused_and_more_or_none_are_an_error():
    mine = Settings(local_concurrency=16)
    found = [queries_at_once(chosen, tasks, mine) for chosen, tasks in ((None, 4), (3, 4), (None, 16), (1, 5))]
    assert found == [4, 3, 1, 1]
    for chosen, tasks in ((5, 4), (None, 17), (0, 4)):
        with pytest.raises(UsageError, match="SERFER_LOCAL_CONCURRENCY=16"):
            queries_at_once(chosen, tasks, mine)


class TestFormats:
    def test_an_object_keeps_a_views_whole_storage_and_shows_its_part(self):
        whole = np.arange(2 * 3 * 5 * 5, dtype=np.float32).reshape(2, 3, 5, 5)
        view = View.of(whole, (slice(None), slice(None), slice(1, 4), slice(2, 5)))
        for stored, size in ((view, whole.nbytes), (view.alone(), view.array.nbytes)):
            value = encode([stored, View.of(whole[:1])])
            assert 0 < len(value) - size - whole[:1].nbytes < 100
            first, second = decode(value)
            assert np.array_equal(first.array, whole[:, :, 1:4, 2:5])
            assert np.array_equal(second.array, whole[:1])

    @pytest.mark.parametrize("value", [b"", b"\x01\0\0\0\xc1", encode([View.of(np.ones((2, 2), np.float32))])[:-1]])
    def test_an_invalid_object_is_refused(self, value):
        with pytest.raises(InputError, match="holds no tensors"):
            decode(value)

    @pytest.mark.parametrize("array", [PIXELS, PIXELS[:, 3:, 2:], np.ones((2, 3), np.float32)])
    def test_a_payload_carries_arrays_as_they_are(self, array):
        restored = from_json(json.loads(json.dumps(to_json(array))))
        assert restored.dtype == array.dtype
        assert np.array_equal(restored, array)

    @pytest.mark.parametrize(
        "change", [{"dtype": "object"}, {"shape": [7]}, {"shape": ["x"]}, {"data": "?"}, {"data": 1}]
    )
    def test_a_payload_that_carries_none_is_refused(self, change):
        with pytest.raises(InputError, match="the payload"):
            from_json({**to_json(np.ones(2, np.float32)), **change})

    @pytest.mark.parametrize("event", [None, {}, {"query": "x", "stage": 0, "tile": 0}, {"stage": 0, "tile": 0}])
    def test_events_that_name_no_task_and_tiles_that_the_plan_does_not_have_are_refused(self, event, plan, directory):
        environment = Environment(plan, directory, threads=1)
        with pytest.raises(InputError):
            run_task(event, environment, MemoryStore())
        with pytest.raises(InputError):
            work(event, environment)
        for place in ((0, 4), (3, 0), (-1, 0), (0, -1)):
            with pytest.raises(InputError, match="the plan has no tile"):
                environment.compute(*place, [])


@pytest.mark.parametrize("place", ["fetched", "image"])
def test_a_baseline_refuses_weights_that_are_not_in_zips(tmp_path, place):
    plan = small_plan()
    plan = sealed(replace(plan, stages=(plan.stages[0], replace(plan.stages[1], weights_in=place))))
    with pytest.raises(UsageError, match="split with --set weights=zip"):
        package(plan, tmp_path, plan.functions, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
