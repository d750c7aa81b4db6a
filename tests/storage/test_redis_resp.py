"""RESP2 without a server: what is sent, what is read, and bytes that are not a reply."""

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.storage.redis.errors import RedirectionError, RedisError, ResponseError
from serfer.storage.redis.resp import RespConnection, pack, read_reply

ARGUMENTS = st.one_of(
    st.binary(max_size=100), st.text(max_size=20), st.integers(), st.integers(65_537, 65_540).map(bytes)
)


def read(data):
    return read_reply(io.BytesIO(data))


@given(st.lists(st.lists(ARGUMENTS, min_size=1, max_size=5), min_size=1, max_size=4))
def test_a_command_is_a_list_of_byte_strings(commands):
    sent = io.BytesIO(b"".join(pack(commands)))
    wanted = [[one if isinstance(one, bytes) else str(one).encode() for one in command] for command in commands]
    assert [read_reply(sent) for _ in commands] == wanted
    assert not sent.read()


def test_large_values_are_sent_as_they_are_small_ones_in_one_part():
    value = memoryview(bytes(70_000))
    parts = pack([("SET", "k", value, "PX", 5)])
    assert [part is value for part in parts] == [False, True, False]
    assert len(pack([("GET", "k")] * 100)) == 1


@pytest.mark.parametrize(
    ("data", "reply"),
    [
        (b"+OK\r\n", b"OK"),
        (b":-7\r\n", -7),
        (b"$-1\r\n", None),
        (b"$0\r\n\r\n", b""),
        (b"$4\r\na\r\nb\r\n", b"a\r\nb"),
        (b"*-1\r\n", None),
        (b"*2\r\n*1\r\n:1\r\n$1\r\nx\r\n", [[1], b"x"]),
    ],
)
def test_replies(data, reply):
    assert read(data) == reply
    for length in range(len(data)):
        with pytest.raises(RedisError, match="closed the connection"):
            read(data[:length])


def test_refusals_are_told_apart_by_their_first_word():
    moved = read(b"-MOVED 3999 10.0.0.1:6381\r\n")
    assert (type(moved), moved.moved, moved.host, moved.port) == (RedirectionError, True, "10.0.0.1", 6381)
    refusal = read(b"-WRONGTYPE Operation against a key\r\n")
    assert (type(refusal), str(refusal)) == (ResponseError, "WRONGTYPE Operation against a key")
    [ask, number] = read(b"*2\r\n-ASK 1 :2\r\n:3\r\n")
    assert (ask.moved, ask.host, ask.port, number) == (False, "", 2, 3)


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 400\r\n",
        b"<html>\n",
        b"$x\r\n",
        b"$-2\r\n",
        b"$999999999999\r\n",
        b"*999999999999\r\n",
        b"$1\r\nabc",
        b"-MOVED\r\n",
        b"*1\r\n" * 10_000,
        b"+" + b"x" * 70_000,
    ],
)
def test_what_is_not_a_reply_is_refused(data):
    with pytest.raises(RedisError, match="does not speak Redis's protocol"):
        read(data)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_reply_or_an_error_of_redis(data):
    try:
        read(b"*" + data)
        read(data)
    except RedisError:
        return


@pytest.mark.hostile
@pytest.mark.parametrize(
    ("host", "port"), [("a\0b", 1), ("é" * 70, 1), ("127.0.0.1", 2**32), ("127.0.0.1", -1), ("127.0.0.1", 10**30)]
)
def test_address_that_cannot_be_is_an_error_of_redis(host, port):
    """A cluster names its nodes."""
    with pytest.raises(RedisError, match="cannot be"):
        RespConnection(host=host, port=port).connect()
