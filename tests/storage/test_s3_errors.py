import hashlib
import random
import socket
from itertools import islice
from urllib.parse import parse_qsl, urlsplit

import pytest

from serfer.core.errors import MissingKeyError, StoreError, StoreUnavailableError, UsageError
from serfer.local.servers.redis import RedisServer
from serfer.storage import Range
from serfer.storage.s3 import client as s3_client
from serfer.storage.s3.client import S3Client
from serfer.storage.s3.store import S3Store
from tests.storage.s3_stub import listed, refused, stub

SECRET = "c0ffee" * 6
ALIVE = {"x-amz-meta-serfer-expires": "9e9", "ETag": '"e"'}
WAYS = {
    "put": lambda store: store.put("k", b"x" * 100, 60),
    "compare_and_set": lambda store: store.coordination().compare_and_set("k", None, b"x" * 100, 60),
    "get": lambda store: store.get("k"),
    "range": lambda store: store.get_many([Range("k", 1, 2), Range("k", 5, 2)]),
    "exists": lambda store: store.exists(["k"]),
    "delete": lambda store: store.delete(["k"]),
    "sweep": lambda store: store.sweep(),
}
MISSING = pytest.raises(MissingKeyError, match="'k'")
NOT_OURS = pytest.raises(StoreError, match="not put by SerFer")
pytestmark = pytest.mark.usefixtures("aws_keys")
every_way = pytest.mark.parametrize("ask", WAYS.values(), ids=WAYS)


@pytest.fixture
def waits(monkeypatch):
    waited = []
    initialise = S3Client.__init__
    monkeypatch.setattr(S3Client, "__init__", lambda self, *given: initialise(self, *given[:3], waited.append))
    return waited


def opened(endpoint):
    return S3Store(f"s3://bucket/p?endpoint={endpoint}")


def message_of(endpoint, ask, kind=StoreUnavailableError):
    with opened(endpoint) as store, pytest.raises(kind) as caught:
        ask(store)
    assert type(caught.value) is kind
    message = str(caught.value)
    assert "\n" not in message
    assert "--store" in message or "clock" in message or kind is StoreError
    assert SECRET not in message + repr(caught.value.__cause__)
    return message


@every_way
def test_connection_refused(ask):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        where = f"http://127.0.0.1:{free.getsockname()[1]}"
        assert f"{where}/bucket does not answer: it takes no connections (Connection refused)" in message_of(where, ask)


def test_server_that_is_no_s3_server_is_named():
    assert "its host name is unknown" in message_of("http://nobody.invalid:1", WAYS["get"])
    with stub(lambda _: (200, {}, b"")) as (where, _):
        assert "TLS failed" in message_of(where.replace("http:", "https:"), WAYS["get"])


@every_way
def test_a_redis_server_listens_there(ask, waits):
    with RedisServer() as server:
        where = f"http://127.0.0.1:{server.url.removesuffix('/0').rpartition(':')[2]}"
        message = message_of(where, ask)
    assert "not an HTTP server" in message or "it closed the connection" in message
    assert len(waits) >= 2


@every_way
@pytest.mark.parametrize("status", [200, 400, 404])
def test_a_web_server_listens_there(ask, status):
    if status == 200 and ask is WAYS["sweep"]:
        pytest.skip("obstore reads an empty list in any page")
    body = b"<html>Welcome to a server of another kind</html>"
    with stub(lambda _: (status, {"Content-Type": "text/html"}, body)) as (where, _):
        unclear = status == 200 and ask in {WAYS["get"], WAYS["exists"]}
        message = message_of(where, ask, StoreError if unclear else StoreUnavailableError)
    assert "S3 server" in message


@pytest.fixture
def short_reads(monkeypatch):
    monkeypatch.setattr(s3_client, "READ_S", 0.2)
    monkeypatch.setattr(s3_client, "_FIRST_READS_S", (0.1, 0.1, 0.1, 0.1, 0.1))


@pytest.mark.usefixtures("short_reads")
@pytest.mark.parametrize(("way", "waited"), [("get", 5), ("exists", 5), ("put", 0)])
def test_silent_server_is_asked_again_for_what_is_read_alone(way, waited, waits):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        message = message_of(f"http://127.0.0.1:{silent.getsockname()[1]}", WAYS[way])
    assert "no response within" in message
    assert len(waits) == waited


@every_way
@pytest.mark.parametrize("code", ["SlowDown", ""])
def test_throttling_is_reported_after_a_few_tries(ask, waits, code):
    with stub(lambda _: refused(503, code) if code else (503, {}, b"")) as (where, seen):
        message = message_of(where, ask)
    unnamed = not code or ask is WAYS["exists"]  # the answer to a HEAD request has no body
    assert f"throttles ({'HTTP 503' if unnamed else code})" in message
    tries = 6 * (2 if ask is WAYS["range"] else 1)
    assert 3 <= len(seen) <= tries
    assert len(waits) >= 2


@pytest.mark.parametrize("hiccup", [None, refused(503, "SlowDown"), refused(500, "InternalError")])
def test_transient_errors_are_retried_with_the_whole_body(waits, hiccup):
    answers = iter([hiccup, hiccup, (200, ALIVE, b"")])
    with stub(lambda _: next(answers)) as (where, seen), opened(where) as store:
        store.put("k", b"x" * 1000, 60)
    assert [request.body for request in seen] == [b"x" * 1000] * 3
    assert 0.02 < waits[0] < 0.08 < waits[1] < 0.4


@pytest.mark.usefixtures("waits")
def test_server_that_keeps_failing():
    failing = stub(lambda _: refused(500, "InternalError", "We encountered an error"))
    unavailable = pytest.raises(StoreUnavailableError, match="HTTP 500 InternalError")
    with failing as (where, _), opened(where) as store, unavailable:
        store.get("k")


@every_way
def test_denied(ask):
    with stub(lambda _: refused(403, "AccessDenied", "User: me is not\nauthorized to s3:GetObject")) as (where, _):
        message = message_of(where, ask, StoreError)
    assert "User: me is not authorized" in message
    assert "without s3:ListBucket S3 says this of a missing key too" in message


NOT_DELETED = (
    b"<DeleteResult><Error><Key>p/k</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>"
)
EUROPE = "<Region>eu-west-1</Region>"


@pytest.mark.usefixtures("waits")
@pytest.mark.parametrize(
    ("way", "answer", "words"),
    [
        ("put", refused(403, "RequestTimeTooSkewed"), "clock"),
        ("delete", (200, {}, NOT_DELETED), "refused to delete: no: grant"),
        ("get", refused(301, "PermanentRedirect", more=EUROPE), "in another region, not in us-east-1: add ?region="),
        ("get", refused(400, "AuthorizationHeaderMalformed", more=EUROPE), "is in eu-west-1, not in us-east-1: add"),
        ("range", (206, ALIVE, bytes(100)), "not an S3 server"),
    ],
)
def test_refusal_says_what_it_is_about(way, answer, words):
    with stub(lambda _: answer) as (where, _):
        assert words in message_of(where, WAYS[way], StoreError if way == "delete" else StoreUnavailableError)


def test_a_refusal_without_a_body_is_asked_about():
    with stub(lambda request: refused(403, "ExpiredToken" if request.method != "HEAD" else "")) as (where, _):
        assert "(ExpiredToken)" in message_of(where, WAYS["exists"])


def test_a_missing_key_is_not_looked_up_twice():
    def answer(request):
        return (404, {}, b"") if request.method == "HEAD" else (200, {}, b"<ListBucketResult/>")

    with stub(answer) as (where, seen), opened(where) as store:
        assert store.exists(["a"]) == [False]
        assert store.exists(["b", "c"]) == [False, False]
    assert [one.method for one in seen] == ["HEAD", "GET", "HEAD", "HEAD"]


@every_way
def test_anything_else_is_passed_on(ask):
    with stub(lambda _: refused(409, "OperationAborted", "A conflicting operation")) as (where, _):
        assert "OperationAborted: A conflicting operation" in message_of(where, ask, StoreError)


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_bundle_of_certificates_that_cannot_be_read_is_named(monkeypatch, tmp_path, content):
    bundle = tmp_path / "bundle.pem"
    if content:
        bundle.write_text(content)
    monkeypatch.setenv("AWS_CA_BUNDLE", str(bundle))
    assert "AWS_CA_BUNDLE" in message_of("http://127.0.0.1:9", WAYS["get"])


@pytest.mark.who_may
def test_no_credentials(monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with stub(lambda _: (200, {}, b"")) as (where, seen):
        assert "no AWS credentials for --store: set AWS_ACCESS_KEY_ID" in message_of(where, WAYS["get"])
    assert seen == []


def test_a_session_token_is_sent(monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    with stub(lambda _: (200, ALIVE, b"x")) as (where, seen), opened(where) as store:
        assert store.get("k") == b"x"
    assert seen[0].headers["x-amz-security-token"] == "token"


@pytest.mark.parametrize("expires", ["soon", "", None])
def test_metadata_that_say_nothing(expires):
    headers = {} if expires is None else {"x-amz-meta-serfer-expires": expires}
    with stub(lambda _: (200, headers, b"x")) as (where, _), opened(where) as store:
        for ask in (WAYS["get"], WAYS["exists"]):
            with NOT_OURS:
                ask(store)


def answer_range(request, value, tag='"e"', upto=None, **more):
    """Answer a GET of a range as S3 does; with `upto`, the body ends after so many bytes, and the headers say more."""
    first, _, last = request.headers.get("range", "bytes=0-").removeprefix("bytes=").partition("-")
    body = value[int(first) : int(last) + 1 if last else None]
    headers = {**ALIVE, "ETag": tag, "Content-Length": str(len(body)), **more}
    if "range" not in request.headers:
        return 200, headers, body[:upto]
    end = int(first) + len(body) - 1
    return 206, {**headers, "Content-Range": f"bytes {first}-{end}/{len(value)}"}, body[:upto]


ENDS = pytest.mark.parametrize("end", [{"Connection": "close"}, {}], ids=["cut", "stalled"])
DIGITS, LETTERS = b"0123456789", b"abcdefghij"


@ENDS
@pytest.mark.parametrize(("start", "length"), [(0, None), (2, None), (1, 8)])
def test_body_that_ends_early_is_continued_from_there(end, start, length, waits):
    places = iter([3, 1, None])
    ending = stub(lambda request: answer_range(request, DIGITS, upto=next(places), **end))
    with ending as (where, seen), opened(where) as store:
        assert store.get_many([Range("k", start, length)]) == [DIGITS[start:][:length]]
    last = "" if length is None else start + length - 1
    assert [request.headers["range"] for request in seen[1:]] == [f"bytes={start + n}-{last}" for n in (3, 4)]
    assert [request.headers.get("if-match") for request in seen] == [None, '"e"', '"e"']
    assert waits == [0, 0]


@pytest.mark.usefixtures("waits")
@ENDS
@pytest.mark.parametrize("other", ["refused", '"f"', None])
def test_object_replaced_between_two_responses_is_read_from_its_start(end, other):
    """So it is where the server knows no If-Match, and what has no entity tag is never continued."""

    def answer(request):
        if len(seen) == 1:
            return answer_range(request, DIGITS, '"e"' if other else "", upto=3, **end)
        if "if-match" in request.headers and other == "refused":
            return refused(412, "PreconditionFailed")
        return answer_range(request, LETTERS, '"f"' if other else "")

    with stub(answer) as (where, seen), opened(where) as store:
        assert store.get("k") == LETTERS
    assert "range" not in seen[-1].headers
    assert len(seen) <= 3


@pytest.mark.usefixtures("short_reads")
@ENDS
def test_reads_are_all_answered_where_a_third_of_bodies_end_early(end, waits, monkeypatch):
    """Each early end costs one request, and its wait alone: no sleep is added."""
    monkeypatch.setattr(s3_client, "READ_S", 5.0)  # beside other work, this server is silent for a while
    chance, ended = random.Random(49), []  # noqa: S311 - not a secret

    def answer(request):
        if chance.random() < 0.3:
            ended.append(chance.choice([0, 1, 500, -1]))
            return answer_range(request, values[request.path[-1]], upto=ended[-1], **end)
        return answer_range(request, values[request.path[-1]])

    values = {key: bytes([ord(key)]) * 1000 for key in "abcdefgh"}
    with stub(answer) as (where, seen), opened(where) as store:
        for _ in range(5):
            assert store.get_many([Range(key) for key in values]) == [*values.values()]
    silent = sum(wait > 0 for wait in waits)
    assert len(ended) >= 10
    assert len(seen) <= 40 + len(ended) + silent


@pytest.mark.usefixtures("waits")
@ENDS
def test_list_goes_on_after_the_page_before_one_that_ends_early(end):
    asked = []

    def answer(request):
        query = dict(parse_qsl(urlsplit(request.path).query))
        asked.append(query.get("start-after") or "continuation-token" in query)
        if asked.count(asked[-1]) == 1:  # a slow machine may ask more often
            return 200, {**end, "Content-Length": "1000"}, b"<ListBucketResult>"
        return 200, {}, listed(["p/z"] if asked[-1] else names, more=not asked[-1])

    names = [f"p/{number:04}" for number in range(1000)]
    with stub(answer) as (where, _), opened(where) as store:
        assert [*store._client.names("p/", 2e9)] == [names, ["p/z"]]
    assert [*dict.fromkeys(asked)] == [False, True, "p/0999"]


@pytest.mark.usefixtures("waits")
def test_list_of_a_server_that_always_begins_again_ends_in_the_error():
    def answer(request):
        if "continuation-token" in request.path:
            return refused(503, "SlowDown")
        return 200, {}, listed([f"p/{number:04}" for number in range(1000)], more=True)

    with stub(answer) as (where, seen), opened(where) as store:
        with pytest.raises(s3_client.RefusedError, match="SlowDown"):
            list(islice(store._client.names("p/", 2e9), 20))
        assert len(seen) == 12


@pytest.mark.usefixtures("waits")
def test_body_of_which_every_response_brings_a_little_is_read():
    value = random.Random(49).randbytes(100_000)  # noqa: S311 - not a secret
    ending = stub(lambda request: answer_range(request, value, upto=1000, Connection="close"))
    with ending as (where, seen), opened(where) as store:
        assert store.get("k") == value
    assert len(seen) == 100


def test_a_value_that_shrank_is_missing():
    shrank = {**ALIVE, "Content-Range": "bytes 1-2/3"}
    with stub(lambda _: (206, shrank, b"ab")) as (where, _), opened(where) as store, MISSING:
        store.get("k", 1, 3)


def test_lifecycle_rule_refusals_name_bucket_and_prefix():
    with stub(lambda _: refused(403, "AccessDenied", "no")) as (where, _):
        assert "refused to change its lifecycle rules: no: grant" in message_of(
            where, S3Store.ensure_lifecycle, StoreError
        )
    assert "does not answer" in message_of("http://127.0.0.1:9", S3Store.ensure_lifecycle)
    with S3Store("s3://bucket?endpoint=http://127.0.0.1:1") as store, pytest.raises(UsageError, match="prefix"):
        store.ensure_lifecycle()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0.0.0.0"])  # noqa: S104 - nothing listens there
def test_a_body_is_signed_where_somebody_between_could_change_it(host):
    """Without TLS and beyond this machine: 0.0.0.0 is no address of its own, though it leads here."""
    with stub(lambda _: (200, ALIVE, b"")) as (where, seen), opened(where.replace("127.0.0.1", host)) as store:
        store.put("key", b"x" * 100, 60)
    said = seen[-1].headers["x-amz-content-sha256"]
    assert said == (hashlib.sha256(seen[-1].body).hexdigest() if host == "0.0.0.0" else "UNSIGNED-PAYLOAD")  # noqa: S104
