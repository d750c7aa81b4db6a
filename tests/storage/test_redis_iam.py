import datetime as dt
import subprocess
import sys
from contextlib import suppress
from urllib.parse import parse_qsl, quote

import botocore.auth
import pytest
from botocore.credentials import Credentials
from botocore.model import ServiceId
from botocore.session import Session
from botocore.signers import RequestSigner

from serfer.core import sigv4
from serfer.core.errors import StoreUnavailableError, UsageError
from serfer.local.servers.redis import RedisServer
from serfer.storage import open_store
from serfer.storage.exchange import START, Message
from tests.storage.tls_front import Authority, TlsFront

KEY_ID, SECRET, SESSION = "AKIDEXAMPLE", "example/secret+key", "example/session+token=="


class Clock:
    def __init__(self):
        self.now = dt.datetime(2026, 11, 5, 12, 0, 0, tzinfo=dt.UTC)

    def __call__(self, **_):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(botocore.auth, "get_current_datetime", clock)
    return clock


@pytest.fixture(autouse=True)
def aws(monkeypatch, tmp_path):
    for name in ("AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY_ID)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_SESSION_TOKEN", SESSION)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture
def served(tmp_path):
    authority = Authority(tmp_path / "authority")
    with RedisServer() as server, TlsFront(server.port, authority.context("localhost")) as front:
        options = f"iam=my-cache&iam_region=eu-west-1&ssl_ca_certs={authority.file}"
        yield server, f"rediss://worker@localhost:{front.port}?{options}"


def login(store):
    return store._connect.args[-1]["login"]()


def signature(cache, parameters, region):
    """Compute Signature Version 4 of a presigned GET request, without botocore."""
    query = "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in sorted(parameters))
    time = dict(parameters)["X-Amz-Date"]
    scope = f"{time[:8]}/{region}/elasticache/aws4_request"
    return sigv4.signature(SECRET, scope, time, "GET", f"/?{query}", {"host": cache}, ["host"], b"")


@pytest.mark.who_may
@pytest.mark.parametrize(
    ("option", "kind"), [("", []), ("&iam_serverless=true", [("ResourceType", "ServerlessCache")])]
)
@pytest.mark.parametrize("session", [SESSION, None])
@pytest.mark.usefixtures("clock")
def test_a_token_is_a_presigned_connect_request(monkeypatch, option, kind, session):
    if session is None:
        monkeypatch.delenv("AWS_SESSION_TOKEN")
    with open_store(f"rediss://the%2Buser@cache.example:6379?iam=my-cache&iam_region=eu-west-1{option}") as store:
        user, token = login(store)
    assert user == "the+user"
    where, _, query = token.partition("?")
    assert where == "my-cache/"
    parameters = parse_qsl(query, strict_parsing=True)
    *signed, (name, value) = parameters
    assert sorted(signed) == sorted(
        [
            ("Action", "connect"),
            ("User", "the+user"),
            *kind,
            ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
            ("X-Amz-Credential", f"{KEY_ID}/20261105/eu-west-1/elasticache/aws4_request"),
            ("X-Amz-Date", "20261105T120000Z"),
            ("X-Amz-Expires", "900"),
            ("X-Amz-SignedHeaders", "host"),
            *([("X-Amz-Security-Token", session)] if session else []),
        ]
    )
    assert (name, value) == ("X-Amz-Signature", signature("my-cache", signed, "eu-west-1"))


@pytest.mark.who_may
def test_every_new_connection_logs_in_with_a_fresh_token(clock, served):
    """The server takes only the token of the moment, as ElastiCache does of the last 15 minutes."""
    server, url = served
    with open_store(server.url) as administrator, open_store(url) as store:

        def accept_only(token):
            user = ("on", "resetpass", f">{token}", "~*", "+@all")
            administrator.execute([("ACL", "SETUSER", "worker", *user)])
            store.close()  # so that the next call connects again

        accept_only(login(store)[1])
        store.put("k", b"x", 60)
        clock.now += dt.timedelta(seconds=899)
        assert store.get("k") == b"x"  # a connection stays logged in
        first = login(store)[1]
        accept_only(first)
        assert store.get("k") == b"x"
        clock.now += dt.timedelta(seconds=2)
        assert login(store)[1] != first
        accept_only(login(store)[1])
        assert store.get("k") == b"x"
        accept_only("another token")
        with pytest.raises(StoreUnavailableError, match=r"refused the login: .*elasticache:Connect") as caught:
            store.get("k")
        token = login(store)[1]
        for secret in (token, SECRET, SESSION, token.rpartition("=")[2]):
            assert secret not in str(caught.value)
            assert secret not in repr(caught.value.__cause__)
            assert secret not in repr(vars(store._commands))


@pytest.mark.who_may
@pytest.mark.usefixtures("clock")
def test_a_token_is_what_botocores_own_signer_makes():
    events = Session().get_component("event_emitter")
    signer = RequestSigner(
        ServiceId("elasticache"), "eu-west-1", "elasticache", "v4", Credentials(KEY_ID, SECRET, SESSION), events
    )
    address = "https://my-cache/?Action=connect&User=worker&ResourceType=ServerlessCache"
    request = {"method": "GET", "url": address, "body": {}, "headers": {}, "context": {}}
    signed = signer.generate_presigned_url(request, "connect", expires_in=900, region_name="eu-west-1")
    with open_store(
        "rediss+cluster://worker@one.example?iam=my-cache&iam_serverless=true&iam_region=eu-west-1"
    ) as store:
        token = login(store)[1]
    assert sorted(parse_qsl(token.partition("?")[2])) == sorted(parse_qsl(signed.partition("?")[2]))
    assert token.partition("?")[0] == "my-cache/"


@pytest.mark.who_may
def test_a_connection_that_the_server_ends_logs_in_anew(clock, served):
    """ElastiCache ends connections after twelve hours."""
    server, url = served
    with open_store(server.url) as administrator, open_store(url) as store:
        for value in (b"x", b"y"):
            user = ("on", "resetpass", f">{login(store)[1]}", "~*", "+@all")
            administrator.execute([("ACL", "SETUSER", "worker", *user)])
            store.put("k", value, 60)
            assert store.get("k") == value
            administrator.execute([("CLIENT", "KILL", "USER", "worker")])
            clock.now += dt.timedelta(hours=12)
            with suppress(StoreUnavailableError):  # a call that is under way may meet the end
                store.exists(["k"])


@pytest.mark.who_may
def test_waits_for_messages_log_in_by_it_too(clock, served):
    server, url = served
    with open_store(server.url) as administrator, open_store(url) as store:
        exchange = store.exchange()
        user = ("on", "resetpass", f">{login(store)[1]}", "~*", "+@all")
        administrator.execute([("ACL", "SETUSER", "worker", *user)])
        administrator.exchange().send([Message("k", b"x")], 60)
        assert [message.value for message in exchange.receive("k", START, 30)] == [b"x"]
        exchange.close()
        clock.now += dt.timedelta(seconds=2)
        with pytest.raises(StoreUnavailableError, match="refused the login"):
            exchange.receive("k", START, 30)


@pytest.mark.who_may
def test_a_cluster_takes_it_too():
    url = "rediss+cluster://worker@one.example:6379,two.example?iam=my-cache&iam_region=eu-west-1"
    with open_store(url) as store:
        assert store._connect.args[-1]["login"].__self__._user == "worker"
        assert store._commands._seeds == [("one.example", 6379), ("two.example", 6379)]


@pytest.mark.who_may
def test_missing_credentials_are_reported_and_no_connection_is_used_without_login(monkeypatch, served):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with open_store(served[1]) as store:
        for _ in range(2):
            with pytest.raises(StoreUnavailableError, match="there are none: set AWS_ACCESS_KEY_ID"):
                store.get("k")


@pytest.mark.who_may
@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("redis://worker@host?iam=my-cache&iam_region=eu-west-1", "with TLS"),
        ("redis+cluster://worker@host?iam=my-cache&iam_region=eu-west-1", "with TLS"),
        ("rediss://worker:hush@host?iam=my-cache&iam_region=eu-west-1", "without a password"),
        ("rediss://host?iam=my-cache&iam_region=eu-west-1", "rediss://USER@"),
        ("rediss://worker@host?iam_serverless=true", "iam=CACHE"),
        ("rediss://worker@host?iam=my-cache&iam_serverless=perhaps&iam_region=eu-west-1", "iam_serverless=true or"),
        ("rediss://worker@host?iam=My-Cache&iam_region=eu-west-1", "in lower case"),
        ("rediss://worker@host?iam=my-cache", "needs a region: add iam_region=REGION"),
    ],
)
def test_incompatible_options_are_refused_by_name(url, message):
    with pytest.raises(UsageError, match=message) as caught:
        open_store(url)
    assert "hush" not in str(caught.value)


@pytest.mark.who_may
def test_botocore_is_imported_only_for_it():
    code = (
        "import sys; from serfer import storage; storage.open_store('rediss://:hush@host');"
        "print('botocore' in sys.modules); storage.open_store('rediss://me@host?iam=c&iam_region=eu-west-1'); "
        "print('botocore' in sys.modules, 'boto3' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\nTrue False\n"
