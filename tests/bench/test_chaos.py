"""The chaos suite: what it counts, and what it would notice; `make chaos` runs every scenario."""

import threading
from concurrent.futures import Future
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.core.errors import QueryError, SerferError, UsageError
from serfer.core.inline_outputs import inline_stages
from serfer.plan_directory import check_artefacts, load_plan
from serfer_bench.chaos import scenarios
from serfer_bench.chaos.budget import InvocationBudget, Reply
from serfer_bench.chaos.clients import Clients, TwoDrivers
from serfer_bench.chaos.scenarios import chaos_plan, through_store
from serfer_bench.chaos.testbed import Left
from serfer_bench.chaos.verdict import Observations, PassCriteria, judge, skipped
from serfer_bench.core.workload import Sent
from serfer_bench.load.queries import WRONG

PATIENCE = 60.0
LOGITS = np.array([[1.0, 2.0, 4.0]], dtype=np.float32)


def reply(logits=LOGITS, **budget):
    return Reply(logits, InvocationBudget(1, 9.0, **budget), 0.5)


class FakeDriver:
    """Answers when it is told to; `kill` ends what it has not answered."""

    def __init__(self):
        self.queries = []

    def submit(self, _batch):
        self.queries.append(Future())
        return self.queries[-1]

    def answer(self, number, given):
        self.queries[number].set_result(given)

    def kill(self):
        for query in self.queries:
            if not query.done():
                query.set_exception(QueryError("the driver's process has ended"))


def test_allowed_invocations_are_those_of_faults_and_five_percent_and_accounts_add_up():
    budget = InvocationBudget(queries=10, invocations=90, retries=20, hedges=5, restarts=1)
    assert InvocationBudget().limit(9) == 0
    assert budget.limit(9) == int(1.05 * (90 + 20 + 5 + 9))
    assert budget.limit(9, throttled=20, doubled=90, unanswered=2) == int(1.05 * (90 + 20 + 5 + 9 - 20 + 90 + 18))
    both = InvocationBudget(1, 2.5, 3, 4, 5) + InvocationBudget(10, 20, 30, 40, 50)
    assert both == InvocationBudget(11, 22.5, 33, 44, 55)


class TestCrowd:
    def test_it_returns_answers_sums_their_times_and_cancels_what_is_given_up(self):
        driver = FakeDriver()
        clients = Clients(driver.submit, 3)
        answers = [clients.submit(None) for _ in range(3)]
        driver.answer(0, reply(retries=2))
        driver.answer(1, reply())
        driver.kill()
        assert answers[0].result(0) is LOGITS
        with pytest.raises(QueryError):
            answers[2].result(0)
        assert clients.budget == InvocationBudget(2, 18, retries=2)
        assert clients.served == [0.5, 0.5]
        driver = FakeDriver()
        assert Clients(driver.submit, 1).submit(None).cancel()
        assert driver.queries[0].cancelled()

    def test_a_disturbance_waits_for_its_share_of_queries_and_not_beyond_the_last(self):
        driver, waited = FakeDriver(), []
        clients = Clients(driver.submit, 2)
        for _ in range(2):
            clients.submit(None)
        thread = threading.Thread(target=lambda: waited.extend([clients.wait(0.5), clients.wait(1.0)]))
        thread.start()
        driver.answer(0, reply())
        clients.stop()
        thread.join(PATIENCE)
        assert waited[-1] is False


class TestTwoDrivers:
    @pytest.fixture
    def drivers(self):
        return FakeDriver(), FakeDriver()

    @pytest.fixture
    def pair(self, drivers):
        return TwoDrivers(drivers[0], drivers[1].submit)

    def test_they_take_turns_and_each_answers_its_own(self, pair, drivers):
        answers = [pair.submit(None) for _ in range(4)]
        assert [len(driver.queries) for driver in drivers] == [2, 2]
        for driver in drivers:
            driver.answer(0, reply())
            driver.answer(1, reply())
        assert all(answer.result(0).logits is LOGITS for answer in answers)
        assert (pair.unanswered, pair.duplicates) == (0, 0)

    @pytest.mark.killed
    def test_queries_of_a_dead_driver_are_answered_by_the_other(self, pair, drivers):
        second, first = pair.submit(None), pair.submit(None)
        drivers[1].answer(0, reply())
        assert "1 queries sent again, 1 never answered" in pair.kill_first(0.0)
        drivers[1].answer(1, reply())
        assert first.result(0).logits is second.result(0).logits is LOGITS
        assert (pair.unanswered, pair.duplicates, pair.conflicting) == (1, 0, 0)

    @pytest.mark.parametrize(("logits", "conflicting"), [(LOGITS + 1e-5, 0), (LOGITS + 1e-2, 1)])
    def test_two_answers_are_compared_and_the_first_one_counts(self, pair, drivers, logits, conflicting):
        pair.submit(None)
        answer = pair.submit(None)
        pair._send_again(next(iter(pair._owed)))
        drivers[0].answer(0, reply())
        drivers[1].answer(1, reply(logits))
        assert answer.result(0).logits is LOGITS
        assert (pair.duplicates, pair.conflicting, pair.budget) == (1, conflicting, InvocationBudget(1, 9))

    def test_after_the_first_drivers_death_a_query_is_answered_or_fails_with_the_second(self, pair, drivers):
        _, late, _, lost = [pair.submit(None) for _ in range(4)]
        drivers[0].kill()
        drivers[1].answer(2, reply())
        assert late.result(0).logits is LOGITS
        drivers[1].kill()
        with pytest.raises(QueryError):
            lost.result(0)


NOTHING = Left(0, 0, 0.0)


class TestOutcome:
    DEMANDS = PassCriteria(longest_s=180.0, keys_stay=False, tail=3.0)
    GOOD = Observations(
        sent=tuple(Sent(number, 0.0, 0.0, 1.0 + number / 100) for number in range(100)),
        served=(0.1,) * 100,
        budget=InvocationBudget(100, 900.0, 1, 2, 3),
        invocations=945,
        allowed=945,
        duplicates=0,
        conflicting=0,
        remark="",
    )

    def problems(self, *, left=NOTHING, processes=0, criteria=DEMANDS, **observed):
        return judge("x", criteria, replace(self.GOOD, **observed), left, processes, 1.0).problems

    def test_a_good_one_has_no_problems_and_lost_wrong_and_skipped_ones_are_counted(self):
        outcome = judge("x", self.DEMANDS, self.GOOD, NOTHING, 0, 1.0)
        assert (outcome.problems, outcome.lost, outcome.wrong, outcome.shown["verdict"]) == ((), 0, 0, "ok")
        assert (outcome.p50_ms, outcome.p99_ms, outcome.served_p99_ms) == pytest.approx((1495.0, 1980.1, 100.0))
        sent = (*self.GOOD.sent, Sent(100, 0, 0, 1, "DeadlineError", "late"), Sent(101, 0, 0, 1, WRONG, "off"))
        outcome = judge("x", self.DEMANDS, replace(self.GOOD, sent=sent), NOTHING, 0, 1.0)
        assert (outcome.queries, outcome.lost, outcome.wrong) == (102, 1, 1)
        assert "2 queries without a right answer, the first DeadlineError: late" in outcome.shown["verdict"]
        outcome = skipped("x", 7)
        assert (outcome.lost, outcome.problems) == (7, ("there was no time left for it: allow more --seconds",))

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            ({"conflicting": 1}, "1 queries got two different answers"),
            ({"invocations": 946}, "1 invocations more than allowed"),
            ({"left": Left(2, 0, 5.0)}, "2 keys left"),
            ({"left": Left(1, 1, 0.0)}, "1 keys without a time to live"),
            ({"left": Left(1, 0, 181.0)}, "a key that lives 181 s, more than 180"),
            ({"processes": 1}, "1 processes left"),
            ({"sent": tuple(Sent(n, 0.0, 0.0, 1.0 + 3 * (n > 97)) for n in range(100))}, "p99 is 4.0 times p50"),
        ],
    )
    def test_everything_that_must_not_be_is_a_problem(self, change, words):
        assert any(words in problem for problem in self.problems(**change))

    @pytest.mark.killed
    def test_keys_may_stay_for_their_time_where_a_driver_died(self):
        stay = replace(self.DEMANDS, keys_stay=True)
        assert self.problems(left=Left(9, 0, 179.0), criteria=stay) == ()
        assert self.problems(left=Left(9, 1, 179.0), criteria=stay) == ("1 keys without a time to live",)


class TestChoice:
    def test_calm_runs_first_and_the_others_in_the_given_order(self):
        names = [[one.name for one in scenarios.chosen(only, "push", None)] for only in ("twice, killed,twice", None)]
        assert names == [["calm", "twice", "killed"], [*scenarios.SCENARIOS]]
        assert "restarted" not in [one.name for one in scenarios.chosen(None, "push", "redis://x")]

    def test_the_driver_is_everybodys_but_that_of_doubled_events(self):
        drivers = {one.name: one.conditions.driver for one in scenarios.chosen("killed,twice", "push", None)}
        assert drivers == {"calm": "push", "killed": "push", "twice": "poll"}
        polled = scenarios.chosen(None, "poll", None)
        assert {one.conditions.driver for one in polled} == {"poll"}
        assert all(one.keys_stay for one in polled), "nobody hears of a late event's end, so its key stays for its time"

    @pytest.mark.parametrize(
        ("choice", "words"),
        [
            (("killed,flood", "push", None), "there is no 'flood'"),
            (("restarted", "push", "redis://x"), "cannot be restarted"),
            ((None, "pull", None), "--engine is push or poll, not 'pull'"),
        ],
    )
    def test_invalid_choices_are_refused(self, choice, words):
        with pytest.raises(UsageError, match=words):
            scenarios.chosen(*choice)


@pytest.fixture
def eight(settings):
    return settings.model_copy(update={"local_concurrency": 8})


def test_a_plan_is_made_to_hand_on_through_the_store_and_stays_whole(directory, eight):
    before = (directory / "plan.json").read_bytes()
    stored = chaos_plan(None, directory, eight, lambda _: None)
    plan = load_plan(stored)
    check_artefacts(plan, stored)
    assert inline_stages(plan, 1, 1 << 22) == (False, False, True)
    assert (directory / "plan.json").read_bytes() == before
    assert all(path.stat().st_nlink == 1 for path in directory.rglob("*") if path.is_file()), "onnx refuses links"
    assert through_store(stored, eight) == stored


@pytest.fixture
def suite(directory, eight):
    def make(queries, seconds=300.0, store=None, workers=8):
        mine = eight.model_copy(update={"local_concurrency": workers})
        return scenarios.prepared(scenarios.Options(None, directory, queries, store, seconds), mine, lambda _: None)

    return make


def test_without_time_nothing_is_started_and_all_is_lost(suite):
    [outcome] = scenarios.measure(scenarios.chosen(scenarios.CALM, "push", None), suite(3, seconds=0.0))
    assert (outcome.lost, outcome.seconds) == (3, 0.0)


@pytest.mark.killed
@pytest.mark.slow
def test_a_killed_driver_loses_no_query_and_answers_none_twice(suite):
    scenario = scenarios.SCENARIOS["driver"].driven_by("push")
    [outcome] = scenarios.measure([scenario], suite(12, workers=4))
    assert outcome.problems == ()
    assert "never answered by the driver that died" in outcome.remark


def test_the_command_fails_where_a_scenario_does_and_shows_all_of_them(monkeypatch, directory):
    outcomes = [skipped("killed", 2), replace(skipped("calm", 2), problems=())]
    monkeypatch.setattr(scenarios, "measure", lambda *_: outcomes)
    result = CliRunner().invoke(app, ["bench", "chaos", "--plan", str(directory), "--queries", "2", "--only", "killed"])
    assert isinstance(result.exception, SerferError)
    assert result.exception.exit_code == 1
    assert str(result.exception) == "1 of 2 scenarios went wrong: killed"
    assert "there was no time left for it" in result.output
    assert "calm" in result.output
