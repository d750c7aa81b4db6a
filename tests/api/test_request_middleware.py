import asyncio
import time

import pytest
from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from starlette.requests import ClientDisconnect, Request

from serfer.api.admission import Bytes
from serfer.api.http.problems import problem_of, problem_response
from serfer.api.http.request_middleware import RequestMiddleware
from serfer.api.observability.telemetry import Telemetry

CAREFUL = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "x-frame-options": "DENY",
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'",
}


async def respond(request, error):
    return problem_response(problem_of(error), request)


@pytest.fixture
def app(metrics):
    app = FastAPI()

    @app.get("/v1/things/{name}")
    async def thing(name: str):
        return {"name": name}

    @app.get("/page")
    async def page():
        return HTMLResponse(
            "", headers={"Content-Security-Policy": "default-src 'self'", "X-Frame-Options": "SAMEORIGIN"}
        )

    @app.get("/v1/cached")
    async def cached():
        return HTMLResponse("", headers={"Cache-Control": "max-age=9"})

    @app.get("/gone")
    async def gone():
        raise ClientDisconnect

    app.add_middleware(RequestMiddleware, telemetry=Telemetry(metrics), budget=Bytes(1000), respond=respond)
    return app


class Response:
    def __init__(self, messages):
        self.status = messages[0]["status"] if messages else None
        self.raw_headers = messages[0]["headers"] if messages else []
        self.headers = {name.decode(): value.decode() for name, value in self.raw_headers}
        self.body = b"".join(message.get("body", b"") for message in messages[1:])


def ask(app, path, method="GET", headers=(), body=b"", **scope):
    messages, sent = [], iter([{"type": "http.request", "body": body}, {"type": "http.disconnect"}])

    async def receive():
        return next(sent)

    async def send(message):
        messages.append(message)

    http_scope = {"type": "http", "method": method, "path": path, "raw_path": path.encode(), "query_string": b""}
    http_scope |= {"headers": list(headers), "http_version": "1.1", "scheme": "http", "client": None, "server": None}
    asyncio.run(app({**http_scope, "root_path": "", "asgi": {"version": "3.0"}, **scope}, receive, send))
    return Response(messages)


class TestArrival:
    @pytest.fixture
    def waited_s(self, app):
        """Return a function that says how long ago a request arrived, by its own state."""
        waits = []

        @app.get("/arrived")
        async def arrived(request: Request):
            waits.append(time.monotonic() - request.state.arrived)

        def wait(*values):
            ask(app, "/arrived", headers=[(b"x-request-start", value) for value in values])
            return waits.pop()

        return wait

    def test_a_balancer_says_when_it_took_the_request(self, waited_s):
        assert waited_s(b"t=%d" % (time.time() * 1000 - 30_000)) == pytest.approx(30, abs=10)

    def test_it_is_believed_for_a_minute_at_most_and_not_of_the_future(self, waited_s):
        assert 60 <= waited_s(b"t=0000000000001") < 90
        assert waited_s(b"t=9999999999999") < 30

    @pytest.mark.parametrize("value", [b"", b"t=", b"t=1", b"1790000000000", b"t=-000000000001", b"t=1.790000000e12"])
    def test_an_invalid_arrival_time_is_ignored(self, waited_s, value):
        assert max(waited_s(value), waited_s()) < 30


class TestRequestId:
    def test_the_clients_is_kept(self, app):
        assert (
            ask(app, "/v1/things/x", headers=[(b"x-request-id", b"abc-1.2_Z")]).headers["x-request-id"] == "abc-1.2_Z"
        )

    @pytest.mark.parametrize("bad", [b"", b"two words", b"x" * 65, b"line\nbreak", "ä".encode(), b"a\n"])
    def test_an_invalid_request_id_is_replaced(self, app, bad):
        request_id = ask(app, "/v1/things/x", headers=[(b"x-request-id", bad)]).headers["x-request-id"]
        assert (len(request_id), request_id.encode() == bad) == (32, False)

    def test_unrouted_requests_have_a_request_id_too(self, app):
        answer = ask(app, "/nowhere")
        assert (answer.status, len(answer.headers["x-request-id"])) == (404, 32)


class TestHeaders:
    @pytest.mark.parametrize("path", ["/v1/things/x", "/nowhere", "/openapi.json"])
    def test_every_response_is_careful(self, app, path):
        headers = ask(app, path).headers
        assert {name: headers[name] for name in CAREFUL} == CAREFUL

    def test_a_pages_own_stand_once(self, app):
        raw = [name for name, _ in ask(app, "/page").raw_headers]
        headers = ask(app, "/page").headers
        assert (headers["content-security-policy"], headers["x-frame-options"]) == ("default-src 'self'", "SAMEORIGIN")
        assert len(raw) == len(set(raw))

    def test_answers_are_not_stored_unless_they_say_so(self, app):
        assert ask(app, "/v1/things/x").headers["cache-control"] == "no-store"
        assert ask(app, "/v1/unknown").headers["cache-control"] == "no-store"
        assert ask(app, "/v1/cached").headers["cache-control"] == "max-age=9"
        assert "cache-control" not in ask(app, "/page").headers


class TestBugs:
    def test_a_bug_after_the_response_began_ends_there(self, metrics, lines):
        async def late(scope, receive, send):  # noqa: ARG001 - an application
            await send({"type": "http.response.start", "status": 200, "headers": []})
            raise ValueError

        answer = ask(RequestMiddleware(late, Telemetry(metrics), Bytes(1000), respond), "/x")
        assert (answer.status, answer.body) == (200, b"")
        assert lines()[0]["error"] == "ValueError"

    def test_a_disconnected_client_is_only_logged(self, app, lines):
        assert ask(app, "/gone").status is None
        assert (lines()[0]["status"], lines()[0]["level"]) == (499, "info")


class TestAccounts:
    def test_a_body_is_counted_as_it_is_read(self, metrics, lines):
        async def reader(scope, receive, send):  # noqa: ARG001 - an application
            await receive()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"ab", "more_body": True})
            await send({"type": "http.response.body", "body": b"c"})

        ask(RequestMiddleware(reader, Telemetry(metrics), Bytes(1000), respond), "/x", body=b"12345")
        assert (lines()[0]["bytes_in"], lines()[0]["bytes_out"]) == (5, 3)
        assert metrics.registry.get_sample_value("serfer_http_request_bytes_total", {"route": "other"}) == 5.0

    @pytest.mark.parametrize(("method", "path"), [("BREW", "/v1/things/x"), ("GET", "/some/path"), ("GET", "/another")])
    def test_clients_cannot_create_metric_series(self, app, metrics, method, path):
        ask(app, path, method)
        known = {
            (sample.labels["route"], sample.labels["method"])
            for metric in metrics.registry.collect()
            for sample in metric.samples
            if sample.name == "serfer_http_requests_total"
        }
        assert known <= {("/v1/things/{name}", "other"), ("other", "GET")}

    def test_other_protocols_pass(self, metrics):
        seen = []

        async def other(scope, receive, send):  # noqa: ARG001 - an application
            seen.append(scope["type"])

        asyncio.run(
            RequestMiddleware(other, Telemetry(metrics), Bytes(1000), respond)({"type": "lifespan"}, None, None)
        )
        assert seen == ["lifespan"]
