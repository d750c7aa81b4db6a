import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.cold_starts import cold_seconds
from serfer.core.costs.cost_model import (
    CARRY_RATE,
    CODEC_RATE,
    DISPATCH_SECONDS,
    TASK_SECONDS,
    Platform,
    StageLoad,
    Traffic,
    billed_usd,
    gang_load,
    invocation_usd,
    invoke_seconds,
    latency,
    plan_load,
    price_burst,
    price_plan,
    ready_seconds,
    stage_price,
    standing_usd,
    starting_usd,
    task_seconds,
)
from serfer.core.costs.operator_costs import Kind, Work, shipped_profiles
from serfer.core.costs.vcpus import compute_seconds, threads, vcpus
from serfer.core.plan import CACHE, INLINE, OBJECTS, WEIGHT_PLACES, ZIP, Gang, Piece, Range
from serfer.drivers.batching import plan_batching
from tests.core.plans import small_plan

FACTS, STORE, S3 = shipped_aws().functions, shipped_aws().redis, shipped_aws().s3
VALKEY = shipped_aws().valkey
BOTH = Platform(FACTS, VALKEY, objects=S3)


@pytest.mark.parametrize(
    ("memory", "milliseconds", "usd"),
    [  # without the price of a request
        *((1024, ms, billed / 1000 * 0.0000166667) for ms, billed in ((0.01, 1), (1, 1), (1.0001, 2), (99.2, 100))),
        (1024, 1000, 0.0000166667),
        (1769, 120, 3.45508503e-6),  # 1769/1024 GB * 0.12 s = 0.2073046875 GB-s
        *((512, 100, 0.000000834), (1216, 100, 0.000001980), (2048, 100, 0.000003334)),  # SerFer, Table 2
    ],
)
def test_an_invocation_costs_its_whole_milliseconds_as_aws_and_the_serfer_paper_list_them(memory, milliseconds, usd):
    assert invocation_usd(memory, milliseconds, FACTS) - 0.2e-6 == pytest.approx(usd, abs=1e-9)


def test_a_query_costs_what_the_serfer_paper_lists():
    """Equation 2 over Table 2: (workers, MB, ms) of each layer."""
    layers = [(4, 512, 124), (4, 1216, 116), (1, 2048, 3881)]
    usd = sum(count * (invocation_usd(memory, ms, FACTS) - FACTS.price_request) for count, memory, ms in layers)
    assert usd == pytest.approx(0.00014271638, rel=1e-3)


@given(st.integers(128, 10240), st.floats(0, 900_000), st.floats(0, 1000))
def test_more_time_never_costs_less(memory, milliseconds, more):
    assert invocation_usd(memory, milliseconds, FACTS) <= invocation_usd(memory, milliseconds + more, FACTS)


def load(tasks=1, **changes):
    zero = np.zeros(tasks)
    nothing = StageLoad(zero, zero, zero, zero, zero, zero, zero)
    return replace(nothing, **{name: np.broadcast_to(value, tasks).astype(float) for name, value in changes.items()})


def platform(**changes):
    return replace(Platform(FACTS, STORE), functions=replace(FACTS, **changes))


@pytest.mark.parametrize(
    ("loads", "expected"),
    [
        (
            {"serial_s": 1.0, "parallel_s": 2.0, "bytes_read": 30, "ranges": 2, "bytes_written": 50},
            3 + 80 / 10 + 2 * STORE.request_latency + 2 * STORE.range_latency,
        ),
        ({"carried_in": 30, "carried_out": 60}, 90 / CODEC_RATE + 4 / 3 * 90 / 10),  # no requests, but a third larger
    ],
)
def test_a_task_adds_up_reading_computing_and_writing(loads, expected):
    assert task_seconds(load(**loads), 1769, platform(bandwidth=10.0)) == pytest.approx(TASK_SECONDS + expected)


@pytest.mark.parametrize(
    ("memory", "seconds"), [(1769, 3.0), (884.5, 6.0), (3538, 2.0), (2 * 884.5 * 4, 1.5), (17690, 1.2)]
)
def test_memory_below_one_vcpu_slows_all_work_and_above_it_speeds_up_parallel_work(memory, seconds):
    one = load(serial_s=1.0, parallel_s=2.0)
    assert task_seconds(one, memory, platform()) - TASK_SECONDS == pytest.approx(seconds)


def test_a_stage_waits_for_its_slowest_task_and_its_slowest_invocation():
    four = load(4, parallel_s=[0.1, 0.2, 0.4, 0.3])
    seconds, usd = stage_price(four, 1769, Platform(FACTS, STORE))
    slowest = FACTS.invoke_floor + FACTS.invoke_tail * (1 + 1 / 2 + 1 / 3 + 1 / 4)
    assert seconds == pytest.approx(4 * DISPATCH_SECONDS + slowest + TASK_SECONDS + 0.4)
    each = [invocation_usd(1769, 1000 * (TASK_SECONDS + part), FACTS) for part in (0.1, 0.2, 0.4, 0.3)]
    assert usd == pytest.approx(sum(each))
    memories = (884, 1769, 7076)
    many = stage_price(four, np.array(memories)[:, None], Platform(FACTS, STORE))
    alone = [stage_price(four, memory, Platform(FACTS, STORE)) for memory in memories]
    assert np.allclose(many, np.transpose(alone), rtol=1e-12)


def test_environments_of_later_steps_are_ready_after_a_warm_up_request_and_pay_for_it():
    start = cold_seconds(0, ZIP, FACTS)
    own, warmed = (ready_seconds(2, start, FACTS, first=first) for first in (True, False))
    assert (own, warmed) == (start, start + invoke_seconds(2, FACTS))
    usd = [float(starting_usd(2, 1769, start, FACTS, first=first)) for first in (True, False)]
    assert usd[0] == pytest.approx(2 * 1769 / 1024 * start * FACTS.price_gb_second)
    assert usd[1] - usd[0] == pytest.approx(2 * FACTS.price_request)


@pytest.mark.parametrize(
    ("store", "loads", "usd"),
    [
        (S3, {"ranges": [1, 2, 4], "bytes_written": [0, 1, 1], "bytes_read": 1}, 7 * S3.price_get + 2 * S3.price_put),
        (VALKEY, {"ranges": [2, 0, 0], "bytes_read": [3e6, 0, 0], "bytes_written": [1e6, 0, 0]}, 4003 * 0.0023e-6),
    ],
)
def test_a_store_charges_for_every_range_and_every_write_and_perhaps_for_bytes(store, loads, usd):
    free = replace(store, price_byte=0.0, price_get=0.0, price_put=0.0)
    paid, unpaid = (stage_price(load(3, **loads), 1769, Platform(FACTS, each))[1] for each in (store, free))
    assert paid - unpaid == pytest.approx(usd)


def test_object_store_traffic_has_its_own_requests_latencies_and_prices():
    far = Traffic(*(np.array([value], dtype=float) for value in (40, 3, 60)))
    one = replace(load(bytes_read=30, ranges=2, bytes_written=0), objects=far)
    where = replace(platform(bandwidth=10.0), store=VALKEY, objects=S3)
    expected = TASK_SECONDS + 130 / 10 + S3.request_latency + 3 * S3.range_latency + S3.request_latency
    assert task_seconds(one, 1769, where) == pytest.approx(expected), "both stores are read at once"
    requests = 2 * VALKEY.price_get + 30 * VALKEY.price_byte + 3 * S3.price_get + S3.price_put
    usd = stage_price(one, 1769, where)[1]
    assert usd == pytest.approx(invocation_usd(1769, 1000 * expected, FACTS) + requests)
    with pytest.raises(ValueError, match="object store"):
        task_seconds(replace(load(), objects=load().stored), 1769, platform())


@given(st.lists(st.tuples(st.floats(0.03, 2), st.integers(1, 64)), min_size=1, max_size=6))
def test_the_distribution_has_the_expected_mean_and_ordered_quantiles(stages):
    stages = [(FACTS.invoke_tail * (math.log(tasks) + 1) + seconds, tasks) for seconds, tasks in stages]
    distribution = latency(stages, FACTS)
    assert distribution.mean == pytest.approx(sum(seconds for seconds, _ in stages), abs=1e-4)
    assert distribution.least < distribution.quantile(0.5) < distribution.quantile(0.95) < distribution.quantile(0.99)


def test_the_distribution_is_that_of_sums_of_slowest_invocations():
    random = np.random.default_rng(0)
    draws = sum(random.exponential(FACTS.invoke_tail, (200_000, tasks)).max(axis=1) for tasks in (1, 4, 16))
    harmonic = sum(sum(1 / n for n in range(1, tasks + 1)) for tasks in (1, 4, 16))
    distribution = latency([(FACTS.invoke_tail * harmonic, 1), (0.0, 4), (0.0, 16)], FACTS)
    shift = distribution.mean - draws.mean()
    for share in (0.05, 0.5, 0.95, 0.99):
        assert distribution.quantile(share) - shift == pytest.approx(np.quantile(draws, share), rel=0.01)
    still = latency([(1.0, 4), (2.0, 1)], replace(FACTS, invoke_tail=1e-9), 0.5, 0.6)
    assert len(still.probability) < 10_000_000, "almost no tail needs no more memory"
    assert [still.mean, still.quantile(0.4), still.quantile(0.6)] == pytest.approx([3.3, 3.0, 3.6], rel=1e-3)


def test_the_load_of_the_small_plan_by_hand():
    """The small plan by hand: two crops of 3 x 2 x 4 pixels, 24 values and a checksum stored by each."""
    first, last = (plan_load(small_plan(), number) for number in (0, 1))
    assert (first.carried_in == 24).all()
    assert (first.bytes_written == 100).all()
    for nothing in (first.bytes_read, first.ranges, first.carried_out):
        assert not nothing.any()
    assert (last.bytes_read, last.ranges, last.carried_in) == (200, 2, 0)
    assert (last.bytes_written, last.carried_out) == (0, 44)
    assert (first.tasks, first.weight_bytes, last.weight_bytes) == (2, 9, 0)


def along(plan, path):
    return replace(plan, stages=(replace(plan.stages[0], path=path), plan.stages[1]))


def test_inline_tensors_are_carried_and_not_stored():
    inlined = along(small_plan(), INLINE)
    first, last = (plan_load(inlined, number) for number in (0, 1))
    assert not first.bytes_written.any()
    assert (first.carried_out == 100).all()
    assert (last.bytes_read, last.ranges, last.carried_in) == (0, 0, 200)
    assert price_plan(small_plan(), Platform(FACTS, STORE)).stored
    assert not price_plan(inlined, Platform(FACTS, STORE)).stored


def test_object_store_traffic_is_counted_separately():
    first, last = (plan_load(along(small_plan(), OBJECTS), number) for number in (0, 1))
    assert (first.objects.bytes_written == 100).all()
    assert (last.objects.bytes_read, last.objects.ranges) == (200, 2)
    for nothing in (first.bytes_written, first.carried_out, last.bytes_read, last.ranges, last.carried_in):
        assert not nothing.any()
    [one, other] = price_plan(along(small_plan(), OBJECTS), BOTH).stages
    assert (one.bytes_written, other.bytes_read, other.ranges) == (200, 200, 2)
    assert price_plan(along(small_plan(), OBJECTS), BOTH).stored
    alone = {path: price_plan(along(small_plan(), path), Platform(FACTS, VALKEY)) for path in (CACHE, INLINE, OBJECTS)}
    assert alone[OBJECTS].stages == alone[CACHE].stages, "without an object store its stages use the other one"
    assert price_plan(along(small_plan(), OBJECTS), BOTH).usd > alone[CACHE].usd
    for path in (CACHE, INLINE):
        assert price_plan(along(small_plan(), path), BOTH).stages == alone[path].stages


def test_every_range_of_a_piece_and_a_tiles_own_seconds_count():
    first, last = small_plan().stages
    piece = Piece(0, 1, (Range(0, 8, 0, ()), Range(16, 8, 1, ())))
    plan = replace(small_plan(), stages=(first, replace(last, tiles=(replace(last.tiles[0], pieces=(piece,)),))))
    assert (plan_load(plan, 1).ranges, plan_load(plan, 1).bytes_read) == (2, 64)
    stage = small_plan().stages[0]
    slow = tuple(replace(tile, serial_ms=1.5, parallel_ms=20.0 * (1 + at)) for at, tile in enumerate(stage.tiles))
    plan = replace(small_plan(), stages=(replace(stage, tiles=slow), small_plan().stages[1]))
    load = plan_load(plan, 0)
    assert load.serial_s == pytest.approx([0.0015, 0.0015])
    assert load.parallel_s == pytest.approx([0.02, 0.04])


def test_a_plans_price_is_that_of_its_stages():
    where = Platform(FACTS, STORE)
    price = price_plan(small_plan(), where)
    parts = [stage_price(plan_load(small_plan(), number), 1769, where) for number in (0, 1)]
    assert price.usd == pytest.approx(sum(float(usd) for _, usd in parts))
    assert price.latency.mean == pytest.approx(sum(float(seconds) for seconds, _ in parts), abs=1e-4)
    assert price.stages[0].bytes_carried == 48
    assert [stage.memory_mb for stage in price_plan(small_plan(), where, 3538).stages] == [3538, 3538]


def test_cold_starts_come_late_in_the_distribution():
    plan, warm = small_plan(), Platform(FACTS, STORE)
    prices = {share: price_plan(plan, replace(warm, cold_share=share)) for share in (0.0, 0.02, 1.0)}
    mean = sum(stage.seconds for stage in prices[0.02].stages)
    assert prices[0.02].latency.mean == pytest.approx(mean, abs=1e-3)
    assert prices[0.02].latency.quantile(0.9) == pytest.approx(prices[0.0].latency.quantile(0.9), abs=0.02)
    assert prices[0.02].latency.quantile(0.99) > prices[0.0].latency.quantile(0.99) + 0.9 * FACTS.init
    late = prices[1.0].latency.quantile(0.5) - prices[0.0].latency.quantile(0.5)
    assert late == pytest.approx(prices[1.0].times[-1].ended - prices[0.0].latency.mean, rel=1e-3)
    assert prices[1.0].usd > prices[0.0].usd


@given(share=st.floats(0.0, 1.0), gang=st.booleans(), place=st.sampled_from(WEIGHT_PLACES))
def test_the_price_of_a_query_is_warm_and_cold_in_their_shares(share, gang, place):
    plan = one_gang(small_plan()) if gang else small_plan()
    plan = replace(plan, stages=tuple(replace(stage, weights_in=place) for stage in plan.stages))
    warm, mixed, cold = (price_plan(plan, Platform(FACTS, STORE, cold_share=part)) for part in (0.0, share, 1.0))
    between = [
        ((1 - share) * before + share * after, found)
        for before, found, after in zip(*map(figures, (warm, mixed, cold)), strict=True)
    ]
    assert all(found == pytest.approx(expected, rel=1e-9) for expected, found in between)
    assert mixed.latency.mean == pytest.approx((1 - share) * warm.latency.mean + share * cold.latency.mean, abs=1e-4)
    assert warm.times == mixed.times == cold.times


def figures(price):
    return (price.usd, *(stage.seconds for stage in price.stages), *(stage.billed_s for stage in price.stages))


def test_a_burst_is_limited_by_the_accounts_concurrency():
    query = price_plan(small_plan(), Platform(FACTS, STORE))
    few, many = (price_burst(query, queries, FACTS) for queries in (3, 1_000_000))
    assert (few.environments, few.usd) == (6, pytest.approx(3 * query.usd))
    assert few.least_seconds == query.latency.mean
    assert many.least_seconds == pytest.approx(1e6 * sum(stage.billed_s for stage in query.stages) / FACTS.concurrency)


@pytest.mark.parametrize(
    ("store", "usd"), [("s3", 0.0), ("redis", 0.216), ("redis+s3", 0.216), ("valkey", 0.0084), ("valkey+s3", 0.0084)]
)
def test_the_fixed_cost_of_a_store_is_that_of_its_nodes(store, usd):
    assert standing_usd(Platform.over(shipped_aws(), store)) == pytest.approx(730 * usd, rel=0.01)


def one_gang(plan):
    """Return the small plan's stages as one gang, with the first one's memory and store."""
    memory = plan.stages[0].memory_mb
    stages = tuple(replace(stage, memory_mb=memory) for stage in plan.stages)
    return replace(plan, stages=stages, gangs=(Gang(0, len(stages), 0.0, 0.0),))


def test_a_gang_is_one_step_of_its_slowest_members_and_exchanges():
    plan, where = one_gang(small_plan()), Platform(FACTS, STORE)
    (price,) = price_plan(plan, where).stages
    load, memory = gang_load(plan, plan.gangs[0]), plan.stages[0].memory_mb
    members = plan.stages[0].grid.tiles
    share = vcpus(memory, FACTS.memory_per_vcpu)
    compute = [
        max(compute_seconds(tile.serial_ms / 1e3, tile.parallel_ms / 1e3, share) for tile in stage.tiles)
        for stage in plan.stages
    ]
    moved = sum(
        2 * STORE.request_latency + (max(each.bytes_sent) + max(each.bytes_received)) / FACTS.bandwidth
        for each in load.exchanges
    )
    pixels = load.outer.carried_in
    ends = max(4 / 3 * pixels / FACTS.bandwidth + pixels / CODEC_RATE)
    answer = load.outer.carried_out
    ends += max(4 / 3 * answer / FACTS.bandwidth + answer / CODEC_RATE)
    inside = TASK_SECONDS + sum(compute) + moved + ends
    driver = members * DISPATCH_SECONDS + (pixels.sum() + answer.sum()) / CARRY_RATE
    assert price.seconds == pytest.approx(driver + invoke_seconds(members, FACTS) + inside)
    skew = invoke_seconds(members, FACTS) - invoke_seconds(1, FACTS)
    assert price.billed_s == pytest.approx(members * (inside + skew))
    assert price.usd == pytest.approx(members * (billed_usd(memory, inside + skew, FACTS) + FACTS.price_request))
    assert 0 < price.waiting_s < price.billed_s
    assert price_plan(plan, where).numbers == (range(len(plan.stages)),)
    assert price_plan(plan, where).latency.mean == pytest.approx(price.seconds, rel=1e-2)


def test_valkey_charges_for_messages_and_their_bytes():
    plan = one_gang(small_plan())
    redis, valkey = (price_plan(plan, Platform(FACTS, store)).stages[0] for store in (STORE, VALKEY))
    exchanges = gang_load(plan, plan.gangs[0]).exchanges
    requests = sum(each.messages.sum() * VALKEY.price_put for each in exchanges)
    requests += sum((each.bytes_received > 0).sum() * VALKEY.price_get for each in exchanges)
    moved = sum((each.bytes_sent + each.bytes_received).sum() for each in exchanges) * VALKEY.price_byte
    assert redis.bytes_exchanged > 0
    assert valkey.usd - redis.usd == pytest.approx(requests + moved, rel=1e-3)


class TestCrops:
    """The image of a stage of one task: 8-bit pixels, in its payload or in the store."""

    @staticmethod
    def load(size):
        none = np.zeros(1)
        return StageLoad(none, none, none, none, none, np.array([size]), none, crops=np.array([size]))

    def test_large_crops_are_read_from_a_store_that_is_near(self):
        platform = Platform.over(shipped_aws(), "redis")
        placed = self.load(1e6).placed(platform)
        assert (placed.bytes_read, placed.ranges, placed.carried_in, placed.put) == (1e6, 1, 0, 1e6)
        store = platform.store
        read_s = store.request_latency + store.range_latency + 1e6 / platform.functions.bandwidth
        assert task_seconds(self.load(1e6), 1769, platform) == pytest.approx(TASK_SECONDS + read_s)

    @pytest.mark.parametrize(("size", "store"), [(1e4, "redis"), (1e6, "s3")])
    def test_small_crops_and_those_over_a_far_store_are_carried(self, size, store):
        load = self.load(size)
        assert load.placed(Platform.over(shipped_aws(), store)) is load

    def test_putting_a_crop_takes_the_driver_a_request_more_than_carrying_it_and_costs_what_the_store_charges(self):
        platform = Platform.over(shipped_aws(), "valkey")
        placed = self.load(1e6).placed(platform)
        assert placed.driver_seconds(platform) == pytest.approx(1e6 / CARRY_RATE + platform.store.request_latency)
        store = platform.store
        assert placed.usd(platform) == pytest.approx(store.price_put + store.price_get + 2e6 * store.price_byte)


PER_VCPU = FACTS.memory_per_vcpu
MEMORY = st.integers(FACTS.memory_min, FACTS.memory_max)
SECONDS = st.floats(1e-4, 10)


@pytest.mark.parametrize(
    ("memory", "count"), [(128, 1), (1769, 1), (1770, 2), (3000, 2), (3538, 2), (5307, 3), (7076, 4), (10240, 6)]
)
def test_a_worker_has_a_thread_for_every_started_vcpu(memory, count):
    assert threads(memory, PER_VCPU) == count


@pytest.mark.exact
@given(MEMORY, SECONDS, SECONDS)
def test_predicted_seconds_equal_those_of_the_worker_threads(memory, serial, parallel):
    """By hand: one thread computes at a share of a processor; all together get no more than memory / 1769."""
    granted = memory / PER_VCPU
    expected = serial / min(1, granted) + parallel / min(threads(memory, PER_VCPU), granted)
    assert float(compute_seconds(serial, parallel, vcpus(memory, PER_VCPU))) == pytest.approx(expected)
    nothing = np.zeros(1)
    load = StageLoad(np.array([serial]), np.array([parallel]), *[nothing] * 5)
    planned = float(task_seconds(load, memory, Platform.over(shipped_aws(), "redis"))[0])
    assert planned == pytest.approx(TASK_SECONDS + expected)
    first, last = small_plan().stages
    tile = replace(last.tiles[0], serial_ms=1000 * serial, parallel_ms=1000 * parallel)
    heavy = replace(last.functions[0].weights, bytes=1 << 20)
    functions = (replace(last.functions[0], weights=heavy),)
    last = replace(last, tiles=(tile,), memory_mb=memory, functions=functions)
    batching = plan_batching(replace(small_plan(), stages=(first, last)), PER_VCPU, concurrency=1)
    assert batching.stages[1].image_s == pytest.approx(expected)


@given(MEMORY, MEMORY, SECONDS, SECONDS)
def test_more_memory_never_takes_longer(one, other, serial, parallel):
    times = [float(compute_seconds(serial, parallel, vcpus(memory, PER_VCPU))) for memory in sorted((one, other))]
    assert times[0] >= times[1] * (1 - 1e-12)


def test_an_operators_prediction_follows_it():
    profiles, work = shipped_profiles(), Work(Kind.CONVOLUTION, 10**8, 10**5, 10**5, 10**4, 64, 64, rows=56, cols=56)
    serial, parallel = profiles.parts(work)
    assert profiles.seconds(work, 1.7) == pytest.approx(serial + parallel / 1.7)
    assert profiles.seconds(work, 0.5) == pytest.approx(2 * (serial + parallel))
    assert math.isclose(profiles.seconds(work), serial + parallel)
