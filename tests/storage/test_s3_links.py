"""Links to values: good for reading one value, in any range, for as long as they say."""

import re

import httpx
import pytest

from serfer.core.errors import StoreUnavailableError, UsageError
from serfer.storage import open_store
from serfer.storage.faults import wrapped_url
from serfer.storage.memory import MemoryStore
from serfer.storage.s3.store import S3Store
from serfer.storage.wrapping import WrapperStore
from serfer_bench.core.s3_server import S3Server

KEY = "serfer:results/one:part{0}"
VALUE = bytes(range(256)) * 40


@pytest.fixture(scope="module")
def server():
    with S3Server() as server:
        yield server


@pytest.fixture
def store(server, monkeypatch):
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    with S3Store(server.url) as store:
        store.put(KEY, VALUE, 60)
        yield store


@pytest.mark.who_may
def test_a_link_reads_the_value_and_its_ranges_without_credentials(store):
    url = store.link(KEY, 60)
    assert httpx.get(url).content == VALUE
    part = httpx.get(url, headers={"Range": "bytes=100-355"})
    assert (part.status_code, part.content) == (206, VALUE[100:356])


def test_a_link_is_for_reading_that_value_alone(store):
    url = store.link(KEY, 60)
    store.put("serfer:results/two", b"secret", 60)
    other = store.link("serfer:results/two", 60)
    path = httpx.URL(other).raw_path.partition(b"?")[0]
    assert httpx.get(httpx.URL(url).copy_with(raw_path=path + b"?" + httpx.URL(url).query)).status_code == 403
    assert httpx.put(url, content=b"mine").status_code == 403
    assert httpx.delete(url).status_code == 403
    assert store.get(KEY) == VALUE
    assert httpx.get(url.partition("?")[0]).status_code == 403


def test_a_link_has_an_end(store):
    later = re.sub(r"X-Amz-Expires=\d+", "X-Amz-Expires=604800", store.link(KEY, 60))
    assert httpx.get(later).status_code == 403
    assert "X-Amz-Expires=604800&" in store.link(KEY, 10**9)
    assert "X-Amz-Expires=1&" in store.link(KEY, 0)


@pytest.mark.who_may
def test_bad_keys_and_missing_credentials_are_refused(store, monkeypatch, server):
    with pytest.raises(UsageError, match="not allowed"):
        store.link("../x", 60)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with S3Store(server.url) as other, pytest.raises(StoreUnavailableError, match="no AWS credentials"):
        other.link(KEY, 60)


def test_other_stores_have_none_and_wrappers_pass_it_on(store, server, tmp_path):
    assert MemoryStore().link(KEY, 60) is None
    with open_store(tmp_path.as_uri()) as files:
        assert files.link(KEY, 60) is None
    with open_store(wrapped_url("delay", server.url, {"get_ms": 0})) as wrapped:
        assert httpx.get(wrapped.link(KEY, 60)).content == VALUE
    assert httpx.get(WrapperStore(store).link(KEY, 60)).content == VALUE


def test_a_directory_bucket_has_none(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKOWN")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "own secret")
    with S3Store("s3://name--usw2-az1--x-s3/p?region=us-west-2") as store:
        assert store.link(KEY, 60) is None
