"""A gang's members in threads of this process, over a store in memory."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from serfer.core.errors import AlteredPieceError, GangAbortedError, GangStalledError, InputError, PlanError
from serfer.core.keys import inbox_key, output_key
from serfer.core.plan.borders import BORDER_HEADER, Member, borders, members
from serfer.core.wire import Crop, Membership, Task
from serfer.lambdas.worker import Worker
from serfer.plan_directory import load_plan
from serfer.storage import Range
from serfer.storage.exchange import START, Message
from serfer.storage.memory import MemoryStore
from tests.e2e.small import batch, split_small

QUERY = "0123456789abcdef" * 2
TTL = 60.0


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return split_small(tmp_path_factory.mktemp("gang"), grids=[(2, 2), (2, 2), (2, 2), (1, 1)], gang="always")


@pytest.fixture(scope="module")
def plan(directory):
    plan = load_plan(directory)
    [gang] = plan.gangs
    assert (gang.start, gang.stop) == (0, 4)
    return plan


def member(plan, tile, images, patience_s=20.0):
    rect = plan.stages[0].tiles[tile].inputs[0]
    crop = Crop("float32", np.ascontiguousarray(images[:, :, *rect.slices]).tobytes())
    gang = Membership(plan.gangs[0].stop, patience_s)
    return Task(plan.digest, QUERY, 0, tile, len(images), TTL, crop, inline=True, gang=gang)


def together(worker, tasks):
    with ThreadPoolExecutor(len(tasks)) as threads:
        return [*threads.map(worker.run, tasks)]


def run(worker, plan, images):
    return together(worker, [member(plan, tile, images) for tile in range(4)])


def staged(plan, directory, images):
    """Return what every tile of every stage writes where stages run one by one."""
    store = MemoryStore()
    worker = Worker(plan, directory, store, "there", threads=1, init_ms=0.0)
    for number, stage in enumerate(plan.stages):
        for tile in range(len(stage.tiles)):
            task = (
                member(plan, tile, images) if number == 0 else Task(plan.digest, QUERY, number, tile, len(images), TTL)
            )
            worker.run(replace(task, gang=None, inline=False))
    return store


def inbox(store, tile):
    return [value for _, value in store.exchange().receive(inbox_key(QUERY, 0, tile), START, 0.0)]


@pytest.mark.exact
@pytest.mark.parametrize("count", [1, 3])
def test_a_gang_answers_bit_for_bit_as_its_stages_do_one_by_one(worker, plan, directory, count):
    images = batch(count)
    first, *others = run(worker, plan, images)
    last = len(plan.stages) - 1
    expected = staged(plan, directory, images).get(output_key(QUERY, last, 0))
    assert bytes(first.later[-1].output) == expected
    assert [len(report.later) for report in (first, *others)] == [3, 2, 2, 2], "the head is the first member's"


def test_members_write_nothing_but_borders(worker, plan, store):
    run(worker, plan, batch(1))
    for stage in range(len(plan.stages)):
        assert store.exists([output_key(QUERY, stage, tile) for tile in range(4)]) == [False] * 4
    member_one = Member(plan, plan.gangs[0], 1)
    assert {BORDER_HEADER.unpack_from(value) for value in inbox(store, 1)} == set(member_one.received)


def test_what_is_read_after_the_gang_is_written(directory, worker, plan, store):
    task = replace(member(plan, 0, batch(1)), inline=False)
    together(worker, [task, *(member(plan, tile, batch(1)) for tile in (1, 2, 3))])
    last = len(plan.stages) - 1
    expected = staged(plan, directory, batch(1)).get(output_key(QUERY, last, 0))
    assert store.get_many([Range(output_key(QUERY, last, 0))]) == [expected]


def test_every_member_receives_what_the_others_send_it(plan):
    [gang] = plan.gangs
    for tile in range(members(plan, gang)):
        me = Member(plan, gang, tile)
        for source, cells in me.received.items():
            assert [border.cells for border in borders(plan, gang, source) if border.reader == tile] == [cells]
        sent = {(stage, border.reader) for stage, several in me.sent.items() for border in several}
        for other in range(members(plan, gang)):
            received = {stage for stage, source in Member(plan, gang, other).received if source == tile}
            assert received == {stage for stage, reader in sent if reader == other}


def test_a_report_shares_the_invocation_among_its_stages(worker, plan):
    reports = run(worker, plan, batch(1))
    for report in reports:
        every = [report, *report.later]
        assert {each.shared for each in every} == {len(every)}
        assert [each.init_ms for each in every[1:]] == [0.0] * (len(every) - 1)
        assert all(each.wait_ms <= each.read_ms for each in every)
    assert sum(report.init_ms for report in reports) == 12.5
    sent = sum(each.counts.bytes_put for report in reports for each in (report, *report.later))
    got = sum(each.counts.bytes_get for report in reports for each in (report, *report.later))
    boards = BORDER_HEADER.size * 4 * 3
    assert sent == got + boards


@pytest.mark.killed
def test_a_member_that_died_is_run_again_after_the_others_and_finds_all_it_needs(worker, plan):
    first = run(worker, plan, batch(1))
    again = worker.run(member(plan, 0, batch(1), patience_s=0.01))
    assert bytes(again.later[-1].output) == bytes(first[0].later[-1].output)


def test_borders_that_come_twice_count_once(worker, plan, store):
    images = batch(1)
    expected = run(worker, plan, images)[0].later[-1].output
    twice = [Message(inbox_key(QUERY, 0, 0), value) for value in inbox(store, 0)]
    store.exchange().send([*twice, *twice], TTL)
    assert bytes(run(worker, plan, images)[0].later[-1].output) == bytes(expected)


def test_a_member_alone_stalls_and_names_the_border_that_it_waits_for(worker, plan):
    with pytest.raises(GangStalledError, match=r"member 2 waited 0\.01 s for the border of tile \d of stage 0"):
        worker.run(member(plan, 2, batch(1), patience_s=0.01))


def test_an_abort_ends_a_member_that_waits(worker, plan, store):
    with ThreadPoolExecutor(1) as threads:
        waiting = threads.submit(worker.run, member(plan, 0, batch(1), patience_s=60.0))
        store.exchange().send([Message(inbox_key(QUERY, 0, 0), b"")], TTL)
        with pytest.raises(GangAbortedError):
            waiting.result(60)


@pytest.mark.parametrize(
    ("alter", "message"),
    [
        (lambda value: value[:-1] + bytes([value[-1] ^ 1]), "checksum"),
        (lambda value: value[:-4], "another size"),
        (lambda value: value[:5], "no header"),
    ],
)
def test_an_altered_border_is_refused(worker, plan, store, alter, message):
    run(worker, plan, batch(1))
    values = inbox(store, 0)
    store.delete([inbox_key(QUERY, 0, 0)])
    store.exchange().send([Message(inbox_key(QUERY, 0, 0), alter(value)) for value in values], TTL)
    with pytest.raises(AlteredPieceError, match=message):
        worker.run(member(plan, 0, batch(1), patience_s=0.01))


def test_messages_of_no_known_tile_are_passed_over(worker, plan, store):
    store.exchange().send([Message(inbox_key(QUERY, 0, 0), BORDER_HEADER.pack(99, 99))], TTL)
    assert run(worker, plan, batch(1))[0].later[-1].output


@pytest.mark.parametrize(("stage", "stop"), [(0, 3), (1, 4)])
def test_a_gang_that_the_plan_does_not_have_is_refused(worker, plan, stage, stop):
    task = replace(member(plan, 0, batch(1)), stage=stage, gang=Membership(stop, 1.0))
    with pytest.raises(InputError, match="gang"):
        worker.run(task)


class NoInboxes(MemoryStore):
    def exchange(self):
        return None


def test_a_store_without_inboxes_is_refused(plan, directory):
    worker = Worker(plan, directory, NoInboxes(), "here", threads=1, init_ms=0.0)
    with pytest.raises(PlanError, match="inboxes"):
        worker.run(member(plan, 0, batch(1)))


def test_the_sessions_of_an_environment_share_an_arena(directory):
    """Each session of its own arena would keep what its largest maps took: a gang has many sessions."""
    code = f"""
import onnxruntime as ort
made, build = [], ort.InferenceSession
def noted(model, options, **rest):
    made.append(options.get_session_config_entry("session.use_env_allocators"))
    return build(model, options, **rest)
ort.InferenceSession = noted
from serfer.core.costs.sessions import register_arena
from serfer.lambdas.sessions import SessionCache
from serfer.plan_directory import load_plan
register_arena()
plan = load_plan(__import__("pathlib").Path({str(directory)!r}))
cache = SessionCache(__import__("pathlib").Path({str(directory)!r}), 1)
for stage in plan.stages:
    for tile in stage.tiles:
        cache.get(stage, tile)
assert made and set(made) == {{"1"}}, made
"""
    subprocess.run([sys.executable, "-c", code], check=True)
