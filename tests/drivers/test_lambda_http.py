"""The invoker that drivers use, against the local Lambda service with real workers, and against worse."""

import asyncio
import json
import socket
import threading
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials, RefreshableCredentials
from botocore.exceptions import CredentialRetrievalError

from serfer.core.costs.aws import shipped_aws
from serfer.core.keys import StoreCounts
from serfer.core.run_machine import Failure, FailureKind
from serfer.core.sigv4 import Access
from serfer.core.wire import Crop, Report, Task, TaskError, decode_task, decode_tasks, encode_report, encode_reports
from serfer.drivers import lambda_http
from serfer.drivers.lambda_http import LambdaInvoker
from serfer.local.lambda_.function import FunctionConfig
from serfer.local.lambda_.runtime import runtime_directory
from serfer.local.lambda_.service import LambdaService

PATIENCE = 30.0
SECRET = "never-to-be-seen"  # noqa: S105 - the test looks for it
TASK = Task("d" * 64, "0" * 32, 0, 1, 2, 60.0, Crop("uint8", b"pixels"))
REPORT = Report("e", 9.0, 1.0, 2.0, 3.0, 6.0, 1, 1, StoreCounts(1, 2, 3, 4, 5), b"logits")
NAMES = ("answer", "nonsense", "wrong-report", "text", "fail", "hang", "exit", "hog")


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    return runtime_directory(tmp_path_factory.mktemp("runtime"))


@asynccontextmanager
async def invoker(endpoint, names=None, credentials=None):
    calling = LambdaInvoker(endpoint, "us-east-1", credentials or Credentials("AKID", SECRET), names)
    try:
        yield calling
    finally:
        await calling.close()


@asynccontextmanager
async def service(runtime, **settings):
    functions = [
        FunctionConfig(
            name,
            Path(__file__).parent / "function",
            "handler.handler",
            memory_mb=256,
            timeout_s=0.3 if name == "hang" else PATIENCE,
            environment={"REPORT": encode_report(REPORT)["report"]},
        )
        for name in NAMES
    ]
    settings |= {"facts": shipped_aws().functions, "runtime": runtime, "access": Access("AKID", SECRET)}
    async with LambdaService(functions, **settings) as running, invoker(running.url) as calling:
        yield calling


@asynccontextmanager
async def served(handler):
    """Serve what a handler answers to each request, or a report; yields the URL and the requests with their bodies."""
    seen = []

    async def record(request):
        seen.append((request, await request.read()))
        return await handler(request)

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", record)
    async with TestServer(application) as server:
        yield f"http://127.0.0.1:{server.port}/", seen


async def report_response(_request):
    return web.json_response(encode_report(REPORT))


async def answering(handler, tasks=None, names=None):
    """Invoke one task, or several as one, against a server of the test's own and return (result, requests, URL)."""
    async with served(handler) as (url, seen), invoker(url, names) as calling:
        call = calling.invoke_shared("f", tasks, 0.1) if tasks else calling.invoke("f", TASK, 0.1)
        return await asyncio.wait_for(call, PATIENCE), seen, url


async def test_every_end_of_a_function_is_a_report_or_one_kind_of_failure(runtime):
    async with service(runtime) as calling:
        ends = await asyncio.gather(*(calling.invoke(name, TASK, 20.0) for name in NAMES))
    results = dict(zip(NAMES, ends, strict=True))
    assert results.pop("answer") == REPORT
    kinds = {name: failure.kind for name, failure in results.items()}
    assert kinds == {
        "nonsense": FailureKind.FAILED_IN_CODE,
        "wrong-report": FailureKind.FAILED_IN_CODE,
        "text": FailureKind.FAILED_IN_CODE,
        "fail": FailureKind.FAILED_IN_CODE,
        "hang": FailureKind.TIMED_OUT,
        "exit": FailureKind.FAILED_IN_CODE,
        "hog": FailureKind.OUT_OF_MEMORY,
    }
    assert (results["fail"].error_type, results["fail"].message) == (
        "ZeroDivisionError",
        "integer division or modulo by zero",
    )
    assert "Task timed out after 0.30 seconds" in results["hang"].message
    assert "nonsense: " in results["nonsense"].message
    assert all(SECRET not in repr(failure) for failure in results.values())


async def test_a_full_service_throttles(runtime):
    async with service(runtime, concurrency=1) as calling:
        both = await asyncio.gather(calling.invoke("answer", TASK, 20.0), calling.invoke("answer", TASK, 20.0))
        assert calling.throttled == 1
        results = both
    assert REPORT in results
    (failure,) = (result for result in results if result != REPORT)
    assert failure.kind is FailureKind.THROTTLED
    assert failure.error_type == "TooManyRequestsException"


async def test_a_function_that_does_not_exist_is_unreachable_by_name(runtime):
    async with service(runtime) as calling:
        failure = await calling.invoke("nobody", TASK, 5.0)
    assert failure.kind is FailureKind.UNREACHABLE
    assert "nobody" in failure.message


async def test_functions_are_invoked_and_reported_by_their_deployed_names(runtime):
    names = {"plan-f": "answer:live", "plan-g": "nobody:live"}
    async with service(runtime) as calling, invoker(calling._endpoint, names) as other:
        assert other.called("plan-f") == "answer:live"
        assert await other.invoke("plan-f", TASK, 20.0) == REPORT
        failure = await other.check("plan-g")
    assert "nobody" in failure.message
    assert "plan-g" not in failure.message


async def test_as_many_invocations_are_in_flight_as_the_caller_sends():
    """Behind a pool of 256 connections the oldest query's invocations waited like all others, and their time ran."""
    all_there = asyncio.Barrier(300)

    async def answer(request):
        await all_there.wait()
        return await report_response(request)

    async with served(answer) as (url, _), invoker(url) as calling:
        assert await asyncio.gather(*(calling.invoke("f", TASK, PATIENCE) for _ in range(300))) == [REPORT] * 300


@pytest.mark.who_may
async def test_credentials_that_end_are_renewed_once_and_hold_nobody_up():
    """Asking for other ones may take a second, for which all queries of the process stood still."""
    asked, ends = threading.Event(), datetime.now(UTC) + timedelta(hours=1)
    other = {"access_key": "OTHER", "secret_key": SECRET, "token": "t", "expiry_time": ends.isoformat()}
    calls, loop, renewing = [], asyncio.get_running_loop(), asyncio.Event()

    def renew():
        calls.append(1)
        loop.call_soon_threadsafe(renewing.set)
        assert asked.wait(PATIENCE)
        return other

    credentials = RefreshableCredentials("AKID", SECRET, "t", datetime.now(UTC) + timedelta(seconds=30), renew, "test")

    async with served(report_response) as (url, seen), invoker(url, credentials=credentials) as calling:
        invoked = [asyncio.ensure_future(calling.invoke("f", TASK, PATIENCE)) for _ in range(3)]
        await renewing.wait()  # the loop runs while they are renewed
        asked.set()
        results = await asyncio.gather(*invoked)
    signed = [request.headers["Authorization"] for request, _ in seen]
    assert results == [REPORT] * 3
    assert len(calls) == 1
    assert all("OTHER/" in each and "x-amz-security-token" in each for each in signed)


@pytest.mark.who_may
async def test_credentials_that_cannot_be_renewed_are_a_failure():
    def refuse():
        raise CredentialRetrievalError(provider="test", error_msg="no network")

    credentials = RefreshableCredentials("AKID", SECRET, "t", datetime.now(UTC), refuse, "test")

    async with invoker("http://127.0.0.1:1", credentials=credentials) as calling:
        failure = await calling.invoke("f", TASK, PATIENCE)
    assert failure.kind is FailureKind.UNREACHABLE
    assert "no AWS credentials" in failure.message
    assert "no network" in failure.message


async def test_a_closed_port_is_unreachable():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with invoker(f"http://127.0.0.1:{port}") as calling:
        failure = await calling.invoke("f", TASK, 5.0)
    assert failure.kind is FailureKind.UNREACHABLE
    assert f"http://127.0.0.1:{port} does not answer" in failure.message
    assert SECRET not in repr(failure)


@pytest.mark.parametrize(("names", "sent"), [({}, "f"), ({"f": "demo-0-0"}, "demo-0-0"), ({"f": "g:live"}, "g%3Alive")])
async def test_requests_follow_the_invoke_api_and_are_signed(names, sent):
    """Botocore too quotes a qualifier's colon."""
    result, [(seen, body)], url = await answering(report_response, names=names)
    assert result == REPORT
    assert (seen.method, seen.raw_path) == ("POST", f"/2015-03-31/functions/{sent}/invocations")
    headers = seen.headers
    assert headers["X-Amz-Invocation-Type"] == "RequestResponse"
    assert decode_task(json.loads(body)) == TASK

    def signature(data):
        names = headers["Authorization"].partition("SignedHeaders=")[2].partition(",")[0].split(";")
        assert {"host", "x-amz-date"} <= set(names)
        where = f"{url.rstrip('/')}{seen.raw_path}"
        request = AWSRequest(seen.method, where, {name: headers[name] for name in names}, data)
        request.context["timestamp"] = headers["X-Amz-Date"]
        signer = SigV4Auth(Credentials("AKID", SECRET), "lambda", "us-east-1")
        return signer.signature(signer.string_to_sign(request, signer.canonical_request(request)), request)

    assert "Credential=AKID/" in headers["Authorization"]
    assert "/us-east-1/lambda/aws4_request" in headers["Authorization"]
    assert headers["Authorization"].endswith(f"Signature={signature(body)}")
    assert signature(body) != signature(body + b" ")
    assert SECRET not in str(headers)


@pytest.mark.parametrize(
    ("response", "kind", "words"),
    [
        ({"status": 429, "text": '{"message": "Rate Exceeded."}'}, FailureKind.THROTTLED, "f: Rate Exceeded."),
        ({"status": 500, "text": ""}, FailureKind.UNREACHABLE, "f: HTTP 500"),
        ({"status": 502, "text": "<html>"}, FailureKind.UNREACHABLE, "f: HTTP 502"),
        ({"status": 403, "text": '{"Message": "no"}'}, FailureKind.UNREACHABLE, "f: no"),
        ({"status": 200, "text": "[1]"}, FailureKind.FAILED_IN_CODE, "carries no report"),
        ({"status": 200, "text": "\0"}, FailureKind.FAILED_IN_CODE, "carries no report"),
        ({"status": 200, "body": b"\xff\xfe"}, FailureKind.FAILED_IN_CODE, "carries no report"),
        (
            {"status": 200, "text": "[]", "headers": {"X-Amz-Function-Error": "Unhandled"}},
            FailureKind.FAILED_IN_CODE,
            "no message",
        ),
    ],
)
async def test_odd_answers_are_failures_too(response, kind, words):
    async def odd(_request):
        return web.Response(**response)

    failure, _, _ = await answering(odd)
    assert isinstance(failure, Failure)
    assert failure.kind is kind
    assert words in failure.message


async def test_a_connection_that_breaks_off_is_unreachable():
    async def break_off(request):
        request.transport.close()
        return web.Response()

    failure, _, _ = await answering(break_off)
    assert failure.kind is FailureKind.UNREACHABLE


async def test_a_service_that_does_not_answer_in_time_has_timed_out(monkeypatch):
    monkeypatch.setattr(lambda_http, "_MARGIN_S", 0.0)

    async def sleep(_request):
        await asyncio.sleep(0.5)
        return web.Response()

    failure, _, _ = await answering(sleep)
    assert failure.kind is FailureKind.TIMED_OUT
    assert "f did not answer within 0.1 s" in failure.message


class TestShared:
    tasks = (TASK, replace(TASK, query="f" * 32, batch=3))

    async def test_tasks_travel_in_one_request_and_each_gets_its_own_answer(self):
        async def answer(_request):
            return web.json_response(encode_reports([REPORT, TaskError("MissingKeyError", "gone")]))

        (report, failure), [(request, body)], _ = await answering(answer, self.tasks)
        assert (request.method, request.raw_path) == ("POST", "/2015-03-31/functions/f/invocations")
        assert decode_tasks(json.loads(body)) == [*self.tasks]
        assert report == REPORT
        assert failure == Failure(FailureKind.FAILED_IN_CODE, "MissingKeyError", "gone")

    async def test_a_refused_shared_invocation_fails_all_its_queries(self):
        async def refuse(_request):
            return web.Response(status=429, text="{}")

        failures, _, _ = await answering(refuse, self.tasks)
        assert [failure.kind for failure in failures] == [FailureKind.THROTTLED] * 2

    async def test_an_answer_about_another_number_of_tasks_fails_all(self):
        async def one(_request):
            return web.json_response(encode_reports([REPORT]))

        failures, _, _ = await answering(one, self.tasks)
        assert [failure.kind for failure in failures] == [FailureKind.FAILED_IN_CODE] * 2
        assert "not a list of 2 reports" in failures[0].message
