"""The load of a service is read from its reply, and anything else is an error that says what to do."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.control.throttle import OnlineLoad
from serfer.core.errors import InputError, SerferError, UnavailableError, UsageError
from serfer.local.server import free_port
from serfer.offline.load_source import service_loads
from tests.support.http_stub import serving

LOAD = {"utilisation": 0.25, "throttled": 1, "latency": 0.9, "of_account": True, "something": "newer"}


@pytest.fixture
def server():
    with serving() as server:
        yield server


def read(url, key=""):
    [source] = service_loads([url], key)
    return source.read()


def test_a_services_load_is_read_with_the_key(server):
    server.replies = [(200, {}, json.dumps(LOAD).encode())]
    load = read(f"{server.url}/prefix/", "sf_secret")
    assert load == OnlineLoad(server.url.removeprefix("http://"), 0.25, 0.9, 1, of_account=True)
    [request] = server.requests
    assert (request.method, request.path) == ("GET", "/prefix/v1/load")
    assert request.headers["x-api-key"] == "sf_secret"
    assert "sf_secret" not in repr(service_loads([server.url], "sf_secret"))


@pytest.mark.parametrize(
    ("reply", "error", "words"),
    [
        ((401, {}, b""), UsageError, "SERFER_YIELD_KEY"),
        ((403, {}, b""), UsageError, "--set allow_host="),
        ((404, {}, b""), UsageError, "with 404: is it serfer serve"),
        ((302, {"Location": "/elsewhere"}, b""), UsageError, "with 302"),
        ((429, {}, b""), UnavailableError, "with 429"),
        ((503, {}, b""), UnavailableError, "with 503"),
        ((200, {}, b"<html>"), InputError, "is not JSON"),
        ((200, {}, b"[]"), InputError, "should be an object"),
        ((200, {}, b'{"utilisation": 0.1}'), InputError, "lacks 'throttled'"),
        ((200, {}, b'{"utilisation": -1, "throttled": 0}'), InputError, "utilisation should be"),
        ((200, {}, b'{"utilisation": NaN, "throttled": 0}'), InputError, "utilisation should be"),
        ((200, {}, b'{"utilisation": 0, "throttled": 0, "x": "' + b"y" * 100_000 + b'"}'), InputError, "is not JSON"),
    ],
)
def test_other_replies_are_errors_by_name(server, reply, error, words):
    server.replies = [reply]
    with pytest.raises(error, match="--yield-to") as raised:
        read(server.url)
    assert words in str(raised.value)
    assert len(server.requests) == 1


def test_a_service_that_is_not_there_is_unavailable():
    with pytest.raises(UnavailableError, match="cannot be reached"):
        read(f"http://127.0.0.1:{free_port()}")


@pytest.mark.who_may
@pytest.mark.parametrize(
    "url", ["", "localhost:8000", "ftp://host", "http://user:secret@host", "http://h/#x", "http://"]
)
def test_what_is_not_the_url_of_a_service_is_refused_without_its_secrets(url):
    with pytest.raises(UsageError, match="--yield-to") as raised:
        service_loads([url], "")
    assert "secret" not in str(raised.value)
    with pytest.raises(UsageError, match="at most 16"):
        service_loads(["http://host"] * 17, "")


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: st.dictionaries(st.sampled_from([*LOAD]), inner, max_size=5) | st.lists(inner, max_size=3),
    ).map(lambda value: json.dumps(value).encode())
)
def test_no_reply_is_a_bug(body):
    [source] = service_loads(["http://host"], "")
    try:
        load = source._load(body)
    except SerferError:
        return
    assert load.utilisation >= 0
