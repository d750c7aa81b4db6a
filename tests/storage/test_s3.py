import os
import queue
import re
import time
from itertools import count

import httpx
import numpy as np
import pytest
from botocore.session import Session

from serfer.core.errors import StoreError, StoreUnavailableError, UsageError, ValueTooLargeError
from serfer.storage import Range, open_store
from serfer.storage.contract import CoordinationContract, StoreContract
from serfer.storage.faults import wrapped_url
from serfer.storage.memory import MemoryStore
from serfer.storage.s3.store import Limits, S3Store
from serfer.storage.wrapping import WrapperStore
from serfer_bench.core.s3_server import S3Server
from tests.storage.s3_stub import refused, stub
from tests.storage.test_s3_errors import WAYS

MIB = 1 << 20
NUMBER = count()
BEGUN = b"<InitiateMultipartUploadResult><UploadId>u/1</UploadId></InitiateMultipartUploadResult>"
COMPLETED = b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"


class RawBucket:
    """A bucket's objects, by botocore's client, named as the store's module describes."""

    def __init__(self, client, server, url, clock):
        self.client, self.clock = client, clock
        self.bucket, self.prefix = server.bucket, url.removeprefix(f"s3://{server.bucket}/")

    def named(self, key):
        name = key.replace("/", "!")
        parts = [name[i : i + 200] for i in range(0, len(name), 200)]
        path = "".join(f"{part}*/" for part in parts[:-1])
        return {"Bucket": self.bucket, "Key": f"{self.prefix}/{path}{parts[-1]}"}

    def get(self, key):
        response = self.client.get_object(**self.named(key))
        return response["Body"].read(), float(response["Metadata"]["serfer-expires"]) - self.clock()

    def put(self, key, value, ttl):
        metadata = {"serfer-expires": f"{self.clock() + ttl:.3f}"}
        self.client.put_object(**self.named(key), Body=value, Metadata=metadata)


@pytest.fixture(scope="module")
def server():
    with S3Server() as server:
        yield server


class TestS3(StoreContract, CoordinationContract):
    @pytest.fixture(autouse=True)
    def environment(self, server, monkeypatch):
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)

    @pytest.fixture
    def url(self, server):
        return f"s3://{server.bucket}/t/{next(NUMBER)}"

    @pytest.fixture
    def store(self, url, clock):
        with S3Store(url, clock=clock) as store:
            yield store

    @pytest.fixture
    def client(self, server):
        client = Session().create_client("s3", endpoint_url=server.endpoint)
        yield client
        client.close()

    @pytest.fixture
    def raw(self, client, server, url, clock):
        return RawBucket(client, server, url, clock)

    def names(self, client, server, url):
        prefix = url.removeprefix(f"s3://{server.bucket}/")
        return [
            entry["Key"] for entry in client.list_objects_v2(Bucket=server.bucket, Prefix=prefix).get("Contents", [])
        ]

    def test_a_large_value_is_written_in_parts_and_read_by_range(self, store, client, server, url, key):
        value = np.random.default_rng(0).integers(0, 256, 17 * MIB + 5, np.uint8)
        store.put(key, memoryview(value), 60)
        assert store.get(key) == value.tobytes()
        assert store.get(key, 8 * MIB - 2, 4) == value[8 * MIB - 2 : 8 * MIB + 2].tobytes()
        (name,) = self.names(client, server, url)
        assert client.head_object(Bucket=server.bucket, Key=name)["ETag"].endswith('-3"')  # three parts

    def test_a_version_leaves_nothing_beside_it(self, store, client, server, url, key):
        coordination = store.coordination()
        assert coordination.compare_and_set(key, None, b"x", 10)
        assert not coordination.compare_and_set(key, None, b"y", 10)
        assert [name.rpartition("/")[2] for name in self.names(client, server, url)] == [key]
        assert store.sweep(older_than_s=0, now=time.time() + 60) == 1

    def test_a_large_value_expires(self, store, key, clock):
        store.put(key, bytes(16 * MIB), 30)
        clock.ahead += 31
        assert store.exists([key]) == [False]

    def test_more_ranges_than_threads(self, store, key):
        value = bytes(range(256))
        store.put(key, value, 60)
        assert store.get_many([Range(key, i, 2) for i in range(100)]) == [value[i : i + 2] for i in range(100)]

    def test_stays_usable_after_close(self, store, key):
        store.put(key, b"x", 60)
        store.close()
        assert store.get_many([Range(key), Range(key)]) == [b"x", b"x"]

    def test_a_sweep_removes_the_expired_and_nothing_else(self, store, client, server, url, key, clock):
        prefix = url.removeprefix(f"s3://{server.bucket}/")
        for i in range(5):
            store.put(f"{key}:old{i}", b"x", 10)
        store.put("k" * 300, b"x", 10)
        store.put(f"{key}:kept", b"x", 1000)
        client.put_object(Bucket=server.bucket, Key=f"{prefix}/thesis.txt", Body=b"years of work")
        with S3Store(url + "0", clock=clock) as neighbour:
            neighbour.put(key, b"x", 10)
            assert store.sweep(older_than_s=0) == 0
            assert store.sweep(older_than_s=3600, now=time.time() + 60) == 0
            assert store.sweep(older_than_s=0, now=time.time() + 60) == 6
            assert neighbour.exists([key]) == [True]
        assert {"thesis.txt", f"{key}:kept"} == {
            n.removeprefix(f"{prefix}/") for n in self.names(client, server, f"{url}/")
        }

    def test_a_bucket_that_is_not_there_is_named(self, key):
        for ask in (
            *WAYS.values(),
            lambda store: store.put(key, bytes(16 * MIB), 60),
            lambda store: store.coordination().get(key),
            lambda store: store.get(key, 3, 0),
            lambda store: store.ensure_lifecycle(),
        ):
            with (
                S3Store("s3://not-there/p") as store,
                pytest.raises(StoreUnavailableError, match=r"/not-there .*the bucket does not exist: .*--store"),
            ):
                ask(store)

    def test_lifecycle_rule_of_a_prefix_leaves_the_other_rules(self, store, client, server, url):
        prefix = url.removeprefix(f"s3://{server.bucket}/") + "/"
        other = {"ID": "theirs", "Status": "Enabled", "Filter": {"Prefix": "logs/"}, "Expiration": {"Days": 30}}
        client.put_bucket_lifecycle_configuration(Bucket=server.bucket, LifecycleConfiguration={"Rules": [other]})
        store.ensure_lifecycle(7)
        store.ensure_lifecycle(2)
        theirs, ours = client.get_bucket_lifecycle_configuration(Bucket=server.bucket)["Rules"]
        assert theirs == other
        assert ours == {
            "ID": f"serfer {prefix}",
            "Status": "Enabled",
            "Filter": {"Prefix": prefix},
            "Expiration": {"Days": 2},
            "NoncurrentVersionExpiration": {"NoncurrentDays": 2},
            "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 2},
        }
        client.delete_bucket_lifecycle(Bucket=server.bucket)
        store.ensure_lifecycle()
        assert len(client.get_bucket_lifecycle_configuration(Bucket=server.bucket)["Rules"]) == 1

    @pytest.mark.who_may
    @pytest.mark.parametrize(("name", "value"), [("AWS_SECRET_ACCESS_KEY", "wrong"), ("AWS_ACCESS_KEY_ID", "NOBODY")])
    def test_wrong_credentials(self, server, monkeypatch, name, value):
        secret = server.environment["AWS_SECRET_ACCESS_KEY"]
        monkeypatch.setenv(name, value)
        for ask in (WAYS[way] for way in ("put", "get", "exists", "delete")):
            with (
                open_store(server.url) as store,
                pytest.raises(StoreUnavailableError, match=r"does not take the credentials.*AWS_PROFILE") as caught,
            ):
                ask(store)
            assert secret not in repr(caught.value)
            assert "\n" not in str(caught.value)


def test_value_beyond_the_limit(monkeypatch):
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with (
        S3Store("s3://bucket/p", limits=Limits(value=10)) as store,
        pytest.raises(ValueTooLargeError, match=r"'k'.*11"),
    ):
        store.put("k", bytes(11), 60)
    assert Limits().value == 5 * 1024**4


@pytest.mark.usefixtures("aws_keys")
def test_parts_grow_where_there_would_be_too_many():
    parts = {}

    def answer(request):
        if request.method == "PUT":
            parts[request.path] = request.body
            return 200, {"ETag": '"t"'}, b""
        if "uploads=" in request.path:
            return 200, {}, BEGUN
        return 200, {}, COMPLETED

    value = os.urandom(101)
    with (
        stub(answer) as (endpoint, seen),
        S3Store(f"s3://bucket/p?endpoint={endpoint}", limits=Limits(multipart_from=10, part=5, parts=10)) as store,
    ):
        store.put("k", value, 60)
    assert [parts[f"/bucket/p/k?partNumber={i}&uploadId=u%2F1"] for i in range(1, 11)] == [
        value[i : i + 11] for i in range(0, 101, 11)
    ]
    assert [(one.method, one.path) for one in seen if one.method == "POST"] == [
        ("POST", "/bucket/p/k?uploads="),
        ("POST", "/bucket/p/k?uploadId=u%2F1"),
    ]


@pytest.mark.usefixtures("aws_keys")
@pytest.mark.parametrize("failing", ["partNumber=2&", "?uploadId="])
def test_an_upload_that_fails_is_taken_back(failing):
    """A part, or the end: of that S3 may say 200 first."""

    def answer(request):
        if request.method == "DELETE":
            return 204, {}, b""
        if failing in request.path:
            status, headers, body = refused(400, "MalformedXML", "We encountered an error")
            return (200 if request.method == "POST" else status), headers, body
        return (200, {}, BEGUN) if "uploads=" in request.path else (200, {"ETag": '"t"'}, b"")

    with (
        stub(answer) as (endpoint, seen),
        S3Store(f"s3://bucket/p?endpoint={endpoint}", limits=Limits(multipart_from=10, part=5)) as store,
        pytest.raises((StoreError, StoreUnavailableError), match=r"to put 'k': (MalformedXML|HTTP 500 InternalError)"),
    ):
        store.put("k", bytes(12), 60)
    begun = [one for one in seen if one.method == "POST" and "uploads=" in one.path]
    taken_back = [one.path for one in seen if one.method == "DELETE"]  # parts may be on their way still
    assert taken_back == ["/bucket/p/k?uploadId=u%2F1"] * len(begun)


@pytest.mark.usefixtures("aws_keys")
def test_an_idle_connection_that_the_server_closed_is_renewed_and_no_request_is_lost():
    """What a worker finds that stood still, as Lambda's environments do between invocations."""
    closed = queue.Queue()
    answer = {"ETag": '"e"', "x-amz-request-id": "r"}
    with (
        stub(lambda _: (200, answer, b""), idle_s=0.01, closed=closed) as (endpoint, seen),
        S3Store(f"s3://bucket/p?endpoint={endpoint}") as store,
    ):
        for key in ("a", "b", "c"):
            store.put(key, b"x", 60)
            while closed.get(timeout=60) != seen[-1].port:  # one that was idle before its request is closed, too
                pass
    assert [request.path for request in seen] == ["/bucket/p/a", "/bucket/p/b", "/bucket/p/c"]
    assert len({request.port for request in seen}) == 3


KEY = "serfer:results/one:part{0}"
VALUE = bytes(range(256)) * 40


@pytest.fixture
def linked(server, monkeypatch):
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    with S3Store(server.url) as store:
        store.put(KEY, VALUE, 60)
        yield store


@pytest.mark.who_may
def test_a_link_reads_the_value_and_its_ranges_without_credentials(linked):
    url = linked.link(KEY, 60)
    assert httpx.get(url).content == VALUE
    part = httpx.get(url, headers={"Range": "bytes=100-355"})
    assert (part.status_code, part.content) == (206, VALUE[100:356])


def test_a_link_is_for_reading_that_value_alone(linked):
    url = linked.link(KEY, 60)
    linked.put("serfer:results/two", b"secret", 60)
    other = linked.link("serfer:results/two", 60)
    path = httpx.URL(other).raw_path.partition(b"?")[0]
    assert httpx.get(httpx.URL(url).copy_with(raw_path=path + b"?" + httpx.URL(url).query)).status_code == 403
    assert httpx.put(url, content=b"mine").status_code == 403
    assert httpx.delete(url).status_code == 403
    assert linked.get(KEY) == VALUE
    assert httpx.get(url.partition("?")[0]).status_code == 403


def test_a_link_has_an_end(linked):
    later = re.sub(r"X-Amz-Expires=\d+", "X-Amz-Expires=604800", linked.link(KEY, 60))
    assert httpx.get(later).status_code == 403
    assert "X-Amz-Expires=604800&" in linked.link(KEY, 10**9)
    assert "X-Amz-Expires=1&" in linked.link(KEY, 0)


@pytest.mark.who_may
def test_bad_keys_and_missing_credentials_are_refused(linked, monkeypatch, server):
    with pytest.raises(UsageError, match="not allowed"):
        linked.link("../x", 60)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with S3Store(server.url) as other, pytest.raises(StoreUnavailableError, match="no AWS credentials"):
        other.link(KEY, 60)


def test_other_stores_have_none_and_wrappers_pass_it_on(linked, server, tmp_path):
    assert MemoryStore().link(KEY, 60) is None
    with open_store(tmp_path.as_uri()) as files:
        assert files.link(KEY, 60) is None
    with open_store(wrapped_url("delay", server.url, get_ms=0)) as wrapped:
        assert httpx.get(wrapped.link(KEY, 60)).content == VALUE
    assert httpx.get(WrapperStore(linked).link(KEY, 60)).content == VALUE


@pytest.mark.usefixtures("aws_keys")
def test_a_directory_bucket_has_none():
    with S3Store("s3://name--usw2-az1--x-s3/p?region=us-west-2") as store:
        assert store.link(KEY, 60) is None
