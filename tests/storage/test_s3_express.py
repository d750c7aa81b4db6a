"""Directory buckets: no local server knows them, so a stub behind a proxy keeps what the store sends to AWS."""

import contextlib
import re
import time
from datetime import UTC, datetime
from itertools import islice
from urllib.parse import urlsplit

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from serfer.core.errors import StoreError, StoreUnavailableError
from serfer.storage.s3 import client as s3_client
from serfer.storage.s3.errors import READ_S
from serfer.storage.s3.store import Limits, S3Store
from tests.storage.s3_stub import listed, refused, stub
from tests.storage.tls_front import Authority, TlsFront, connect_proxy

BUCKET = "name--usw2-az1--x-s3"
NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
HOSTS = f"{BUCKET}.s3express-usw2-az1.us-west-2.amazonaws.com", "s3express-control.us-west-2.amazonaws.com"
ALIVE = {"x-amz-meta-serfer-expires": "9e9", "ETag": '"e"'}
DENIED = pytest.raises(StoreError, match="refused to get 'k': no: grant s3express:CreateSession")
NO_S3 = pytest.raises(StoreUnavailableError, match="not an S3 server")


@pytest.fixture(autouse=True)
def credentials(monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKOWN")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "own secret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "own token")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")


class Express:
    """Gives sessions of 300 s and answers the rest as a bucket with every key would."""

    def __init__(self):
        self.sessions = 0

    def __call__(self, request):
        query = urlsplit(request.path).query
        if query.rstrip("=") == "session":
            self.sessions += 1
            until = datetime.fromtimestamp(time.time() + 300, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            body = (
                f'<?xml version="1.0"?><CreateSessionResult xmlns="{NAMESPACE}">'
                f"<Credentials><SessionToken>token {self.sessions}</SessionToken>"
                f"<SecretAccessKey>secret {self.sessions}</SecretAccessKey>"
                f"<AccessKeyId>AKTEMP{self.sessions}</AccessKeyId><Expiration>{until}</Expiration>"
                "</Credentials></CreateSessionResult>"
            )
            return 200, {"Content-Type": "application/xml"}, body.encode()
        if request.method == "POST":
            return 200, {}, b"<DeleteResult><Deleted><Key>p/k</Key></Deleted></DeleteResult>"
        return 200, ALIVE, b"x" if request.method == "GET" else b""


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Return a function that serves answers where AWS would, and yields a store there and the requests."""
    authority = Authority(tmp_path / "authority")

    @contextlib.contextmanager
    def serve(answer, **more):
        with (
            stub(answer) as (endpoint, seen),
            TlsFront(urlsplit(endpoint).port, authority.context(*HOSTS)) as front,
            connect_proxy(front.port) as proxy,
        ):
            monkeypatch.setenv("HTTPS_PROXY", proxy)
            monkeypatch.setenv("AWS_CA_BUNDLE", str(authority.file))
            with S3Store(f"s3://{BUCKET}/p", **more) as store:
                yield store, seen

    return serve


def scope(request):
    return re.search(r"Credential=([^,]*)", request.headers["authorization"])[1].split("/")


def signature(request, secret):
    key_id, _, region, service, _ = scope(request)
    names = re.search("SignedHeaders=([^,]*)", request.headers["authorization"])[1].split(";")
    headers = {name: request.headers[name] for name in (*names, "x-amz-content-sha256")}
    signed = AWSRequest(request.method, f"https://{HOSTS[0]}{request.path}", headers, request.body)
    signed.context["timestamp"] = request.headers["x-amz-date"]
    signer = S3SigV4Auth(Credentials(key_id, secret), service, region)
    return signer.signature(signer.string_to_sign(signed, signer.canonical_request(signed)), signed)


@pytest.mark.who_may
def test_a_session_is_opened_with_our_own_credentials_and_signs_all_else(served):
    with served(Express()) as (store, seen):
        store.put("k", b"value", 60)
        assert store.get("k") == b"x"
        assert store.exists(["k", "l"]) == [True, True]
        store.delete(["k"])
    opened = [request for request in seen if (request.method, request.path) == ("GET", "/?session")]
    others = [request for request in seen if request not in opened]
    assert opened == [seen[0], seen[2]]  # of reads, whose waits are short, and of all else
    for request in opened:
        assert request.headers["x-amz-security-token"] == "own token"
        assert request.headers["authorization"].endswith(signature(request, "own secret"))
        assert scope(request)[0] == "AKOWN"
    assert {request.method for request in others} == {"PUT", "GET", "HEAD", "POST"}
    for request in others:
        number = 2 if request.method in {"GET", "HEAD"} else 1
        assert request.headers["x-amz-s3session-token"] == f"token {number}"
        assert "x-amz-security-token" not in request.headers
        assert [scope(request)[0], *scope(request)[2:]] == [f"AKTEMP{number}", "us-west-2", "s3", "aws4_request"]
        assert request.headers["authorization"].endswith(signature(request, f"secret {number}"))


def test_a_version_is_put_on_condition_and_by_the_session(served):
    def answer(request):
        if request.method == "PUT" and (request in seen[:-1] or "if-match" in request.headers or request.path in put):
            return refused(412, "PreconditionFailed")
        put.add(request.path)
        return express(request)

    express, put = Express(), set()
    with served(answer) as (store, seen):
        assert store.coordination().compare_and_set("k", None, b"value", 60)
    last = seen[-1]
    assert (last.path, last.headers["if-none-match"], last.body[16:]) == ("/p/k", "*", b"value")
    assert [one.headers.get("x-amz-s3session-token") for one in seen] == [None, *["token 1"] * 5]


def test_threads_share_one_session(served):
    express = Express()
    with served(express) as (store, _):
        assert store.exists([f"k{i}" for i in range(40)]) == [True] * 40
    assert express.sessions == 1


def test_parts_are_signed_by_the_session_too(served):
    def answer(request):
        if request.method == "POST":
            return 200, {}, b"<R><UploadId>u1</UploadId><ETag>e</ETag></R>"
        return express(request)

    express = Express()
    limits = Limits(multipart_from=10, part=5)
    with served(answer, limits=limits) as (store, seen):
        store.put("k", bytes(10), 60)
    assert [one.headers.get("x-amz-s3session-token") for one in seen] == [None, *["token 1"] * 4]


@pytest.mark.who_may
def test_lifecycle_is_changed_with_our_own_credentials_and_without_what_directory_buckets_lack(served):
    def answer(request):
        return refused(404, "NoSuchLifecycleConfiguration") if request.method == "GET" else (200, {}, b"")

    with served(answer) as (store, seen):
        store.ensure_lifecycle(1)
    assert [(one.method, urlsplit(one.path).query.rstrip("=")) for one in seen] == [
        ("GET", "lifecycle"),
        ("PUT", "lifecycle"),
    ]
    assert [scope(one)[0] for one in seen] == ["AKOWN", "AKOWN"]
    assert b"<Prefix>p/</Prefix>" in seen[1].body
    assert b"Noncurrent" not in seen[1].body
    assert "x-amz-checksum-crc32" in seen[1].headers


def test_body_that_stalls_is_continued_by_the_same_session(served, monkeypatch):
    def answer(request):
        if request.method == "GET" and request.path == "/p/k":
            if "range" in request.headers:
                return 206, {**ALIVE, "Content-Range": "bytes 3-9/10"}, b"3456789"
            return 200, {**ALIVE, "Content-Length": "10"}, b"012"
        return express(request)

    monkeypatch.setattr(s3_client, "_FIRST_READS_S", (0.1, 5.0, 5.0, 5.0, 5.0))
    express = Express()
    with served(answer) as (store, seen):
        assert store.get("k") == b"0123456789"
    assert express.sessions == 1
    assert [(request.path, request.headers.get("range")) for request in seen[1:]] == [
        ("/p/k", None),
        ("/p/k", "bytes=3-"),
    ]


@pytest.mark.parametrize(("fails", "limits"), [(1, [0.5]), (4, [0.5, 1.0, 2.0]), (20, [0.5, 1.0, 2.0, READ_S])])
def test_list_of_which_a_page_ends_early_begins_again_with_longer_limits_until_attempts_are_used_up(
    served, fails, limits
):
    """Directory buckets know no start-after, and list in any order."""

    def answer(request):
        if "list-type" not in request.path:
            return express(request)
        lists.append("continuation-token" in request.path)
        if lists[-1] and len(lists) <= 2 * fails:
            return 200, {"Connection": "close", "Content-Length": "1000"}, b"<ListBucketResult>"
        return 200, {}, listed(["p/a"] if lists[-1] else names, more=not lists[-1])

    express, lists, pages = Express(), [], []
    names = [f"p/b{number}" for number in range(1000)]
    error = contextlib.nullcontext() if fails < 6 else pytest.raises(StoreUnavailableError)
    with served(answer, sleep=lambda _: None) as (store, _):
        with error:
            pages.extend(islice(store._client.names("p/", 2e9), 20))
        assert [*store._client._stores] == limits
    assert [page for page in pages if page] == [names, ["p/a"]][: 1 + (fails < 6)]
    assert lists == [False, True] * min(6, fails + 1)


def test_lists_ask_for_a_prefix_that_ends_with_a_slash(served):
    def answer(request):
        return (200, {}, b"<ListBucketResult/>") if "list-type" in request.path else express(request)

    express = Express()
    with served(answer) as (store, seen):
        assert store.sweep() == 0
    assert seen[-1].path.endswith("&prefix=p%2F")


def test_no_session_is_given(served):
    with served(lambda _: refused(403, "AccessDenied", "no")) as (store, _), DENIED:
        store.get("k")


@pytest.mark.parametrize(
    "body", [b"<html/>", b"<R><AccessKeyId>a</AccessKeyId><Expiration>2030-01-01T00:00:00Z</Expiration></R>"]
)
def test_an_answer_without_a_session(served, body):
    with served(lambda _: (200, {}, body)) as (store, _), NO_S3:
        store.get("k")
