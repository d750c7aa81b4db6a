import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer_bench.study.policies.infless.options import Sizes, fixed_option
from serfer_bench.study.policies.infless.profiles import Configuration
from serfer_bench.study.policies.infless.scheduling import Efficiency, Throughput, pack, schedule, spread
from serfer_bench.study.policies.infless.servers import Servers, has_room
from tests.study.policies.infless.clusters import BETA, SIZES, SMALL, function, networks, servers

CORES, GPUS = 8, 2
wanted = st.tuples(st.integers(1, 4), st.sampled_from([0, 10, 30, 50, 100]))


def used(placements, count):
    """Return cores of each server, and shares of each of its GPUs, that are occupied."""
    cores, shares = [0] * count, [[0] * GPUS for _ in range(count)]
    for one in placements:
        cores[one.server] += one.cores
        if one.gpu is not None:
            shares[one.server][one.gpu] += one.share
    return cores, shares


@given(wants=st.lists(wanted, max_size=40), gone=st.sets(st.integers(0, 39)))
def test_no_server_or_gpu_is_ever_over_its_capacity(wants, gone):
    count = 3
    cluster = servers(count, CORES, GPUS)
    placed = []
    for number, (cores, share) in enumerate(wants):
        state = next((each for each in sorted(cluster.states) if has_room(each, cores, share)), None)
        if state is not None:
            placed.append(cluster.place(state, cores, share))
        if number in gone and placed:
            cluster.release(placed.pop(0))
        cores_used, shares = used(placed, count)
        for server in range(count):
            assert cores_used[server] <= CORES
            assert all(each <= 100 for each in shares[server])
            free_cores, free_shares = cluster.free(server)
            assert free_cores == CORES - cores_used[server]
            assert list(free_shares) == [100 - each for each in shares[server]]


def test_share_lies_on_the_fullest_gpu_that_has_room():
    cluster = servers(1, CORES, GPUS)
    assert [cluster.place(next(iter(cluster.states)), 1, share).gpu for share in (60, 30, 30)] == [0, 0, 1]
    state = next(iter(cluster.states))
    assert state == (5, (10, 70))
    assert not has_room(state, 1, 80)  # 80 are free, on two GPUs
    with pytest.raises(ValueError, match="no room"):
        cluster.place(state, 1, 80)


def test_servers_may_differ_and_fragments_are_what_active_ones_have_free():
    cluster = servers(2, 8, 1)
    cluster.place(next(iter(cluster.states)), 4, 50)
    whole = SIZES.units(8, 100)
    assert cluster.fragments == pytest.approx((whole - SIZES.units(4, 50)) / whole)
    assert cluster.active == 1
    cluster = Servers([(4, 0), (8, 1)], SIZES)
    assert [state for state in cluster.states if has_room(state, 1, 10)] == [(8, (100,))]


@given(network=networks, rate=st.floats(0.1, 500), slo_s=st.floats(0.05, 1))
def test_what_is_launched_and_unplaced_covers_the_rate(network, rate, slo_s):
    found = schedule(function(network, slo_s), rate, servers())
    up = sum(one.option.up for one in found.launches)
    assert up + found.unplaced >= rate * (1 - 1e-9)
    if found.unplaced:
        assert up + found.unplaced == pytest.approx(rate)


@given(network=networks, rate=st.floats(1, 2000), full_fit=st.sampled_from([0.001, 0.1]), batch_first=st.booleans())
def test_each_launch_is_the_best_of_all_pairs_of_a_configuration_and_a_server(network, rate, full_fit, batch_first):
    """Compare the heap over states with a look at each server, line 8 of Algorithm 1."""
    known, shadow, chooser = function(network), servers(3), Efficiency(full_fit)
    best = max((one.efficiency for one in known.options), default=1.0)
    left = rate
    for launch in schedule(known, rate, servers(3), chooser, batch_first=batch_first).launches:
        scores = []
        for one, state in itertools.product(known.options, shadow.states):
            size = one.configuration
            fits = size.cores <= state[0] and (not size.share or size.share <= state[1][-1])
            if fits and (one.low == 0 or left > one.low):
                scores.append((size.batch if batch_first else 0, chooser.score(one, best, shadow.units(state))))
        largest, highest = max(scores)
        option, placement = launch.option, launch.placement
        size = option.configuration
        assert size.batch == largest or not batch_first
        assert size.batch == 1 or left > option.low
        state = (shadow.free(placement.server)[0], tuple(sorted(shadow.free(placement.server)[1])))
        assert chooser.score(option, best, shadow.units(state)) == pytest.approx(highest)
        shadow.place(state, size.cores, size.share)
        left -= option.up


def test_a_full_fit_is_preferred_and_without_scheduling_the_configuration_with_the_most_requests():
    known = function(sizes=Sizes((1,), (2,), (50,), BETA))
    cluster = servers(2, 4, 1)
    small = schedule(known, 1.0, cluster).launches[0].placement
    after = schedule(known, 1.0, cluster).launches[0].placement
    assert (small.server, after.server) == (0, 0)  # best fit: the rest of the first server
    known = function()
    largest = max(one.configuration.batch for one in known.options)
    most = max(one.up for one in known.options if one.configuration.batch == largest)
    found = schedule(known, 1000.0, servers(2), Throughput())
    assert found.launches[0].option.up == most
    assert {one.placement.server for one in found.launches[:2]} == {0, 1}
    option = fixed_option(SMALL, Configuration(1, 1, 10), SIZES)
    for place, expected in ((spread, [0, 1, 2]), (pack, [0, 0, 0])):
        cluster = servers(3)
        assert [place(option, cluster).server for _ in range(3)] == expected
    assert pack(option, servers(0)) is None
