"""What a conditional put meets on its way, told by a small bucket of our own with the faults to order."""

import hashlib
import threading

import pytest

from serfer.core.errors import StoreError, StoreUnavailableError, ValueTooLargeError
from storage.s3 import http as s3_http
from storage.s3.multipart import Limits
from storage.s3.store import S3Store
from tests.storage.s3_stub import refused, stub

NOW = 1_800_000_000.0
OBJECT = "/bucket/p/k"
CONFLICT = refused(409, "ConditionalRequestConflict")
GONE = refused(404, "NoSuchKey")


@pytest.fixture(autouse=True)
def credentials(monkeypatch, tmp_path):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))


class Bucket:
    """Heeds conditions as S3 does, its tags being digests; `fault(asked, answer)` may give another answer."""

    def __init__(self):
        self.objects = {}
        self.lock = threading.Lock()
        self.fault = lambda _asked, answer: answer

    def __call__(self, asked):
        with self.lock:
            answer = self.told(asked)
        return self.fault(asked, answer)

    def told(self, asked):
        path = asked.path.partition("?")[0]
        there = self.objects.get(path)
        if asked.method == "PUT":
            wanted = asked.headers.get("if-match")
            if wanted and there is None:
                return GONE
            if (wanted and there[0]["ETag"] != wanted) or (there and "if-none-match" in asked.headers):
                return refused(412, "PreconditionFailed")
            meta = {name: text for name, text in asked.headers.items() if name.startswith("x-amz-meta-")}
            tag = f'"{hashlib.md5(asked.body, usedforsecurity=False).hexdigest()}"'
            self.objects[path] = {**meta, "ETag": tag}, asked.body
            return 200, {"ETag": tag}, b""
        if asked.method == "POST":
            self.objects = {name: kept for name, kept in self.objects.items() if "%2Anew" not in name}
            return 200, {}, b"<DeleteResult/>"
        if there is None:
            return (404, {}, b"") if asked.method == "HEAD" else (200, {}, b"<ListBucketResult/>")
        return 200, there[0], there[1]


class Clock:
    now = NOW

    def __call__(self):
        return self.now


@pytest.fixture
def bucket():
    return Bucket()


@pytest.fixture
def served(bucket):
    with stub(bucket) as (endpoint, seen):
        yield endpoint, seen


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def opened(served, clock):
    stores = []

    def open_one(**more):
        stores.append(
            S3Store(
                f"s3://bucket/p?endpoint={served[0]}",
                clock=clock,
                sleep=lambda _: threading.Event().wait(0.001),
                **more,
            )
        )
        return stores[-1]

    yield open_one
    for store in stores:
        store.close()


@pytest.fixture
def store(opened):
    return opened()


def puts(seen):
    return [asked for asked in seen if asked.method == "PUT" and asked.path == OBJECT]


def once(bucket, chosen, do):
    """Let `do(answer)` answer the first request that is chosen."""
    left = [True]

    def fault(asked, answer):
        if left and chosen(asked):
            left.clear()
            return do(answer)
        return answer

    bucket.fault = fault


def is_put(asked):
    return asked.method == "PUT" and asked.path == OBJECT


def is_look(asked):
    return asked.method == "HEAD" and asked.path == OBJECT


def test_a_new_value_is_one_request_once_conditions_have_been_tried_out(store, bucket, served):
    assert store.put_new("k", b"x", 60)
    assert [asked.method for asked in served[1]] == ["PUT", "PUT", "PUT", "POST", "PUT"]
    assert list(bucket.objects) == [OBJECT]
    assert store.put_new("l", b"x", 60)
    assert len(served[1]) == 6


@pytest.mark.parametrize("heeded", [(), ("if-match",), ("if-none-match",)])
def test_a_server_that_does_not_heed_conditions_is_told(opened, served, bucket, heeded):
    told = bucket.told

    def deaf(asked):
        kept = {name: text for name, text in asked.headers.items() if not name.startswith("if-") or name in heeded}
        return told(asked._replace(headers=kept))

    bucket.told = deaf
    for store in (opened(), opened()):
        with pytest.raises(StoreError, match=r"does not do conditional puts .*--store") as caught:
            store.put_new("k", b"x", 60)
        assert type(caught.value) is StoreError
    assert not puts(served[1])


@pytest.mark.parametrize("answer", [refused(501, "NotImplemented"), refused(400, "NotImplemented")])
def test_a_server_that_refuses_conditions_is_told(store, bucket, answer):
    bucket.fault = lambda *_: answer
    with pytest.raises(StoreError, match="does not do conditional puts"):
        store.put_new("k", b"x", 60)


def test_an_own_value_whose_answer_was_lost_is_kept(store, bucket, served):
    once(bucket, is_put, lambda _answer: None)
    assert store.put_new("k", b"x", 60) is True
    assert len(puts(served[1])) == 2
    assert store.get("k") == b"x"


@pytest.mark.parametrize(("lies_there", "kept"), [("ours", True), ("another's", False)])
def test_a_silent_server_is_asked_what_lies_there(store, bucket, monkeypatch, lies_there, kept):
    store.put_new("other", b"x", 60)
    silent = threading.Event()

    def say_nothing(answer):
        if lies_there != "ours":
            bucket.objects[OBJECT] = bucket.objects["/bucket/p/other"]
        silent.wait(10)
        return answer

    monkeypatch.setattr(s3_http, "READ_S", 0.2)
    monkeypatch.setattr(store, "_http", s3_http.S3Http(store._http.address, store._http._signer, store._session))
    once(bucket, is_put, say_nothing)
    assert store.put_new("k", b"mine", 60) is kept
    silent.set()
    assert store.get("k") == (b"mine" if kept else b"x")


def test_a_failure_that_has_kept_nothing_is_raised(store, bucket):
    store.put_new("other", b"x", 60)
    bucket.told = lambda asked: (404, {}, b"") if asked.method == "HEAD" else refused(503, "SlowDown")
    store._bucket_seen = True
    with pytest.raises(StoreUnavailableError, match="throttles"):
        store.put_new("k", b"x", 60)


@pytest.mark.parametrize("answer", [CONFLICT, refused(412, "PreconditionFailed")])
def test_a_conflict_that_leaves_nothing_is_tried_again(store, bucket, served, answer):
    def conflict(_):
        bucket.objects.clear()
        return answer

    once(bucket, is_put, conflict)
    assert store.put_new("k", b"x", 60) is True
    assert [asked.headers["if-none-match"] for asked in puts(served[1])] == ["*", "*"]


def test_a_key_that_changes_all_the_time_ends_in_an_error(store, bucket):
    store.put_new("other", b"x", 60)
    bucket.fault = lambda asked, answer: CONFLICT if is_put(asked) else answer
    bucket.told = lambda _: (404, {}, b"")
    store._bucket_seen = True
    with pytest.raises(StoreUnavailableError, match="to put 'k': what lies there changes all the time"):
        store.put_new("k", b"x", 60)


def test_an_expired_value_that_goes_before_it_is_replaced(store, bucket, served, clock):
    store.put_new("k", b"old", 1)
    clock.now += 2

    def remove(answer):
        del bucket.objects[OBJECT]
        return answer

    once(bucket, is_look, remove)
    assert store.put_new("k", b"new", 60) is True
    assert store.get("k") == b"new"
    assert ["if-match" in asked.headers for asked in puts(served[1])] == [False, False, True, False]


def test_an_expired_value_that_is_replaced_by_its_like_meanwhile_is_not_replaced_twice(store, opened, bucket, clock):
    """The new value's bytes equal the old one's, so digests of the values alone would be equal too."""
    other = opened()
    store.put_new("k", b"same", 1)
    clock.now += 2
    others = []

    def overtake(answer):
        others.append(other.put_new("k", b"same", 60))
        return answer

    once(bucket, is_look, overtake)
    assert store.put_new("k", b"same", 60) is False
    assert others == [True]


def test_what_somebody_else_put_is_left_alone(store, bucket):
    bucket.objects[OBJECT] = {"ETag": '"e"'}, b"years of work"
    with pytest.raises(StoreError, match="not put by SerFer"):
        store.put_new("k", b"x", 60)
    assert bucket.objects[OBJECT][1] == b"years of work"


def test_a_refusal_is_told(store, bucket):
    bucket.fault = lambda asked, answer: refused(403, "AccessDenied", "no") if is_put(asked) else answer
    with pytest.raises(StoreError, match="refused to put 'k': no: grant"):
        store.put_new("k", b"x", 60)


def test_a_large_value_goes_in_one_request(opened, served):
    store = opened(limits=Limits(multipart_from=10, part=5, whole=100))
    assert store.put_new("k", bytes(84), 60)
    assert store.get("k") == bytes(84)
    assert len(puts(served[1])) == 1
    with pytest.raises(ValueTooLargeError, match="'k' has 85 bytes: S3 takes 84"):
        store.put_new("k", bytes(85), 60)
    assert Limits().whole == 5 * 1024**3
