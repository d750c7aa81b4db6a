"""Routing decisions: instances that answer in time, then Lambda, then late instances, never above the ceiling."""

import math
import tomllib
from types import SimpleNamespace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from serfer.control.policies.fixed import Serverless
from serfer.control.policy import InstanceCount, Observation, ProvisioningPlan, on_demand
from serfer.control.router import SERVERLESS, Endpoint, Reason, Router
from serfer.control.scenario import Market, parse_scenario
from tests.control.worlds import TWO_TYPES, fleet, scenario, seen

# One image takes 10 ms, 8 take 40, 32, the most, take 120; 13 units a second at 10 queries a second: 1.3 dollars each.
WORLD = scenario(13.0, slo_ms=200.0, concurrency=5)
QUERY_USD = 1.3
SEATS = st.lists(st.integers(0, 150), max_size=6).map(
    lambda queues: [Endpoint(f"i-{number}", waiting) for number, waiting in enumerate(queues)]
)
IDLE, BUSY = Endpoint("i-idle", 0), Endpoint("i-busy", 500)


class Scripted:
    name = "scripted"

    def __init__(self, instances):
        self.instances = instances
        self.seen = []

    def observe(self, seen):
        self.seen.append(seen)
        return on_demand(WORLD.instance, self.instances, "as scripted")

    def resume(self, fleet):
        pass


def router(*, ceiling=math.inf, overflow=True, policy=None):
    return Router(WORLD, policy or Serverless(WORLD), max_usd_per_hour=ceiling, overflow=overflow)


@given(st.integers(0, 150), st.integers(0, 150), st.integers(1, 100))
@example(24, 32, 5)
def test_a_shorter_queue_is_never_predicted_to_answer_later(one, other, images):
    fewer, more = sorted((one, other))
    assert router().wait_ms(fewer, images) <= router().wait_ms(more, images)


@given(SEATS, st.integers(0, 10), st.integers(1, 100), st.booleans())
@example(endpoints=[Endpoint("i-0", 24), Endpoint("i-1", 32)], in_flight=0, images=5, overflow=False)
def test_an_instance_is_the_first_target_exactly_if_one_is_in_time(endpoints, in_flight, images, overflow):
    made = router(overflow=overflow)
    decision = made.route(0.0, endpoints, in_flight, images)
    soonest = min((made.wait_ms(endpoint.waiting, images) for endpoint in endpoints), default=math.inf)
    if soonest <= WORLD.slo_ms:
        assert decision.reason is Reason.ROOM
        first = next(endpoint for endpoint in endpoints if endpoint.name == decision.targets[0])
        assert made.wait_ms(first.waiting, images) <= WORLD.slo_ms
        assert first.waiting == min(endpoint.waiting for endpoint in endpoints)
        assert decision.targets[1:] == ((SERVERLESS,) if overflow else ())
    else:
        assert decision.reason is not Reason.ROOM


@given(SEATS, st.integers(0, 10), st.integers(1, 100))
def test_lambda_serves_queries_that_would_be_late_up_to_its_concurrency(endpoints, in_flight, images):
    made = router()
    decision = made.route(0.0, endpoints, in_flight, images)
    if decision.reason is Reason.ROOM:
        return
    late = (min(endpoints, key=lambda endpoint: endpoint.waiting).name,) if endpoints else ()
    if in_flight < WORLD.serverless.concurrency:
        assert decision.targets == (SERVERLESS, *late)
        assert decision.reason is (Reason.FULL if endpoints else Reason.NO_INSTANCE)
    else:
        assert decision.targets == late
        assert decision.reason is (Reason.LATE if endpoints else Reason.LAMBDA_FULL)


@given(SEATS, st.integers(0, 10), st.sampled_from([math.inf, 0.0]))
def test_without_overflow_lambda_is_never_a_target(endpoints, in_flight, ceiling):
    made = router(overflow=False, ceiling=ceiling)
    decision = made.route(0.0, endpoints, in_flight)
    assert SERVERLESS not in decision.targets
    assert len(decision.targets) == min(len(endpoints), 1)
    assert not made.fall_back(0.0)


@given(st.integers(0, 200), st.integers(1, 100), st.integers(0, 50))
def test_predicted_waits_are_those_of_full_batches(waiting, images, more):
    kind, wait_ms = WORLD.instance, router().wait_ms(waiting, images)
    whole, rest = divmod(waiting + images, kind.max_batch)
    least = whole * kind.batch_ms(kind.max_batch) + (kind.batch_ms(rest) if rest else 0.0)
    assert least - 1e-9 <= wait_ms <= least + kind.batch_ms(kind.max_batch) + 1e-9
    assert router().wait_ms(waiting + kind.max_batch * more, images) >= wait_ms
    assert router().wait_ms(waiting, images + more) >= wait_ms


def test_wait_is_that_of_the_batches_ahead():
    made = router()
    assert made.wait_ms(0) == 10
    assert made.wait_ms(8) == 40 + made.scenario.instance.batch_ms(9)
    assert made.wait_ms(32) == 120 + 120
    assert made.wait_ms(0, 32) == 120
    assert made.wait_ms(0, 64) == 240  # more than a batch takes more than one: these are late
    assert router().route(0.0, [IDLE], 0, images=64).targets == (SERVERLESS, "i-idle")
    assert router().wait_ms(64, batch=4) > router().wait_ms(64, batch=32) == router().wait_ms(64)


def test_only_instances_with_room_are_targets_once_the_ceiling_is_reached():
    made = router(ceiling=2 * QUERY_USD)
    assert [made.route(0.0, [BUSY], 0).targets for _ in range(3)] == [(SERVERLESS, "i-busy")] * 2 + [()]
    assert made.route(0.0, [BUSY], 0).reason is Reason.CEILING
    assert made.route(0.0, [IDLE], 0).targets == ("i-idle", SERVERLESS)
    assert not made.fall_back(0.0)
    assert made.route(3661.0, [BUSY], 0).targets == (SERVERLESS, "i-busy")  # an hour later there is money again


def test_lambda_charges_by_image_what_it_serves():
    made = router(ceiling=10 * QUERY_USD)
    assert made.route(0.0, [], 0, images=11).reason is Reason.CEILING
    assert made.route(0.0, [], 0, images=6).targets == (SERVERLESS,)
    assert made.route(0.0, [], 0, images=5).reason is Reason.CEILING
    assert made.route(0.0, [], 0, images=4).targets == (SERVERLESS,)
    made = router(ceiling=QUERY_USD)
    for _ in range(5):
        assert made.route(0.0, [IDLE], 0).reason is Reason.ROOM
        assert made.route(0.0, [BUSY], WORLD.serverless.concurrency).reason is Reason.LATE
    assert made.fall_back(0.0)
    assert not made.fall_back(0.0)
    assert made.route(0.0, [], 0).reason is Reason.CEILING


@given(st.lists(st.tuples(SEATS, st.integers(0, 10), st.integers(1, 40)), max_size=40))
@settings(derandomize=True, max_examples=50)
def test_every_decision_is_counted_once_under_its_reason(queries):
    made = router(ceiling=30.0)
    reasons = [made.route(float(number), *query).reason for number, query in enumerate(queries)]
    assert made.counts.total() == len(queries)
    assert {reason: reasons.count(reason) for reason in Reason if reason in reasons} == dict(made.counts)


def test_the_policy_observes_the_load_and_decides_without_a_ceiling():
    policy = Scripted(7)
    made = router(policy=policy)
    observation = Observation(10.0, 2.5, 33.0, fleet(3))
    assert made.tick(observation) == on_demand(WORLD.instance, 7, "as scripted")
    assert policy.seen == [observation]


def test_ceiling_counts_instances_and_lambda():
    made = router(policy=Scripted(7), ceiling=3 * 3600.0 + 1.0)
    wanted = made.tick(seen(1.0, 5.0, 1.0))
    assert wanted == on_demand(WORLD.instance, 3, "as scripted; the ceiling allows 3")
    assert not made.fall_back(1.0)  # what three instances will cost leaves no query's price
    made = router(policy=Scripted(1), ceiling=3600.0)
    assert made.tick(seen(1.0, 5.0, 1.0)).total == 1
    assert made.route(1.5, [], 0).reason is Reason.CEILING
    made = router(policy=Scripted(2), ceiling=2 * 3600.0)
    assert made.fall_back(0.5)
    assert made.tick(seen(1.0, 5.0, 1.0)).total == 1


def test_the_ceiling_gives_up_the_last_instances_of_a_plan_first():
    known = parse_scenario(tomllib.loads(TWO_TYPES))
    wanted = ProvisioningPlan(
        (InstanceCount("g5.xlarge", Market.SPOT, 2), InstanceCount("g4dn.xlarge", Market.ON_DEMAND, 3)), "two types"
    )
    made = Router(known, Scripted(0), max_usd_per_hour=2 * 0.40 + 1.5 * 0.526)
    plan = made.afford(seen(1.0, 5.0, 1.0), wanted)
    assert [(group.kind, group.market, group.count) for group in plan.instances] == [
        ("g5.xlarge", Market.SPOT, 2),
        ("g4dn.xlarge", Market.ON_DEMAND, 1),
    ]
    assert plan.reason == "two types; the ceiling allows 3"


class Dividing(Scripted):
    """A policy whose dispatcher sends each query to `place`, None for Lambda."""

    def dispatcher(self):
        self.rates = []
        return SimpleNamespace(observe=lambda *load: self.rates.append(load), choose=self.choose)

    def choose(self, targets, _images, admits):
        assert [admits(place) for place in range(len(targets))] == [True, True, False]
        return self.place


@pytest.mark.parametrize(
    ("place", "overflow", "targets", "reason"),
    [
        (1, True, ("i-next", SERVERLESS), Reason.ROOM),
        (None, True, (SERVERLESS,), Reason.RATES),
        (None, False, ("i-idle",), Reason.ROOM),
    ],
)
def test_a_policys_dispatcher_chooses_among_instances_that_are_in_time(place, overflow, targets, reason):
    policy = Dividing(0)
    policy.place = place
    made = router(policy=policy, overflow=overflow)
    made.tick(seen(1.0, 300.0))
    assert policy.rates == [(300.0, 1.0)]
    decision = made.route(0.0, [IDLE, Endpoint("i-next", 8), BUSY], 0)
    assert (decision.targets, decision.reason) == (targets, reason)
    assert made.route(0.0, [BUSY], 0).targets[-1] == "i-busy"
