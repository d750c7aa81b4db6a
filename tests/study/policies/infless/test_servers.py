import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer_bench.study.policies.infless.servers import Servers, has_room
from tests.study.policies.infless.clusters import SIZES, servers

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


@given(wants=st.lists(wanted, max_size=20))
def test_what_is_released_is_free_again(wants):
    cluster = servers(2, CORES, GPUS)
    before = [cluster.free(server) for server in range(2)]
    placed = []
    for cores, share in wants:
        state = next((each for each in sorted(cluster.states) if has_room(each, cores, share)), None)
        if state is not None:
            placed.append(cluster.place(state, cores, share))
    for one in reversed(placed):
        cluster.release(one)
    assert [cluster.free(server) for server in range(2)] == before
    assert (cluster.active, cluster.fragments) == (0, 0.0)


def test_a_share_lies_on_one_gpu():
    cluster = servers(1, CORES, GPUS)
    for _ in range(2):
        cluster.place(next(iter(cluster.states)), 1, 60)
    state = next(iter(cluster.states))
    assert state == (6, (40, 40))
    assert not has_room(state, 1, 80)  # 80 are free, on two GPUs
    with pytest.raises(ValueError, match="no room"):
        cluster.place(state, 1, 80)


def test_the_fullest_gpu_that_has_room_gets_a_share():
    cluster = servers(1, CORES, GPUS)
    cluster.place(next(iter(cluster.states)), 1, 60)
    assert cluster.place(next(iter(cluster.states)), 1, 30).gpu == 0
    assert cluster.place(next(iter(cluster.states)), 1, 30).gpu == 1


def test_fragments_are_the_free_part_of_active_servers():
    cluster = servers(2, 8, 1)
    cluster.place(next(iter(cluster.states)), 4, 50)
    whole = SIZES.units(8, 100)
    assert cluster.fragments == pytest.approx((whole - SIZES.units(4, 50)) / whole)
    assert cluster.active == 1


def test_servers_may_differ():
    cluster = Servers([(4, 0), (8, 1)], SIZES)
    assert [state for state in cluster.states if has_room(state, 1, 10)] == [(8, (100,))]
