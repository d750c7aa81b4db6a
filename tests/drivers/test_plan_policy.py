"""Which of two plans a query runs on, and what is warmed for it."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from serfer.drivers.dispatching.plan_policy import COLD, NO_ROOM, WARM, PlanPolicy, Terms

ONE = Terms({"whole": 1}, width=4, concurrency=100, warm_s=0.1, kept_s=300.0)


class Account:
    """Functions and the queries of one driver, which asks the policy; `waiting` warm-ups have not ended."""

    def __init__(self, terms=ONE):
        self.terms, self.policy, self.now = terms, PlanPolicy(terms), 0.0
        self.idle = dict.fromkeys(terms.needs, 0)
        self.running, self.waiting, self.started = [], [], 0

    def _found(self, name):
        """Start an invocation; return its use, and the number of the environment if it is a new one."""
        use, cold = self.policy.environments[name].began(self.now), self.idle[name] == 0
        self.idle[name] -= not cold
        return name, use, cold

    def _free(self, name, use, cold):
        self.started += cold
        # Names matter only to what is lost: each environment is called by its use's expectation, or is new.
        environment = f"e{self.started}" if cold else use.expected.name
        self.policy.environments[name].answered(use, environment, self.now, cold=cold)
        self.idle[name] += 1

    def query(self):
        """Start a query, with the warm-ups that it causes; return the decision and how many cold starts it met."""
        decision = self.policy.decide(self.now)
        self.waiting += [self._found(name) for name in decision.warm_ups]
        needs = self.terms.needs.items() if decision.warm else ()
        uses = [self._found(name) for name, count in needs for _ in range(count)]
        self.running.append((decision, uses))
        return decision, sum(cold for _, _, cold in uses)

    def late(self):
        """Whether an invocation that was expected to find an environment takes as long as one that found none."""
        uses = [*self.waiting, *(use for _, uses in self.running for use in uses)]
        return any(use.expected and self.now - use.since > 0.5 for _, use, _ in uses)

    def end(self, place=0):
        decision, uses = self.running.pop(place)
        for use in uses:
            self._free(*use)
        self.policy.ended(decision, 0.1)

    def warmed(self):
        for use in self.waiting:
            self._free(*use)
        self.policy.warmed()
        self.waiting = []


ACTIONS = st.lists(st.tuples(st.sampled_from(["query", "query", "end", "warmed", "wait"]), st.integers(0, 100)))
TERMS = st.builds(
    Terms,
    needs=st.dictionaries(st.sampled_from("abc"), st.integers(1, 4), min_size=1),
    width=st.integers(1, 9),
    concurrency=st.integers(1, 60),
    warm_s=st.floats(0.01, 10),
    kept_s=st.just(1e9),
)


@given(TERMS, ACTIONS)
def test_no_query_on_the_warm_plan_meets_a_cold_start_unless_the_cold_plan_has_no_room(terms, actions):
    account = Account(terms)
    for action, number in actions:
        if action == "query":
            warm = all(account.idle[name] >= count for name, count in terms.needs.items())
            in_use = len(account.waiting) + sum(
                terms.width if not decision.warm else len(uses) for decision, uses in account.running
            )
            late = account.late()
            decision, cold = account.query()
            assert warm or decision.reason != WARM
            assert (
                late or not warm or decision.reason == WARM
            )  # all that is warm is used, unless a response casts doubt
            assert cold == 0 or decision.reason == NO_ROOM
            most = terms.concurrency if not decision.warm else in_use
            assert in_use + len(decision.warm_ups) + (0 if decision.warm else terms.width) <= most
        elif action == "end" and account.running:
            account.end(number % len(account.running))
        elif action == "warmed":
            account.warmed()
        else:
            account.now += number / 10


def test_burst_causes_as_many_warm_ups_as_it_would_use_at_once():
    account = Account()
    assert [account.query()[0].warm_ups for _ in range(3)] == [["whole"]] * 3
    account.now = 5.0
    assert account.query()[0].warm_ups == []  # three are being warmed for one query
    account = Account()
    sent = []
    for account.now in (0.0, 0.2, 0.4, 0.6):
        sent += account.query()[0].warm_ups
    assert sent == ["whole"]


@pytest.mark.parametrize(("late_s", "reason"), [(0.4, WARM), (0.6, COLD)])
def test_queries_do_not_follow_one_that_waits_as_for_a_cold_start(late_s, reason):
    """Two environments were killed while they were idle: only those that come at once expect them."""
    account = Account()
    for _ in range(2):
        account.query()
    account.warmed()
    account.query()
    account.now = ONE.warm_s + late_s
    assert account.policy.decide(account.now).reason == reason


def test_a_promise_that_was_not_used_is_taken_back():
    account = Account()
    account.query()
    account.warmed()
    account.policy.ended(account.policy.decide(1.0), None)
    assert account.policy.decide(1.0).reason == WARM


def test_queries_go_back_when_the_whole_function_is_lost_and_when_it_was_idle_too_long():
    account = Account()
    account.query()
    account.warmed()
    decision, _ = account.query()
    [(_, [(_, use, _)])] = account.running[1:]
    account.policy.environments["whole"].failed(use, lost=True)
    account.policy.ended(decision, None)
    again = account.policy.decide(10.0)
    assert (again.reason, again.warm_ups) == (COLD, ["whole"])
    account.idle["whole"] = 0
    account.waiting.append(account._found("whole"))
    account.warmed()
    assert account.policy.decide(ONE.kept_s).reason == COLD


@pytest.mark.parametrize(("concurrency", "queries"), [(4, 0), (5, 1), (9, 1), (10, 2), (14, 2), (15, 3)])
def test_the_cold_plan_is_used_as_far_as_the_concurrency_goes(concurrency, queries):
    account = Account(Terms({"whole": 1}, 4, concurrency, 0.1, 300.0))
    reasons = [account.query()[0].reason for _ in range(4)]
    assert reasons == [COLD] * queries + [NO_ROOM] * (4 - queries)
    for _ in range(4):
        account.end()
    account.warmed()
    assert account.query()[0].reason == WARM


def test_warm_ups_that_fail_are_sent_less_and_less_often_and_the_reason_says_why():
    account = Account()
    sent = []
    for number in range(100):
        now = number / 10
        decision = account.policy.decide(now)
        for name in decision.warm_ups:
            use = account.policy.environments[name].began(now)
            account.policy.environments[name].failed(use, lost=True)
            account.policy.refused("out of memory: it was killed", now)
            sent.append(now)
        account.policy.ended(decision, None)
    assert sent == [0.0, 1.0, 3.0, 7.0]
    assert "out of memory: it was killed" in account.policy.decide(10.0).reason
    account.policy.warmed()
    assert account.policy.decide(10.0).reason == COLD
