import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
import redis
import redis.crc
from hypothesis import example, given
from hypothesis import strategies as st

from serfer.core.errors import MissingKeyError, StoreError, StoreUnavailableError, UsageError
from serfer.core.keys import output_key, query_id
from serfer.local.servers.redis import RedisServer
from serfer.storage import Range, open_store
from serfer.storage.contract import CoordinationContract, ExchangeContract, StoreContract
from serfer.storage.coordination import Entry
from serfer.storage.exchange import START, Message
from serfer.storage.redis.cluster import SLOTS, _owners, key_slot
from serfer_bench.core.redis_cluster import RedisCluster
from tests.storage.test_redis import RawRedis, expire  # noqa: F401 - a fixture


@pytest.fixture(scope="module")
def cluster():
    with RedisCluster() as cluster:
        yield cluster


def password_of(cluster):
    return cluster.url.partition("://:")[2].partition("@")[0]


def key_on(node, nodes=3):
    """Make up a key whose slot lies with the `node`-th of so many nodes."""
    while True:
        key = f"k:{secrets.token_hex(8)}"
        if key_slot(key) * nodes // SLOTS == node:
            return key


@contextmanager
def slot_move(cluster, slot):
    with cluster.client(0) as source, cluster.client(1) as target, cluster.client(2) as witness:
        ids = [client.execute([("CLUSTER", "MYID")])[0] for client in (source, target)]
        target.execute([("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])])
        source.execute([("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])])

        def send(key):
            where = ("127.0.0.1", cluster.nodes[1].port, key, 0, 5000)
            assert source.execute([("MIGRATE", *where, "AUTH", password_of(cluster))]) == [b"OK"]

        yield send
        for key in source.execute([("CLUSTER", "GETKEYSINSLOT", slot, 100)])[0]:  # what another test left there
            send(key)
        for client in (target, source, witness):
            client.execute([("CLUSTER", "SETSLOT", slot, "NODE", ids[1])])


@given(st.text(alphabet="{}ab:é", max_size=12))
@example("{}{a}")
def test_slot_of_a_key_is_that_of_redis_py(key):
    assert SLOTS == redis.crc.REDIS_CLUSTER_HASH_SLOTS
    assert key_slot(key) == redis.crc.key_slot(key.encode())


class TestRedisCluster(StoreContract, CoordinationContract):
    @pytest.fixture
    def url(self, cluster):
        return cluster.url

    @pytest.fixture
    def raw(self, cluster):
        with redis.RedisCluster("127.0.0.1", cluster.nodes[0].port, password=password_of(cluster)) as client:
            yield RawRedis(client)

    def test_a_tagged_querys_keys_share_a_slot_and_others_spread(self, cluster):
        with cluster.client(0) as client:
            slots = [
                {*client.execute([("CLUSTER", "KEYSLOT", output_key(query, stage, tile)) for tile in range(16)])}
                for query in (query_id(one_slot=True), query_id(one_slot=False))
                for stage in range(3)
            ]
        assert len(set.union(*slots[:3])) == 1
        assert len(set.union(*slots[3:])) > 30

    def test_a_tagged_querys_keys_are_read_from_one_node(self, store):
        query = query_id(one_slot=True)
        keys = [output_key(query, 0, tile) for tile in range(16)]
        for key in keys:
            store.put(key, key.encode(), 60)
        assert store.get_many([Range(key) for key in keys]) == [key.encode() for key in keys]
        connected = [node for node in store._commands._nodes.values() if _connections(node)]
        assert len(connected) <= 2  # and one to ask who owns the slot

    def test_keys_of_all_nodes_in_one_call_keep_their_order(self, store):
        keys = [key_on(number % 3) for number in range(30)]
        for key in keys[:-1]:
            store.put(key, key.encode(), 60)
        assert store.get_many([Range(key, 2, 4) for key in keys[:-1]]) == [key.encode()[2:6] for key in keys[:-1]]
        assert store.exists(keys) == [True] * 29 + [False]
        with pytest.raises(MissingKeyError, match=keys[-1]):
            store.get_many([Range(key) for key in keys])
        store.delete(keys)
        assert store.exists(keys) == [False] * 30
        assert all(_connections(node) == 1 for node in store._commands._nodes.values())

    @pytest.mark.two_at_once
    def test_few_connections_for_many_threads_do_not_wait_in_a_ring(self, cluster):
        keys = [key_on(number % 3) for number in range(6)]
        with open_store(cluster.url + "?max_connections=1") as store, ThreadPoolExecutor(8) as threads:
            results = list(threads.map(lambda n: store.exists(keys[n % 6 :] + keys[: n % 6]), range(200)))
        assert results == [[False] * 6] * 200

    def test_a_refusal_names_node_and_command(self, store):
        key = key_on(1)
        store.execute([("LPUSH", key, "x"), ("PEXPIRE", key, 60_000)])
        with pytest.raises(StoreError, match=r"127.0.0.1:.*refused GET: WRONGTYPE"):
            store.get(key)
        assert store.exists([key]) == [True]

    def test_an_unreachable_node_is_skipped_at_the_start(self, cluster):
        with RedisServer() as gone:
            port = gone.port
        url = cluster.url.replace("@", f"@127.0.0.1:{port},", 1)
        with open_store(url) as store:
            assert store.exists([key_on(0)]) == [False]

    def test_a_wrong_password_is_reported_without_it(self, cluster):
        wrong = cluster.url.replace("://:", "://:wrong")
        with open_store(wrong) as store, pytest.raises(StoreUnavailableError, match="refused the login") as caught:
            store.get("k")
        assert password_of(cluster) not in str(caught.value)

    def test_a_server_that_is_not_a_cluster_is_reported(self):
        with RedisServer() as server:
            message = rf"127.0.0.1:{server.port}.* is not a cluster: write redis://"
            url = server.url.replace("redis://", "redis+cluster://")
            with open_store(url) as store, pytest.raises(StoreUnavailableError, match=message):
                store.get("k")

    def test_a_cluster_opened_as_a_server_is_reported(self, cluster):
        url = f"redis://:{password_of(cluster)}@127.0.0.1:{cluster.nodes[0].port}"
        message = r"is a node of a cluster: write redis[+]cluster://"
        with open_store(url) as store, pytest.raises(StoreUnavailableError, match=message):
            store.exists([key_on(0), key_on(1)])

    def test_a_slot_that_moves_is_followed(self, cluster, store):
        tag = f"{{{key_on(0)}}}"
        slot = key_slot(tag)
        ahead, behind, fresh = (f"{tag}:{name}" for name in ("ahead", "behind", "new"))
        store.put(ahead, b"ahead", 60)
        store.put(behind, b"behind", 60)
        with slot_move(cluster, slot) as send:
            send(ahead)
            assert store.get_many([Range(behind), Range(ahead, 1), Range(behind, 0, 2)]) == [b"behind", b"head", b"be"]
            store.put(fresh, b"new", 60)
            assert store.exists([fresh, ahead, behind, f"{tag}:none"]) == [True, True, True, False]
            send(behind)
        assert store.get_many([Range(fresh), Range(ahead), Range(behind)]) == [b"new", b"ahead", b"behind"]
        assert store._commands._owners[slot] == ("127.0.0.1", cluster.nodes[1].port)
        store.delete([ahead, behind, fresh])
        assert store.exists([ahead, behind, fresh]) == [False] * 3


class TestRedisClusterExchange(ExchangeContract):
    @pytest.fixture
    def url(self, cluster):
        return cluster.url + "?max_connections=1"

    def test_inboxes_of_all_nodes_in_one_send(self, store, exchange):
        keys = [key_on(number % 3) for number in range(12)]
        exchange.send([Message(key, key.encode()) for key in keys], 60)
        assert [exchange.receive(key, START, 0)[0].value for key in keys] == [key.encode() for key in keys]
        assert all(50_000 < left_ms <= 60_000 for left_ms in store.execute([("PTTL", key) for key in keys]))

    @pytest.mark.parametrize("first", [[], [b"1"]])
    def test_a_wait_follows_a_slot_that_moves(self, cluster, store, exchange, first):
        tag = f"{{{key_on(0)}}}"
        slot, key, kept = key_slot(tag), f"{tag}:in", f"{tag}:kept"
        exchange.send([Message(each, value) for each in (key, kept) for value in first], 60)
        after = [message.cursor for message in exchange.receive(key, START, 0)]

        def wait():
            return threads.submit(exchange.receive, key, after[-1] if after else START, 30)

        def check(waiting, value):
            exchange.send([Message(key, value)], 60)
            [received] = waiting.result()
            assert received.value == value
            after.append(received.cursor)

        with ThreadPoolExecutor(1) as threads:
            waiting = wait()
            time.sleep(0.05)  # until it waits
            with slot_move(cluster, slot) as send:
                for inbox in (key, kept) if first else ():
                    send(inbox)
                check(waiting, b"ahead")
                waiting = wait()
                time.sleep(0.05)  # until it waits
            check(waiting, b"moved")
            check(wait(), b"stays")
        store.delete([key, kept])

    @pytest.mark.killed
    def test_a_node_that_dies_ends_the_wait(self):
        with RedisCluster(node_timeout_s=0.5) as cluster, open_store(cluster.url) as store:
            key, other, exchange = key_on(0), key_on(1), store.exchange()
            with ThreadPoolExecutor(2) as threads:
                waits = [threads.submit(exchange.receive, each, START, 30) for each in (key, other)]
                time.sleep(0.1)  # until they wait
                store.put(f"{{{other}}}", b"x", 60)
                cluster.nodes[0].stop()
                with pytest.raises(StoreUnavailableError, match=f"127.0.0.1:{cluster.nodes[0].port}"):
                    waits[0].result()
                assert "is down" in _refusal_when_down(store, f"{{{other}}}")
                with pytest.raises(StoreUnavailableError, match="is down"):
                    waits[1].result()
                _take_over(cluster)
                _when_up(lambda: exchange.send([Message(key, b"x"), Message(other, b"y")], 60))
            assert [exchange.receive(each, START, 30)[0].value for each in (key, other)] == [b"x", b"y"]
            exchange.close()


def test_a_write_whose_reply_is_lost_is_sent_again_and_found_to_be_its_own(cluster, monkeypatch):
    with open_store(cluster.url) as store:
        key, exchange, lost, coordination = key_on(0), store._commands._send_and_read, [], store.coordination()

        def losing(batches):
            answers = exchange(batches)
            lost.append(answers)
            if len(lost) % 2:
                raise StoreUnavailableError("the node is gone")
            return answers

        monkeypatch.setattr(store._commands, "_send_and_read", losing)
        monkeypatch.setattr(store._commands, "_has_moved", lambda *_: True)
        store.put(f"{key}:plain", b"x", 60)
        first = coordination.compare_and_set(key, None, b"first", 60)
        second = coordination.compare_and_set(key, first, b"second", 60)
        assert len(lost) == 6
        assert coordination.compare_and_set(key, first, b"third", 60) is None
        assert coordination.get(key) == Entry(b"second", second)


@pytest.mark.killed
@pytest.mark.who_may
def test_a_dead_node_is_reported_and_the_new_owner_of_its_slots_is_found():
    with RedisCluster(node_timeout_s=0.5) as cluster, open_store(cluster.url) as store:
        lost, kept = key_on(0), key_on(1)
        store.put(lost, b"x", 60)
        store.put(kept, b"x", 60)
        cluster.nodes[0].stop()
        with pytest.raises(StoreUnavailableError) as caught:
            store.get_many([Range(kept), Range(lost)])
        assert f"127.0.0.1:{cluster.nodes[0].port} (a node of a cluster)" in str(caught.value)
        assert "cannot be reached" in str(caught.value) or "closed the connection" in str(caught.value)
        assert "is down" in _refusal_when_down(store, kept)
        _take_over(cluster)
        _when_up(lambda: store.put(lost, b"again", 60))
        assert store.get(lost) == b"again"
        assert store.get(kept) == b"x"


def _connections(node):
    return len(node._pool._idle) + len(node._pool._in_use)


def _refusal_when_down(store, key):
    """Ask until the nodes that are left call the cluster down, as they do after the node timeout."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        try:
            store.get(key)
        except StoreUnavailableError as error:
            return str(error)
    return "still up"


def _when_up(write):
    deadline = time.monotonic() + 20
    while True:
        try:
            return write()
        except StoreUnavailableError:
            assert time.monotonic() < deadline


def _take_over(cluster):
    """Give the first node's slots to the second, and say so to the third."""
    with cluster.client(1) as taker, cluster.client(2) as witness:
        [name] = taker.execute([("CLUSTER", "MYID")])
        for client in (taker, witness):
            client.execute([("CLUSTER", "SETSLOT", slot, "NODE", name) for slot in range(SLOTS // 3 + 1)])


@pytest.mark.hostile
@pytest.mark.parametrize(
    "url",
    [
        "redis+cluster://:hush@host/1",
        "redis+cluster://:hush@host:x",
        "redis+cluster://:hush@host:1,host:x",
        "redis+cluster://:hush@host:1,",
        "redis+cluster://:hush@host?colour=red",
        "rediss+cluster://:hush@host?ssl_cert_reqs=hush",
        "redis+cluster://",
    ],
)
def test_malformed_urls_are_refused_without_their_password(url):
    with pytest.raises(UsageError, match="--store") as caught:
        open_store(url)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("host", [None, b"", b"?"])
def test_node_without_a_known_name_is_where_it_was_asked(host):
    """Valkey announces "?" for a node whose preferred endpoint is a host name that is not configured."""
    owners = _owners([[0, 16383, [host, 6379, b"id"], []]], ("10.0.0.7", 6380))
    assert set(owners) == {("10.0.0.7", 6379)}
