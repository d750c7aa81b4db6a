"""Gangs from the outside: right answers over every store and driver, whatever happens to their members."""

import itertools
import json
import os
import re
import signal
import threading
import time
from contextlib import ExitStack

import numpy as np
import pytest

import serfer
from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import DeadlineError, GangStalledError, UsageError
from serfer.core.exactness import difference
from serfer.core.hedging import LearntHedging
from serfer.drivers.push import gang_progress
from serfer.lambdas.gang import GangRun
from serfer.local.lambda_.environment import Environment
from serfer.local.servers.redis import RedisServer
from serfer.pipeline.reference import unsplit
from serfer.pipeline.trace import trace_events
from serfer.plan_directory import load_plan
from serfer.storage import open_store
from serfer_bench.chaos import scenarios
from tests.e2e.conftest import PATIENCE, eventually, keys
from tests.e2e.gangs import BLOCKS, Invocations, images, ran, residual, split_gang, wait_sent
from tests.e2e.small import hand_on

ABORTED_S = 0.5  # 10 to 40 ms, with a margin for a busy machine; a member whose gang was not aborted waits for 10 s
EXCITED = ("narrow0", "mean0.tiles", "narrow1", "mean1.tiles", "pool.tiles")
NETWORKS = {
    "rows": ((24, 20), BLOCKS, "2x1 2x1 2x1 1", [(0, 4)]),
    "three rows": ((23, 19), BLOCKS, "3x1 3x1 3x1 1", [(0, 4)]),
    "two by two": ((21, 27), BLOCKS, "2x2 2x2 2x2 1", [(0, 4)]),
    "columns": ((17, 25), BLOCKS, "1x3 1x3 1x3 1", [(0, 4)]),
    "five rows on three tiles": ((5, 9), BLOCKS, "3x1 3x1 3x1 1", [(0, 4)]),
    "sums": ((19, 22), EXCITED, "2x1 2x1 2x1 2x1 2x1 1", [(0, 6)]),
    "sums of three": ((19, 22), EXCITED, "3x1 3x1 3x1 3x1 3x1 1", [(0, 6)]),
    "fewer tiles later": ((24, 20), BLOCKS, "2x2 2x1 1x2 1", [(0, 4)]),
    "fewer and again more tiles": ((24, 20), ("stem", *BLOCKS), "2x2 2x2 2x1 2x2 1", [(0, 5)]),
    "one tile in the middle": ((24, 20), ("stem", *BLOCKS), "2x1 2x1 1 2x1 1", [(0, 5)]),
    "after a whole first stage": ((24, 20), ("stem", *BLOCKS), "1 2x1 2x1 2x1 1", [(1, 5)]),
    "two gangs": ((24, 20), ("stem", "narrow0", "mid0", "narrow1"), "2x1 2x1 3x1 3x1 1", [(0, 2), (2, 5)]),
}
FEW = ("two by two", "five rows on three tiles", "sums of three", "fewer and again more tiles", "two gangs")
"""What is checked at a commit: both directions, too few rows, reductions, other grids, and more than one gang."""


def network(name, directory):
    size, cuts, grids, gangs = NETWORKS[name]
    model = residual(size, excite="mean0.tiles" in cuts)
    directory = split_gang(directory, model, grids=grids.split(), cuts=cuts)
    assert [(gang.start, gang.stop) for gang in load_plan(directory).gangs] == gangs
    return directory


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.weekly) for name in NETWORKS]
)
def test_a_gang_answers_as_the_unsplit_network_and_as_its_stages_one_by_one(tmp_path, monkeypatch, name):
    directory = network(name, tmp_path)
    plan = load_plan(directory)
    whole = unsplit(plan, directory)
    inside = [[*gang.stages] for gang in plan.gangs]
    batches = [images(plan, count, seed=count) for count in (1, 3)]
    with serfer.open(directory, gangs="never") as pipeline:
        answers = [pipeline.run(batch) for batch in batches]
        assert ran(pipeline.last) == []
    assert all(difference(answer, whole(batch)).exact for answer, batch in zip(answers, batches, strict=True))

    def check_bits(stages):
        for batch, answer in zip(batches, answers, strict=True):
            assert np.array_equal(pipeline.run(batch), answer)
            assert ran(pipeline.last) == stages

    run = GangRun.run
    for inline in ("planned", "always"):
        with serfer.open(directory, inline=inline) as pipeline:
            for _ in range(5):
                check_bits([*itertools.chain(*inside)])
            for stages in inside:

                def stalling(member, *given, first=stages[0]):
                    if member._gang.start == first:
                        stalled()
                    return run(member, *given)

                monkeypatch.setattr(GangRun, "run", stalling)
                check_bits([*itertools.chain(*(others for others in inside if others is not stages))])
            monkeypatch.setattr(GangRun, "run", run)


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """A gang of two, which is the whole plan."""
    return network("rows", tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def three(tmp_path_factory):
    return network("three rows", tmp_path_factory.mktemp("three"))


@pytest.fixture
def invocations(monkeypatch):
    return Invocations(monkeypatch)


def start(pipeline, seed=0, **options):
    batch = images(pipeline.plan, seed=seed)
    return pipeline.submit(batch, **options), batch


def check(pipeline, directory, query, *, gang=True):
    future, batch = query
    result = future.result(PATIENCE)
    assert difference(result.logits, unsplit(pipeline.plan, directory)(batch)).exact
    assert bool(ran(result)) == gang
    return result.report


def test_what_a_gang_takes_is_not_compared_with_what_its_stages_take_one_by_one(rows, monkeypatch):
    learnt = []
    monkeypatch.setattr(LearntHedging, "learn", lambda _, stage, __: learnt.append(stage))
    with serfer.open(rows) as pipeline:
        check(pipeline, rows, start(pipeline))
        assert learnt == [0, 0]
        monkeypatch.setattr(GangRun, "run", stalled)
        check(pipeline, rows, start(pipeline), gang=False)
        assert sorted(learnt) == [0, 0, 1, 1, 2, 2, 3]


def stalled(*_):
    raise GangStalledError("a test stalls it")


def test_what_is_read_outside_of_a_gang_may_lie_in_a_second_store(tmp_path, redis):
    directory = hand_on(network("two gangs", tmp_path), (), objects=(0, 1))
    with serfer.open(directory, store=redis, object_store=f"file://{tmp_path / 'objects'}") as pipeline:
        check(pipeline, directory, start(pipeline))


def test_borders_that_were_lost_without_notice_are_not_waited_for_in_vain(rows, monkeypatch):
    """The store comes back empty while the member that has sent them computes, which hence sees no failure."""
    monkeypatch.setattr("serfer.core.plan.gang_times._COLD_START_S", 0.5)
    sent, restarted, send = threading.Event(), threading.Event(), GangRun._send

    def losing(member, *given):
        if member._task.tile == 1:
            assert restarted.wait(PATIENCE)
        send(member, *given)
        if member._task.tile == 0:
            sent.set()
            assert restarted.wait(PATIENCE)

    monkeypatch.setattr(GangRun, "_send", losing)
    with RedisServer() as first, serfer.open(rows, store=first.url) as pipeline:
        query = start(pipeline)
        assert sent.wait(PATIENCE)
        first.stop()
        with RedisServer(first.port, first.url.partition("@")[0].removeprefix("redis://:")) as second:
            restarted.set()
            check(pipeline, rows, query, gang=False)
            check(pipeline, rows, start(pipeline, 1))
            eventually(lambda: keys(second.url) == [], "the queries' keys are deleted")
            pipeline.close()


@pytest.mark.parametrize("kind", ["file", "cluster"])
def test_local_workers_run_gangs_over_every_store_with_inboxes(rows, settings, kind, url_of, invocations):
    with serfer.open(rows, store=url_of(kind), workers="local", settings=settings) as pipeline:
        for seed in range(3):
            check(pipeline, rows, start(pipeline, seed))
        assert [(task.stage, task.tile) for task in invocations.seen] == [(0, 0), (0, 1)] * 3


class TestChaos:
    @pytest.fixture
    def opened(self, settings, redis, invocations):
        """Open a plan with local workers, warm but held still; they run again at the end."""
        with ExitStack() as parts:

            def make(directory, **chosen):
                pipeline = parts.enter_context(
                    serfer.open(directory, **{"store": redis, "workers": "local", "settings": settings, **chosen})
                )
                parts.callback(invocations.resume)
                eventually(lambda: all(one.warm == one.asked for one in pipeline.warm()), "all are warm")
                return pipeline

            yield make

    @pytest.fixture
    def held(self, opened, rows, invocations):
        """A pipeline, a query whose members have not begun, one's task, and the process ids of both."""
        pipeline = opened(rows)
        invocations.stop()
        query = start(pipeline)
        return pipeline, query, *invocations.members(2)

    @pytest.mark.killed
    @pytest.mark.parametrize("when", [pytest.param("before", marks=pytest.mark.weekly), "waiting", "between"])
    def test_a_member_that_is_killed_is_run_again_and_finds_what_it_missed(self, held, rows, redis, invocations, when):
        pipeline, query, task, pids = held
        if when != "before":
            os.kill(pids[0], signal.SIGCONT)
            wait_sent(redis, task, 2, 0, 0)
        if when == "between":
            os.kill(pids[0], signal.SIGSTOP)
            os.kill(pids[1], signal.SIGCONT)
            wait_sent(redis, task, 2, 0, 1)
        os.kill(pids[0], signal.SIGKILL)
        invocations.resume()
        assert check(pipeline, rows, query).retries == 1

    def test_a_frozen_member_costs_the_others_their_patience_and_its_late_messages_expire(
        self, monkeypatch, opened, rows, redis, invocations
    ):
        monkeypatch.setattr("serfer.drivers.query_store.STRAGGLER_S", 0.1)
        pipeline = opened(rows)
        monkeypatch.setattr("serfer.core.plan.gang_times._COLD_START_S", 0.5)
        invocations.stop()
        query = start(pipeline)
        task, pids = invocations.members(2)
        os.kill(pids[0], signal.SIGCONT)
        check(pipeline, rows, query, gang=False)
        eventually(lambda: keys(redis) == [], "the query's keys are deleted")
        os.kill(pids[1], signal.SIGCONT)
        wait_sent(redis, task, 2, 0, 1)
        with open_store(redis) as store:
            left = keys(redis)
            assert left
            assert all(0 < ms <= 1000 * task.ttl for ms in store.execute([("PTTL", key) for key in left]))
            invocations.idle()
            store.delete([key.decode() for key in keys(redis)])

    @pytest.mark.parametrize("behind", [pytest.param("from the start", marks=pytest.mark.weekly), "later"])
    def test_a_late_member_gets_a_duplicate_and_the_answer_is_the_same(
        self, opened, rows, invocations, monkeypatch, behind
    ):
        probed = threading.Event()

        async def watched(*given):
            at = await gang_progress(*given)
            probed.set()
            return at

        pipeline = opened(rows)
        for seed in range(12):
            check(pipeline, rows, start(pipeline, seed))
        invocations.stop()
        query = start(pipeline)
        late, pids = invocations.members(2)
        if behind == "later":
            monkeypatch.setattr("serfer.drivers.push.gang_progress", watched)
            assert probed.wait(PATIENCE)
        os.kill(pids[1], signal.SIGCONT)
        assert check(pipeline, rows, query).hedges >= 1  # on a busy machine also for other tasks
        assert [task.tile for task in invocations.seen if task and task.query == late.query].count(0) == 2

    @pytest.mark.slow
    def test_members_that_all_freeze_are_ended_by_their_functions_time_limit(
        self, monkeypatch, opened, rows, invocations
    ):
        for name in ("_COLD_START_S", "_REPORT_S"):
            monkeypatch.setattr(f"serfer.core.plan.gang_times.{name}", 1.0)
        pipeline = opened(rows)
        invocations.stop()
        assert check(pipeline, rows, start(pipeline)).retries == 2

    @pytest.mark.slow
    def test_a_member_that_is_cold_by_two_seconds_is_waited_for(self, settings, rows, redis, invocations):
        with serfer.open(rows, store=redis, workers="local", settings=settings) as pipeline:
            query = start(pipeline)
            _, pids = invocations.members(2)
            os.kill(pids[1], signal.SIGSTOP)
            timer = threading.Timer(2, os.kill, [pids[1], signal.SIGCONT])
            timer.start()
            assert check(pipeline, rows, query).retries == 0
            timer.join()

    def test_a_store_that_comes_back_empty_costs_no_answer(self, opened, rows, invocations):
        with RedisServer() as first:
            pipeline = opened(rows, store=first.url)
            invocations.stop()
            query = start(pipeline)
            task, pids = invocations.members(2)
            os.kill(pids[0], signal.SIGCONT)
            wait_sent(first.url, task, 2, 0, 0)
            first.stop()
            with RedisServer(first.port, first.url.partition("@")[0].removeprefix("redis://:")) as second:
                invocations.resume()
                check(pipeline, rows, query)
                check(pipeline, rows, start(pipeline, 1))
                eventually(lambda: keys(second.url) == [], "the queries' keys are deleted")
                pipeline.close()

    @pytest.mark.two_at_once
    @pytest.mark.parametrize(("account", "each"), [pytest.param(4, 2, marks=pytest.mark.slow), (3, 2)])
    def test_two_drivers_with_parts_of_one_account(self, rows, settings, redis, share, account, each):
        _, shared = share(rows, limits=settings.model_copy(update={"local_concurrency": account}))
        chosen = {"workers": "local", "settings": shared.model_copy(update={"local_concurrency": each})}
        with serfer.open(rows, store=redis, **chosen) as one, serfer.open(rows, store=redis, **chosen) as other:
            whole = unsplit(one.plan, rows)
            queries = [start((one, other)[seed % 2], seed, deadline_s=60.0) for seed in range(50)]
            gangs = 0
            for future, batch in queries:
                result = future.result(PATIENCE)
                gangs += bool(ran(result))
                assert difference(result.logits, whole(batch)).exact
            assert gangs == 50 or account < 2 * each

    @pytest.mark.parametrize("end", ["cancelled", "deadline"])
    def test_members_that_wait_end_with_the_query(self, opened, three, redis, invocations, end):
        pipeline = opened(three)
        invocations.stop()
        future, _ = start(pipeline, deadline_s=1.0 if end == "deadline" else PATIENCE)
        task, pids = invocations.members(3)
        for tile in (0, 1):
            os.kill(pids[tile], signal.SIGCONT)
            wait_sent(redis, task, 3, 0, tile)
        if end == "cancelled":
            ended = time.monotonic()
            future.cancel()
        else:
            with pytest.raises(DeadlineError):
                future.result(PATIENCE)
            ended = time.monotonic()
        assert invocations.idle(but={2}) - ended < ABORTED_S
        resumed = time.monotonic()
        invocations.resume()
        assert invocations.idle() - resumed < ABORTED_S
        eventually(lambda: keys(redis) == [], "the query's keys are deleted")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("killed", "store", "driver"),
        *(pytest.param(name, marks=pytest.mark.weekly) for name in ("restarted", "throttled", "slow")),
    ],
)
def test_the_chaos_suite_loses_no_query_of_two_gangs(settings, tmp_path, name):
    eight = settings.model_copy(update={"local_concurrency": 8})
    options = scenarios.Options(None, network("two gangs", tmp_path), 48, None, 300.0)
    suite = scenarios.prepared(options, eight, lambda _: None)
    for outcome in scenarios.measure([scenarios.SCENARIOS[name].driven_by("push")], suite):
        assert outcome.problems == ()


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("driver", "workers", "kind"),
    [
        ("poll", "inprocess", "redis"),
        slow("poll", "local", "redis"),
        slow("stepfunctions", "local", "redis"),
        slow("stepfunctions-express", "local", "redis"),
        ("push", "inprocess", "s3"),  # a store without inboxes
        slow("push", "local", "s3"),
    ],
)
def test_what_cannot_run_a_gang_runs_its_stages_one_by_one(rows, settings, invocations, driver, workers, kind, url_of):
    with serfer.open(rows, store=url_of(kind), workers=workers, driver=driver, settings=settings) as pipeline:
        for seed in range(2):
            check(pipeline, rows, start(pipeline, seed), gang=False)
    assert all(task.gang is None for task in invocations.seen if task)


class TestRefused:
    @pytest.fixture
    def narrow(self, settings):
        return settings.model_copy(update={"local_concurrency": 2})

    @pytest.mark.parametrize("workers", ["inprocess", "local"])
    def test_a_gang_wider_than_the_local_concurrency(self, three, narrow, workers):
        with pytest.raises(UsageError, match=r"needs 3 invocations at once, 2 are allowed.*SERFER_LOCAL_CONCURRENCY"):
            serfer.open(three, workers=workers, settings=narrow)

    def test_drivers_that_run_stages_one_by_one_take_it(self, three, narrow, redis):
        with serfer.open(three, store=redis, driver="poll", settings=narrow) as pipeline:
            check(pipeline, three, start(pipeline), gang=False)


BILLED = re.compile(r"Billed Duration: (\d+) ms\tMemory Size: (\d+) MB")


@pytest.fixture(scope="module")
def gang(tmp_path_factory):
    return split_gang(tmp_path_factory.mktemp("gang"))


@pytest.fixture
def billed(monkeypatch):
    """Return the REPORT lines of all invocations so far, as (billed ms, MB)."""
    lines, settle = [], Environment._settle

    def recorded(self, *given):
        if self._invocation:
            log = self._report(self._invocation).decode()
            lines.append(tuple(map(int, BILLED.search(log).groups())))
        settle(self, *given)

    monkeypatch.setattr(Environment, "_settle", recorded)
    return lines


def test_a_gangs_report_is_what_lambda_bills_for_its_members(tmp_path, settings, redis, billed):
    directory, facts = split_gang(tmp_path, grids=("3x1", "3x1", "3x1", "1")), shipped_aws().functions
    shares = []
    with serfer.open(directory, store=redis, workers="local", settings=settings) as pipeline:
        for cold in (3, 0, 0):
            del billed[:]
            pipeline.run(images(pipeline.plan))
            report = pipeline.last_report
            assert len(billed) == 3
            assert [stage.cold for stage in report.stages] == [cold, 0, 0, 0]
            requests = 3 * facts.price_request
            lambdas = sum(ms / 1000 * mb / 1024 for ms, mb in billed) * facts.price_gb_second
            more_s = 0.001 + cold / os.sysconf("SC_CLK_TCK")  # a process knows when it was started to a tick
            more = sum(mb / 1024 for _, mb in billed) / 3 * more_s * facts.price_gb_second
            assert requests < report.cost_usd <= requests + lambdas + more
            shares.append((report.cost_usd - requests) / lambdas)
        assert max(shares) >= 0.5  # the runtime's own time is not seen, which is more of it on a busy machine
        assert [stage.gang for stage in report.stages] == [0, 0, 0, 0]
        assert report.stages[0].bytes_exchanged == 0 < report.stages[1].bytes_exchanged
        assert 0 < report.wait_gb_s < lambdas / facts.price_gb_second
        events = trace_events([("query", pipeline.last)])
    assert json.loads(json.dumps(events))
    spans = [event for event in events if event["ph"] == "X"]
    parts = [span for span in spans if span["name"].startswith("stage-") and "serfer.tile" in span["args"]]
    assert (len([span for span in spans if span["name"].startswith("task ")]), len(parts)) == (3, 3 * 3 + 1)


def test_commands_show_a_gang(gang, serfer_here, examples):
    where = ("--plan", gang, "--workers", "inprocess", "--store", "memory://")
    shown = serfer_here("classify", *where, examples / "rocket.jpg")
    assert shown.code == 0
    [head] = [line for line in shown.lines if "exchanged" in line]
    assert head.split()[-3:] == ["gang", "exchanged", "waited"]
    rows = [line.split() for line in shown.lines if line.split()[:1] in (["stage-0"], ["stage-3"])]
    assert [row.count("stage-0") for row in rows] == [2, 1]
    assert "for one another" in shown.out
    verified = serfer_here("verify", gang, "--workers", "inprocess", "--store", "memory://", "--json")
    assert verified.code == 0, verified.err


def test_a_gangs_function_is_warmed_once_for_all_of_its_members(gang, settings, redis):
    with serfer.open(gang, store=redis, workers="local", settings=settings) as pipeline:
        [warmth] = pipeline.warm(queries=2, hold_s=3.0)
        assert (warmth.asked, warmth.warm, warmth.problem) == (4, 4, None)
        pipeline.run(images(pipeline.plan))
        assert [stage.cold for stage in pipeline.last_report.stages] == [0, 0, 0, 0]
