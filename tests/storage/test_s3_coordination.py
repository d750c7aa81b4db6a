"""Compare-and-set on a small bucket of our own, which injects faults."""

import hashlib
import itertools
import threading

import pytest

from serfer.core.errors import StoreError, StoreUnavailableError, ValueTooLargeError
from serfer.storage.coordination import Entry
from serfer.storage.s3 import client as s3_client
from serfer.storage.s3.coordination import S3Coordination
from serfer.storage.s3.store import S3Store
from tests.storage.s3_stub import refused, stub

NOW = 1_800_000_000.0
OBJECT = "/bucket/p/k"
CONFLICT = refused(409, "ConditionalRequestConflict")
GONE = refused(404, "NoSuchKey")


pytestmark = pytest.mark.usefixtures("aws_keys")


class Bucket:
    """Honours conditions as S3 does, its tags being digests; `fault(request, answer)` may return another answer."""

    def __init__(self):
        self.objects = {}
        self.lock = threading.Lock()
        self.fault = lambda _request, answer: answer
        self.tag = lambda body: hashlib.md5(body, usedforsecurity=False).hexdigest()

    def __call__(self, request):
        with self.lock:
            answer = self.respond(request)
        return self.fault(request, answer)

    def respond(self, request):
        path = request.path.partition("?")[0]
        there = self.objects.get(path)
        if request.method == "PUT":
            wanted = request.headers.get("if-match")
            if wanted and there is None:
                return GONE
            if (wanted and there[0]["ETag"] != wanted) or (there and "if-none-match" in request.headers):
                return refused(412, "PreconditionFailed")
            meta = {name: text for name, text in request.headers.items() if name.startswith("x-amz-meta-")}
            tag = f'"{self.tag(request.body)}"'
            self.objects[path] = {**meta, "ETag": tag}, request.body
            return 200, {"ETag": tag}, b""
        if request.method == "POST":
            self.objects = {name: kept for name, kept in self.objects.items() if "%2Anew" not in name}
            return 200, {}, b"<DeleteResult><Deleted><Key>any</Key></Deleted></DeleteResult>"
        if there is None:
            return (200, {}, b"<ListBucketResult/>") if "list-type" in request.path else GONE
        return self.ranged(*there) if "range" in request.headers else (200, *there)

    def ranged(self, headers, body):
        end = min(16, len(body))
        return 206, {**headers, "Content-Range": f"bytes 0-{end - 1}/{len(body)}"}, body[:end]


@pytest.fixture
def bucket():
    return Bucket()


@pytest.fixture
def served(bucket):
    with stub(bucket) as (endpoint, seen):
        yield endpoint, seen


@pytest.fixture
def opened(served, clock):
    stores = []

    def open_one(**more):
        stores.append(
            S3Store(f"s3://bucket/p?endpoint={served[0]}", clock=clock, sleep=lambda _: threading.Event().wait(0.001))
        )
        return S3Coordination(stores[-1]._objects, stores[-1]._sleep, **more)

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def coordination(opened):
    return opened()


def puts(seen):
    return [request for request in seen if request.method == "PUT" and request.path == OBJECT]


def once(bucket, chosen, do):
    """Let `do(answer)` answer the first request that is chosen."""
    left = [True]

    def fault(request, answer):
        if left and chosen(request):
            left.clear()
            return do(answer)
        return answer

    bucket.fault = fault


def is_put(request):
    return request.method == "PUT" and request.path == OBJECT


def is_look(request):
    return request.method == "GET" and request.path == OBJECT and "range" in request.headers


def value_of(coordination, key="k"):
    return coordination.get(key).value


def test_a_write_is_one_request_once_conditions_have_been_tried_out(coordination, bucket, served):
    first = coordination.compare_and_set("k", None, b"x", 60)
    assert [request.method for request in served[1]] == ["PUT", "PUT", "PUT", "POST", "PUT"]
    assert list(bucket.objects) == [OBJECT]
    assert coordination.compare_and_set("l", None, b"x", 60)
    assert coordination.compare_and_set("k", first, b"y", 60)
    assert len(served[1]) == 7


@pytest.mark.parametrize("tag", ["{0:032x}", "{0}-3", "{0} a+/=", "W{0}"])
def test_tags_that_are_no_digests_of_their_bodies_are_compared_as_they_are(opened, bucket, tag):
    """As with SSE-KMS, uploads in parts, and other servers: a tag says which write it was, and nothing of a body."""
    count = itertools.count(1)
    bucket.tag = lambda _: tag.format(next(count))
    mine, other = opened(), opened()
    first = mine.compare_and_set("k", None, b"same", 60)
    second = other.compare_and_set("k", first, b"same", 60)
    assert second not in (None, first)
    assert mine.compare_and_set("k", first, b"lost", 60) is None
    assert mine.get("k") == Entry(b"same", second)
    assert mine.compare_and_set("k", second, b"last", 60)
    assert value_of(other) == b"last"


@pytest.mark.parametrize("honoured", [(), ("if-match",), ("if-none-match",)])
def test_a_server_that_ignores_conditions_is_refused(opened, served, bucket, honoured):
    respond = bucket.respond

    def deaf(request):
        kept = {name: text for name, text in request.headers.items() if not name.startswith("if-") or name in honoured}
        return respond(request._replace(headers=kept))

    bucket.respond = deaf
    for coordination in (opened(), opened()):
        with pytest.raises(StoreError, match=r"does not support conditional puts .*--store") as caught:
            coordination.compare_and_set("k", None, b"x", 60)
        assert type(caught.value) is StoreError
    assert not puts(served[1])


@pytest.mark.parametrize("answer", [refused(501, "NotImplemented"), refused(400, "NotImplemented")])
def test_a_server_that_refuses_conditions_is_refused(coordination, bucket, answer):
    bucket.fault = lambda *_: answer
    with pytest.raises(StoreError, match="does not support conditional puts"):
        coordination.compare_and_set("k", None, b"x", 60)


@pytest.mark.parametrize("replaced", [False, True])
def test_an_own_write_whose_response_was_lost_succeeded(coordination, bucket, served, replaced):
    first = coordination.compare_and_set("k", None, b"old", 60) if replaced else None
    before = len(puts(served[1]))
    once(bucket, is_put, lambda _answer: None)
    version = coordination.compare_and_set("k", first, b"x", 60)
    assert len(puts(served[1])) == before + 2
    assert coordination.get("k") == Entry(b"x", version)


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("lies_there", ["ours", "another's"])
def test_after_a_timeout_the_object_decides_if_the_write_succeeded(
    opened, coordination, bucket, monkeypatch, lies_there, replaced
):
    first = coordination.compare_and_set("k", None, b"old", 60) if replaced else None
    coordination.compare_and_set("other", None, b"x", 60)
    silent = threading.Event()

    def say_nothing(answer):
        if lies_there != "ours":
            bucket.objects[OBJECT] = bucket.objects["/bucket/p/other"]
        silent.wait(10)
        return answer

    monkeypatch.setattr(s3_client, "READ_S", 0.2)
    impatient = opened()
    impatient._checked = True
    once(bucket, is_put, say_nothing)
    assert (impatient.compare_and_set("k", first, b"mine", 60) is not None) == (lies_there == "ours")
    silent.set()
    assert value_of(coordination) == (b"mine" if lies_there == "ours" else b"x")


@pytest.mark.parametrize("replaced", [False, True])
def test_a_failure_that_has_written_nothing_is_raised(coordination, bucket, replaced):
    first = coordination.compare_and_set("k", None, b"old", 60) if replaced else None
    coordination.compare_and_set("other", None, b"x", 60)
    respond = bucket.respond
    bucket.respond = lambda request: refused(503, "SlowDown") if request.method == "PUT" else respond(request)
    with pytest.raises(StoreUnavailableError, match="throttles"):
        coordination.compare_and_set("k", first, b"x", 60)


@pytest.mark.parametrize("answer", [CONFLICT, refused(412, "PreconditionFailed")])
def test_a_conflict_that_leaves_nothing_is_tried_again(coordination, bucket, served, answer):
    def conflict(_):
        bucket.objects.clear()
        return answer

    once(bucket, is_put, conflict)
    assert coordination.compare_and_set("k", None, b"x", 60)
    assert [request.headers["if-none-match"] for request in puts(served[1])] == ["*", "*"]


def test_a_conflict_that_leaves_the_expected_version_is_tried_again(coordination, bucket, served):
    first = coordination.compare_and_set("k", None, b"x", 60)
    before = dict(bucket.objects)

    def conflict(_):
        bucket.objects.update(before)
        return CONFLICT

    once(bucket, is_put, conflict)
    assert coordination.compare_and_set("k", first, b"y", 60)
    assert [request.headers.get("if-match") for request in puts(served[1])] == [None, first, first]


def test_a_key_that_changes_all_the_time_ends_in_an_error(coordination, bucket):
    coordination.compare_and_set("other", None, b"x", 60)
    respond = bucket.respond
    bucket.respond = lambda request: CONFLICT if is_put(request) else respond(request)
    with pytest.raises(StoreUnavailableError, match="to put 'k': other writers"):
        coordination.compare_and_set("k", None, b"x", 60)


def test_an_expired_value_that_is_deleted_before_it_is_replaced(coordination, bucket, served, clock):
    coordination.compare_and_set("k", None, b"old", 1)
    clock.ahead += 2

    def remove(answer):
        del bucket.objects[OBJECT]
        return answer

    once(bucket, is_look, remove)
    assert coordination.compare_and_set("k", None, b"new", 60)
    assert value_of(coordination) == b"new"
    assert ["if-match" in request.headers for request in puts(served[1])] == [False, False, True, False]


def test_an_expired_value_that_another_caller_replaces_by_its_like_is_not_replaced_twice(
    coordination, opened, bucket, clock
):
    """The new value's bytes equal the old one's, so digests of the values alone would be equal too."""
    other = opened()
    coordination.compare_and_set("k", None, b"same", 1)
    clock.ahead += 2
    others = []

    def overtake(answer):
        others.append(other.compare_and_set("k", None, b"same", 60))
        return answer

    once(bucket, is_look, overtake)
    assert coordination.compare_and_set("k", None, b"same", 60) is None
    assert others == [coordination.get("k").version]


def test_an_object_that_another_program_put_is_left_alone(coordination, bucket):
    bucket.objects[OBJECT] = {"ETag": '"e"'}, b"years of work"
    for ask in (lambda: coordination.compare_and_set("k", None, b"x", 60), lambda: coordination.get("k")):
        with pytest.raises(StoreError, match="not put by SerFer"):
            ask()
    assert bucket.objects[OBJECT][1] == b"years of work"


def test_a_refusal_names_the_grants(coordination, bucket):
    bucket.fault = lambda request, answer: refused(403, "AccessDenied", "no") if is_put(request) else answer
    with pytest.raises(StoreError, match="refused to put 'k': no: grant"):
        coordination.compare_and_set("k", None, b"x", 60)


def test_a_value_beyond_the_limit_is_refused(opened, served):
    coordination = opened(max_value=84)
    assert coordination.compare_and_set("k", None, bytes(84), 60)
    assert value_of(coordination) == bytes(84)
    assert len(puts(served[1])) == 1
    with pytest.raises(ValueTooLargeError, match="'l' has 85 bytes: S3 takes 84"):
        coordination.compare_and_set("l", None, bytes(85), 60)
