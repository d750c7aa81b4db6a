import asyncio
import base64
import json
import logging
import re
import time
from datetime import datetime
from unittest.mock import AsyncMock, Mock

import httpx
import pytest

from serfer.api.app import make_app
from serfer.api.auth.keys import KeyRing, add_key
from serfer.api.http.problems import Problem
from serfer.api.observability.logs import TextFormatter, configure_logs, reason, write
from serfer.api.observability.telemetry import Telemetry
from serfer.core.errors import ImageError, StoreUnavailableError
from serfer.storage.memory import MemoryStore
from tests.api.logged import logged
from tests.e2e.conftest import eventually
from tests.support.served import PATIENCE, PNG, ended, png

WORD = "hunter2"


@pytest.fixture
def observed(metrics):
    return Telemetry(metrics)


@pytest.fixture
def key(tmp_path):
    return add_key(tmp_path / "keys.json", "phone", None)


@pytest.fixture
def app(service, settings, observed, key, tmp_path):
    assert key
    return make_app(service, settings, KeyRing(tmp_path / "keys.json", time.monotonic), observed)


@pytest.fixture
def http(url, key):
    with httpx.Client(base_url=url, timeout=PATIENCE, headers={"Authorization": f"Bearer {key}"}) as client:
        yield client


def requests_in(lines, count=1, event="request"):
    """Wait until so many requests are over, which their clients hear of first, and return their lines."""

    def records():
        found = [line for line in lines() if line["event"] == event]
        return found if len(found) >= count else None

    return eventually(records, "the requests are over")


class TestRequestLines:
    def test_an_answer_says_where_its_time_went(self, http, lines):
        body = png()
        http.post("/v1/classify", content=body, headers={**PNG, "X-Request-Id": "abc"})
        [line] = requests_in(lines)
        assert datetime.fromisoformat(line["time"]).tzinfo is not None
        assert line["time"].endswith("Z")
        known = {"level": "info", "request_id": "abc", "method": "POST", "route": "/v1/classify", "status": 200}
        known |= {"client": "phone", "model": "small"}
        assert line == line | known
        assert list(line["stages_ms"]) == ["stage-0", "stage-1", "stage-2"]
        assert (line["bytes_in"], line["retries"], line["hedges"], line["cold"]) == (len(body), 0, 0, 0)
        assert line["query_ms"] <= line["ms"]
        assert line["cost_usd"] > 0
        assert re.fullmatch(r"[0-9a-f]+", line["query"])  # without the braces of keys

    def test_failures_are_logged_at_their_level_and_with_reasons_that_are_not_the_clients(
        self, http, lines, service, monkeypatch
    ):
        unavailable = AsyncMock(side_effect=StoreUnavailableError("the store at 10.0.0.1 does not answer"))
        http.post("/v1/classify", content=png()[:200], headers=PNG)
        monkeypatch.setattr(service, "predict", unavailable)
        http.post("/v1/classify", content=png(), headers=PNG)
        clients, own = requests_in(lines, 2)
        assert (clients["level"], clients["status"], clients["error"]) == ("info", 400, "ImageError")
        assert re.fullmatch(r"\w+\.py:\d+ raise .*", clients["reason"])
        assert (own["level"], own["status"], own["error"]) == ("warning", 503, "StoreUnavailableError")
        assert own["reason"] == "the store at 10.0.0.1 does not answer"

    @pytest.mark.parametrize(
        ("method", "path", "kind", "status"),
        [("GET", "/" + WORD, "", 404), ("PUT", "/v1/classify", "", 405), ("POST", "/v1/classify", WORD, 415)]
        + [("POST", f"/v1/classify?{query}", "image/png", 422) for query in (f"top_k={WORD}", f"{WORD}=1")],
    )
    def test_a_request_that_is_refused_has_our_line_for_a_reason_and_no_traceback(
        self, http, lines, method, path, kind, status
    ):
        assert http.request(method, path, content=png(), headers={"Content-Type": kind}).status_code == status
        [line] = requests_in(lines)
        assert re.fullmatch(
            r"HTTPException|\w+\.py:\d+ raise .*", line.get("reason", line["error"])
        )  # the status says it
        assert "traceback" not in line
        assert WORD not in str(line)

    @pytest.mark.parametrize("refused", ["put", "get_many"])
    def test_a_store_that_fails_until_the_deadline_is_named_in_the_log_alone(self, http, lines, monkeypatch, refused):
        """Of 84 queries of a full Redis the log said no more than that there was no answer by the deadline."""
        why = "the store at 10.0.0.1 is full"
        monkeypatch.setattr(MemoryStore, refused, Mock(side_effect=StoreUnavailableError(why)))
        answer = http.post("/v1/classify?deadline_ms=3000", content=png(), headers=PNG)
        [line] = requests_in(lines)
        errors = {503: "StoreUnavailableError", 504: "DeadlineError"}  # the latter where an attempt ran at the deadline
        assert line["error"] == errors[answer.status_code]
        assert why in line["failure"]
        assert why not in answer.text

    def test_an_asynchronous_query_has_its_own_log_line(self, http, lines):
        headers = {**PNG, "Prefer": "respond-async", "X-Request-Id": "later"}
        assert ended(http, http.post("/v1/classify", content=png(), headers=headers))["status"] == "done"
        [line] = requests_in(lines, event="query")
        assert (line["request_id"], line["model"], line["level"]) == ("later", "small", "info")

    def test_probes_are_logged_at_debug_level_and_a_change_of_readiness_once(self, http, lines, service):
        for path in ("/healthz", "/readyz"):
            http.get(path)
        assert {line["level"] for line in requests_in(lines, 2)} == {"debug"}
        service.drain()
        for _ in range(3):
            http.get("/readyz")
        assert [line["draining"] for line in lines() if line["event"] == "not ready"] == [True]


def sensitive_requests(http):
    """Yield requests with the secret in every place where a client can put one."""
    plain = base64.b64encode(png()).decode()
    for name, data, at in ((f"{WORD}.png", png(), "image"), (f"{WORD}.png", png()[:200], "image"), (WORD, png(), WORD)):
        yield http.post("/v1/classify", files={at: (name, data, "image/png")})
    for document in ({"images": [{"data": data, "name": WORD}]} for data in (plain, WORD)):
        yield http.post("/v1/classify", json=document)
    yield http.post("/v1/classify", json={WORD: WORD})
    for name in ("model", WORD, "top_k"):
        yield http.post(f"/v1/classify?{name}={WORD}", content=png(), headers=PNG)
    for headers in (
        *({"Idempotency-Key": WORD}, {"X-Request-Id": f"{WORD} {WORD}"}, {"Cookie": WORD, "User-Agent": WORD}),
        *({"Content-Type": f"image/{WORD}"}, {"Authorization": f"Bearer {WORD}"}, {"X-API-Key": WORD}),
    ):
        yield http.post("/v1/classify", content=png(), headers=PNG | headers)
    for path in (f"/{WORD}?{WORD}={WORD}", f"/v1/results/{WORD}", f"/v1/models/{WORD}"):
        yield http.get(path)
    yield http.post(f"/v2/models/{WORD}/infer", json={"inputs": [{"name": WORD}]})
    yield http.request(WORD.upper(), "/v1/classify")


class TestPrivacy:
    def test_nothing_of_a_clients_reaches_logs_or_metrics(self, http, key, stream, lines):
        statuses = [response.status_code for response in sensitive_requests(http)]
        requests_in(lines, len(statuses))
        assert {200, 400, 401, 404, 405, 415, 422} <= {*statuses}
        seen = (stream.getvalue() + http.get("/metrics").text).lower()
        assert "serfer_queries_total" in seen
        assert "imageerror" in seen
        for word in (WORD, key, base64.b64encode(png()).decode()[:40]):
            assert word.lower() not in seen

    def test_nor_does_it_where_we_have_a_bug(self, http, stream, lines, service, monkeypatch):
        def bug(query, images, names, top_k):  # noqa: ARG001 - as Service.classify
            raise ValueError(f"cannot use {names}")

        monkeypatch.setattr(service, "predict", bug)
        answer = http.post("/v1/classify", files={"image": (f"{WORD}.png", png(), "image/png")})
        assert answer.status_code == 500
        requests_in(lines)
        assert "ValueError" in stream.getvalue()
        assert WORD not in stream.getvalue()
        assert WORD not in answer.text

    @pytest.mark.parametrize("path", ["/v1/models/other", "/v2/models/small/ready"])
    def test_a_bug_is_a_500_with_the_id_under_which_the_log_has_its_frames(
        self, http, lines, service, monkeypatch, path
    ):
        def bug(_name):
            return {}[WORD]

        monkeypatch.setattr(service, "name", bug)
        answer = http.get(path)
        [line] = requests_in(lines)
        assert (answer.status_code, line["status"]) == (500, 500)
        assert line["request_id"] in answer.text
        assert any(" bug: " in frame for frame in line["traceback"])
        assert "KeyError" not in answer.text
        assert path.startswith("/v2") or answer.headers["content-type"] == "application/problem+json"

    async def test_nor_by_way_of_other_libraries(self, stream):
        asyncio.get_running_loop().call_exception_handler({"message": "lost\nand more", "exception": ValueError(WORD)})
        logging.getLogger("mangum.http").info("GET /%s", WORD)
        logging.getLogger("uvicorn.access").info("GET /?%s", WORD)
        assert "lost" in stream.getvalue()
        assert WORD not in stream.getvalue()


class TestReasons:
    def test_only_own_error_messages_are_logged(self):
        assert reason(ImageError(f"{WORD}.png is empty")) == {"error": "ImageError"}
        assert reason(Problem(429, WORD, slug="overloaded")) == {"error": "Problem", "problem": "overloaded"}
        assert reason(StoreUnavailableError("gone\nx")) == {"error": "StoreUnavailableError", "reason": "gone"}
        assert reason(asyncio.CancelledError()) == {"error": "CancelledError"}

    def test_a_bugs_causes_are_traced(self):
        try:
            try:
                {}[WORD]
            except KeyError as error:
                raise RuntimeError(WORD) from error
        except RuntimeError as error:
            frames = reason(error)["traceback"]
        assert [frame for frame in frames if not frame.startswith(" ")] == ["RuntimeError:", "KeyError:"]


class TestFormats:
    def test_text_is_one_line_that_no_value_can_break(self):
        record = logging.LogRecord("other", logging.WARNING, "", 0, "a \x1b[31m %s", ("b\x00c",), None)
        line = TextFormatter().format(record)
        assert "a  [31m b c" in line
        assert "WARNING" in line
        assert "\x1b" not in line

    def test_text_shows_fields_and_a_tracebacks_lines(self):
        with logged(as_json=False) as stream:
            write(logging.INFO, "request", {"status": 200, "stages_ms": {"stage-0": 1.5}, "traceback": ["X:", "  y"]})
        first, *rest = stream.getvalue().splitlines()
        assert first.endswith("INFO    request  status=200  stages_ms=stage-0:1.5")
        assert rest == ["X:", "  y"]

    @pytest.mark.parametrize(("terminal", "begin"), [(True, ""), (False, "{")])
    def test_a_terminal_gets_text_and_a_pipe_json(self, terminal, begin):
        with logged() as stream:
            stream.isatty = lambda: terminal
            configure_logs("info", stream)
            write(logging.INFO, "request", {})
        assert stream.getvalue().startswith(begin)
        assert stream.getvalue().startswith("{") is not terminal

    def test_a_level_is_kept_to(self):
        with logged("warning") as stream:
            write(logging.INFO, "request", {})
            write(logging.WARNING, "not ready", {})
        assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["not ready"]

    def test_uvicorns_own_lines_are_of_the_same_format(self, lines):
        logging.getLogger("uvicorn.error").warning("Uvicorn running on %s", "somewhere")
        assert (lines()[0]["message"], lines()[0]["logger"]) == ("Uvicorn running on somewhere", "uvicorn.error")
