"""Only callers with the Lambda service's credentials list, read or invoke functions; other users reach nothing."""

import http.client
import json
import os
import socket
import subprocess
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from urllib.parse import urlsplit

import pytest
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from botocore.exceptions import ClientError
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.sigv4 import Access, sign
from serfer.local.lambda_.access import Verifier
from serfer.local.lambda_.socket_owner import is_ours
from tests.local.test_lambda_service import Local, probe
from tests.support.lambda_client import lambda_client

PASSWORD = "0123456789abcdef"  # noqa: S105 - of no store
ACCESS = Access("LOCALKEY", "a-secret-of-the-test")
NOW = datetime(2026, 11, 22, 20, 30, tzinfo=UTC)
AS_NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
ASK = "Host: 127.0.0.1\\r\\nContent-Length: 0\\r\\nConnection: close\\r\\n\\r\\n"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture(scope="module")
def local(runtime):
    variables = {"SERFER_STORE": f"redis://:{PASSWORD}@127.0.0.1:1/0"}
    with Local(runtime, probe("echo", environment=variables), probe("variables")) as local:
        yield local


def as_nobody(port, method, path):
    """Return what a process of another user gets from a port, without credentials."""
    head = f"{method} {path} HTTP/1.1\\r\\n{ASK}"
    script = f"trap '' PIPE; exec 3<>/dev/tcp/127.0.0.1/{port}; {{ printf '{head}' >&3; cat <&3; }} 2>/dev/null; :"
    # Every user may run bash, as not every Python. Popen(user=...) would fork, for which this process may be too large.
    command = [*AS_NOBODY, "bash", "-c", script]
    return subprocess.run(command, stdout=subprocess.PIPE, cwd="/", check=True, timeout=20).stdout


@pytest.mark.who_may
@as_root
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/2015-03-31/functions/"),
        ("GET", "/2015-03-31/functions/echo"),
        ("GET", "/2015-03-31/functions/echo/configuration"),
        ("GET", "/serfer/counts"),
        ("POST", "/2015-03-31/functions/echo/invocations"),
        ("POST", "/2015-03-31/functions/unknown/invocations"),
    ],
)
def test_another_user_gets_nothing(local, method, path):
    before = local.service.counts.as_dict()
    answer = as_nobody(urlsplit(local.service.url).port, method, path)
    assert answer.startswith(b"HTTP/1.1 403 ")
    assert b"echo" not in answer
    assert PASSWORD.encode() not in answer
    assert local.service.counts.as_dict() == before


@pytest.mark.who_may
@as_root
def test_another_user_takes_no_event_from_a_runtime_api(local):
    address = local.invoke("variables")[0]["environ"]["AWS_LAMBDA_RUNTIME_API"]
    port = urlsplit(f"//{address}").port
    assert as_nobody(port, "GET", "/2018-06-01/runtime/invocation/next") == b""
    assert local.invoke("variables")[0]["environ"]["AWS_LAMBDA_RUNTIME_API"].endswith(str(port)), (
        "its worker is no longer served"
    )


@pytest.mark.who_may
@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"key_id": "LOCALOTHER"}, "UnrecognizedClientException"),
        ({"secret": "another-secret"}, "InvalidSignatureException"),
    ],
)
def test_wrong_credentials_are_refused_by_name(local, change, code):
    access = replace(local.service.access, **change)
    client = lambda_client(local.service.url, access)
    for call in (client.list_functions, lambda: client.invoke(FunctionName="echo", Payload=b"{}")):
        with pytest.raises(ClientError) as refused:
            call()
        assert refused.value.response["Error"]["Code"] == code
        assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] == 403
    client.close()


@pytest.mark.who_may
def test_boto3_with_the_credentials_works_from_any_region(local):
    client = lambda_client(local.service.url, local.service.access, "eu-west-1")
    answer = client.invoke(FunctionName="arn:aws:lambda:us-east-1:123456789012:function:echo", Qualifier="live")
    assert answer["StatusCode"] == 200
    client.close()


@pytest.mark.who_may
def test_descriptions_hold_no_variables_even_for_the_owner(local):
    described = [
        local.client.list_functions(),
        local.client.get_function(FunctionName="echo"),
        local.client.get_function_configuration(FunctionName="echo"),
    ]
    assert PASSWORD not in json.dumps(described, default=str)
    assert PASSWORD not in repr(local.service._functions)
    assert local.service.access.secret not in repr(local.service.access)


@pytest.mark.who_may
def test_a_service_without_access_of_its_own_has_credentials_that_none_had_before(local):
    with Local(next(iter(local.service._pool._host.runtimes.values())), probe("echo")) as other:
        assert other.service.access != local.service.access
        assert len(other.service.access.secret) >= 32


@dataclass(frozen=True)
class Request:
    """What a Verifier looks at."""

    method: str = "POST"
    target: str = "/2015-03-31/functions/f/invocations"
    headers: dict = field(default_factory=dict)
    body: bytes = b"{}"


def signed_by_botocore(monkeypatch, method, target, headers, body, access=ACCESS):
    request = AWSRequest(method, f"http://127.0.0.1:9001{target}", headers=headers, data=body)
    with monkeypatch.context() as patch:
        patch.setattr("botocore.auth.get_current_datetime", lambda: NOW.replace(tzinfo=None))
        SigV4Auth(Credentials(access.key_id, access.secret), "lambda", "us-east-1").add_auth(request)
    return Request(method, target, {name.lower(): value for name, value in request.headers.items()}, body)


def refusal(request, now=NOW):
    message = Verifier(ACCESS, now.timestamp).refusal(request)
    return message and message[0]


NAMES = st.text("abcXYZ09-_$%:", min_size=1, max_size=12).map(lambda name: name.replace("%", "%3A"))
QUERIES = st.lists(st.tuples(NAMES, NAMES), max_size=3).map(lambda pairs: "&".join(f"{k}={v}" for k, v in pairs))
VALUES = st.text(st.characters(codec="ascii", categories=("L", "N", "P", "Zs")), max_size=20).map(str.strip)


@pytest.mark.who_may
@given(method=st.sampled_from(["GET", "POST"]), name=NAMES, query=QUERIES, value=VALUES, body=st.binary(max_size=100))
def test_signatures_are_compatible_with_botocore(method, name, query, value, body):
    with pytest.MonkeyPatch.context() as monkeypatch:
        target = f"/2015-03-31/functions/{name}{'?' + query if query else ''}"
        headers = {"host": "127.0.0.1:9001", "x-amz-invocation-type": value}
        request = signed_by_botocore(monkeypatch, method, target, headers, body)
    assert refusal(request) is None
    ours = sign(ACCESS, "us-east-1", request.headers["x-amz-date"], method, target, headers, body)
    assert ours["authorization"] == request.headers["authorization"]


@pytest.fixture
def request_(monkeypatch):
    headers = {"Host": "127.0.0.1:9001", "X-Amz-Invocation-Type": "Event"}
    return signed_by_botocore(monkeypatch, "POST", Request().target, headers, b"{}")


@pytest.mark.who_may
@pytest.mark.parametrize(
    "change",
    [
        {"body": b"{ }"},
        {"method": "GET"},
        {"target": "/2015-03-31/functions/g/invocations"},
        {"target": "/2015-03-31/functions/f/invocations?Qualifier=1"},
        {"x-amz-invocation-type": "RequestResponse"},
        {"host": "127.0.0.1:9002"},
    ],
    ids=str,
)
def test_a_request_that_was_changed_is_refused(request_, change):
    assert refusal(request_) is None
    parts = {name: change.get(name, getattr(request_, name)) for name in ("method", "target", "body")}
    headers = {name: change.get(name, value) for name, value in request_.headers.items()}
    assert refusal(Request(**parts, headers=headers)) == "InvalidSignatureException"


@pytest.mark.who_may
def test_a_signature_is_good_for_five_minutes(request_):
    for minutes, code in ((4, None), (-4, None), (6, "InvalidSignatureException"), (-6, "InvalidSignatureException")):
        assert refusal(request_, datetime.fromtimestamp(NOW.timestamp() + 60 * minutes, UTC)) == code


@pytest.mark.who_may
@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("authorization", None, "MissingAuthenticationTokenException"),
        ("authorization", "Bearer abc", "MissingAuthenticationTokenException"),
        ("x-amz-date", None, "IncompleteSignatureException"),
        ("x-amz-date", "20261122", "IncompleteSignatureException"),
        ("x-amz-date", "20261199T203000Z", "IncompleteSignatureException"),
        ("x-amz-invocation-type", None, "IncompleteSignatureException"),
    ],
)
def test_a_request_that_lacks_a_part_of_its_signature_is_refused(request_, name, value, code):
    headers = {**request_.headers, name: value}
    assert refusal(Request(headers={key: text for key, text in headers.items() if text is not None})) == code


@pytest.mark.who_may
def test_a_date_that_none_is_is_refused(request_):
    authorization = request_.headers["authorization"].replace("20261122", "20261399")
    headers = {**request_.headers, "authorization": authorization, "x-amz-date": "20261399T203000Z"}
    assert refusal(Request(headers=headers)) == "InvalidSignatureException"


@pytest.mark.who_may
@pytest.mark.parametrize("name", ["host", "x-amz-date"])
def test_host_and_date_must_be_signed(request_, name):
    signed = ";".join(each for each in ("host", "x-amz-date", "x-amz-invocation-type") if each != name)
    authorization = request_.headers["authorization"].replace("host;x-amz-date;x-amz-invocation-type", signed)
    assert authorization != request_.headers["authorization"]
    assert (
        refusal(Request(headers={**request_.headers, "authorization": authorization})) == "IncompleteSignatureException"
    )


class TestPeer:
    @pytest.fixture
    def ends(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            client = socket.create_connection(server.getsockname())
            accepted, _ = server.accept()
            with client, accepted:
                yield client, accepted

    @pytest.mark.who_may
    def test_an_end_of_our_own_is_ours(self, ends):
        client, accepted = ends
        assert is_ours(accepted.getpeername(), accepted.getsockname())
        assert not is_ours(("127.0.0.1", 1), accepted.getsockname())
        client.shutdown(socket.SHUT_WR)
        assert is_ours(accepted.getpeername(), accepted.getsockname()), "half closed is still held"

    @pytest.mark.who_may
    def test_a_closed_connection_is_not_ours(self, ends):
        client, accepted = ends
        name = accepted.getpeername()
        client.close()
        assert not is_ours(name, accepted.getsockname())

    @pytest.mark.who_may
    def test_an_end_of_another_user_is_not_ours(self, ends, monkeypatch):
        _, accepted = ends
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        assert not is_ours(accepted.getpeername(), accepted.getsockname())


@pytest.mark.who_may
@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:9001", "localhost:1", "[::1]", "[::1]:9001"])
def test_every_name_of_loopback_is_a_fit_host(local, host):
    address = urlsplit(local.service.url)
    connection = http.client.HTTPConnection(address.hostname, address.port)
    time = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    target = "/2015-03-31/functions/"
    headers = sign(local.service.access, "us-east-1", time, "GET", target, {"host": host}, b"")
    connection.request("GET", target, headers=headers)
    assert connection.getresponse().status == 200
    connection.close()


@pytest.mark.who_may
@pytest.mark.parametrize("host", ["example.org", "127.0.0.1.example.org", "[::1].org:80", "127.0.0.1:9:9", "::1"])
def test_other_hosts_are_refused_before_anything_else(local, host):
    address = urlsplit(local.service.url)
    connection = http.client.HTTPConnection(address.hostname, address.port)
    connection.request("GET", "/2015-03-31/functions/", headers={"Host": host})
    response = connection.getresponse()
    assert (response.status, response.read()) == (403, b"")
    connection.close()
