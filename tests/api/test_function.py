import base64
import json
import os
import signal
import subprocess
import sys
import uuid
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from urllib.parse import urlencode

import pytest

from serfer.api.auth.keys import add_key
from serfer.api.entrypoints import function as function_module
from serfer.api.entrypoints.aws_driver import models_of
from serfer.api.entrypoints.function import Function, open_application
from serfer.core.errors import InputError, UnavailableError, UsageError
from serfer.core.plan import sealed
from serfer.core.run_machine import Retry
from serfer.local.servers.redis import RedisServer
from serfer.pipeline.warm import Warmth, ping_event
from serfer.plan_directory import load_plan, write_plan
from serfer.settings import DriverSettings, Settings
from serfer.storage.redis.store import RedisStore
from tests.support.served import png

IMAGE = {"content-type": "image/png"}


def rest(method, path, query=(), headers=None, body=None):
    """Return an event of a REST API, proxy integration, with what is read of it."""
    headers = {"Host": "abc.execute-api.us-east-1.amazonaws.com", "X-Forwarded-Proto": "https", **(headers or {})}
    query = list(query)
    return {
        "resource": "/{proxy+}",
        "path": path,
        "httpMethod": method,
        "headers": headers,
        "multiValueHeaders": {name: [value] for name, value in headers.items()},
        "queryStringParameters": dict(query) or None,
        "multiValueQueryStringParameters": {name: [v for n, v in query if n == name] for name, _ in query} or None,
        "requestContext": {"requestId": str(uuid.uuid4()), "identity": {"sourceIp": "203.0.113.7"}},
        "body": None if body is None else base64.b64encode(body).decode(),
        "isBase64Encoded": body is not None,
    }


def http_api(method, path, query=(), headers=None, body=None):
    headers = {"host": "abc.execute-api.us-east-1.amazonaws.com", "x-forwarded-proto": "https", **(headers or {})}
    http = {"method": method, "path": path, "protocol": "HTTP/1.1", "sourceIp": "203.0.113.7", "userAgent": "t"}
    event = {
        "version": "2.0",
        "rawPath": path,
        "rawQueryString": urlencode(list(query)),
        "headers": {name.lower(): value for name, value in headers.items()},
        "requestContext": {"http": http, "requestId": "JKJaXmPLvHcESHA=", "stage": "$default"},
        "isBase64Encoded": body is not None,
    }
    return event if body is None else {**event, "body": base64.b64encode(body).decode()}


def driver_settings(variables):
    """Return settings as environment variables of these names and values make them."""
    return DriverSettings(**{name.removeprefix("SERFER_").lower(): value for name, value in variables.items() if value})


@pytest.fixture
def opened():
    with ExitStack() as opened:
        yield opened


def variables_of(plan):
    return {"LAMBDA_TASK_ROOT": str(plan), "SERFER_STORE": "memory://", "SERFER_WORKERS": "inprocess"}


@pytest.fixture
def variables(small_plan):
    return variables_of(small_plan)


@contextmanager
def opened_function(variables, settings):
    with ExitStack() as opened:
        function = Function(open_application(driver_settings(variables), settings, opened))
        opened.callback(function.close)
        yield function


@pytest.fixture(scope="module")
def shared(small_plan):
    with opened_function(variables_of(small_plan), Settings()) as function:
        yield function


@pytest.fixture(params=[rest, http_api])
def call(request, shared):
    """Call the function with an event of either format; returns status, headers and body."""

    def called(*event, **more):
        answer = shared(request.param(*event, **more), None)
        json.dumps(answer)  # as Lambda's runtime does
        body = base64.b64decode(answer["body"]) if answer["isBase64Encoded"] else answer["body"].encode()
        return answer["statusCode"], answer["headers"], body

    return called


class TestEvents:
    @pytest.mark.exact
    def test_answers_equal_those_of_a_driver(self, call, http):
        status, _, body = call("POST", "/v1/classify", headers=IMAGE, body=png())
        other = http.post("/v1/classify", content=png(), headers=IMAGE)
        assert (status, json.loads(body)["images"]) == (other.status_code, other.json()["images"])

    def test_health_and_metrics_are_text(self, call):
        assert call("GET", "/healthz")[::2] == (200, b'{"live":true}')
        assert call("GET", "/readyz")[::2] == (200, b'{"ready":true}')
        status, headers, body = call("GET", "/metrics")
        assert (status, headers["content-type"].partition(";")[0]) == (200, "text/plain")
        assert b'route="/readyz"' in body

    @pytest.mark.parametrize(
        ("event_parts", "status"),
        [
            (("POST", "/v1/classify", (), IMAGE, b"\x89PNG\r\n\x1a\n broken"), 400),
            (("POST", "/v1/classify", [("top_k", "0")], IMAGE, b"x"), 422),
            (("POST", "/v1/classify", [("top_k", "1"), ("top_k", "2")], IMAGE, b"x"), 422),
            (("GET", "/v1/classify"), 405),
            (("GET", "/nowhere"), 404),
            (("POST", "/v1/classify", (), {"content-type": "text/html"}, b"x"), 415),
            (("POST", "/v1/classify", (), {**IMAGE, "prefer": "respond-async"}, png()), 422),
        ],
    )
    def test_errors_are_problems_that_can_be_read(self, call, event_parts, status):
        code, headers, body = call(*event_parts)
        problem = json.loads(body)
        assert (code, headers["content-type"], problem["status"]) == (status, "application/problem+json", status)
        assert problem["request_id"] == headers["x-request-id"]

    @pytest.mark.parametrize(
        ("event", "path", "more"),
        [
            (rest, "/v1/models", {"pathParameters": {"proxy": "v1/models"}}),
            (rest, "/img/v1/models", {"pathParameters": {"proxy": "v1/models"}}),  # a custom domain's base path
            (rest, "/a/b/v1/models", {"resource": "/b/{path+}", "pathParameters": {"path": "v1/models"}}),
            (rest, "/img/v1/models", {"resource": "/v1/{proxy+}", "pathParameters": {"proxy": "models"}}),
            (rest, "/img/v1/models", {"resource": "/v1/models"}),
            (rest, "/v1/models", {"requestContext": {"stage": "v1", "requestId": "r"}}),
            (rest, "/prod/v1/models", {"version": "1.0", "requestContext": {"stage": "prod", "requestId": "r"}}),
            (rest, "/v1/models", {"resource": None, "requestContext": {"elb": {"targetGroupArn": "arn:x"}}}),
            (http_api, "/v1/models", {"routeKey": "$default"}),  # as a function URL's event
            (http_api, "/prod/v1/models", {"routeKey": "$default", "stage": "prod"}),
            (http_api, "/v1/v1/models", {"stage": "v1", "apiId": "abc", "domainPrefix": "abc"}),
            (http_api, "/v1/models", {"stage": "v1", "apiId": "abc", "domainPrefix": "photos"}),  # a custom domain
            (
                http_api,
                "/prod/img/v1/models",
                {"routeKey": "GET /img/{proxy+}", "pathParameters": {"proxy": "v1/models"}},
            ),
        ],
    )
    def test_path_behind_a_base_path_or_stage_is_the_applications(self, shared, event, path, more):
        called = event("GET", path)
        for name, value in more.items():
            within = called["requestContext"] if name in {"stage", "apiId", "domainPrefix"} else called
            within[name] = value
        answer = shared({name: value for name, value in called.items() if value is not None}, None)
        assert (answer["statusCode"], json.loads(answer["body"])["models"][0]["name"]) == (200, "small")

    @pytest.mark.parametrize(
        ("event", "path", "resource"), [(rest, "/img", "/"), (http_api, "/prod", None), (http_api, "/prod/", None)]
    )
    def test_root_behind_a_base_path_or_stage_is_the_page(self, shared, event, path, resource):
        called = event("GET", path)
        called["requestContext"]["stage"] = "prod"
        answer = shared({**called, **({"resource": resource} if resource else {})}, None)
        assert (answer["statusCode"], answer["headers"]["content-type"].partition(";")[0]) == (200, "text/html")

    def test_problems_are_not_in_base64(self, shared):
        assert not shared(rest("GET", "/nowhere"), None)["isBase64Encoded"]


class TestOpening:
    @pytest.mark.parametrize(
        ("wrong", "words"),
        [
            ({"SERFER_WORKERS": "moon"}, "SERFER_WORKERS is inprocess, local or aws, not 'moon'"),
            ({"SERFER_WORKERS": "aws"}, "--store memory:// cannot be reached by functions in AWS"),
            ({"SERFER_DRIVER": "stepfunctions"}, "engine=stepfunctions invokes functions"),
            ({"SERFER_PLAN": "{plan}:{plan}"}, "SERFER_PLAN: two plans are of the model small"),
            ({"LAMBDA_TASK_ROOT": "/nowhere"}, "SERFER_PLAN"),
        ],
    )
    def test_settings_invalid_refused_by_name(self, variables, settings, opened, small_plan, wrong, words):
        wrong = {name: value.format(plan=small_plan) for name, value in wrong.items()}
        with pytest.raises(UsageError) as raised:
            open_application(driver_settings({**variables, **wrong}), settings, opened)
        assert words in str(raised.value)

    def test_plans_lie_in_the_package_and_a_state_machine_is_one_plans(self, variables, small_plan, tmp_path):
        other = tmp_path / "other"
        other.mkdir()
        write_plan(sealed(replace(load_plan(small_plan), model="other")), other)
        named = {"LAMBDA_TASK_ROOT": str(small_plan.parent), "SERFER_PLAN": f"{small_plan.name}:{other}"}
        assert models_of(driver_settings(variables | named)) == {"small": small_plan, "other": other}
        with pytest.raises(UsageError, match="SERFER_PLAN: a state machine is one plan's"):
            models_of(driver_settings({**variables, **named, "SERFER_DRIVER": "stepfunctions-express"}))

    def test_a_store_that_is_away_fails_the_init(self, variables, settings, opened):
        with pytest.raises(UnavailableError):
            open_application(driver_settings({**variables, "SERFER_STORE": "redis://127.0.0.1:9/0"}), settings, opened)

    def test_keys_hold_here_too(self, variables, tmp_path):
        key = add_key(tmp_path / "keys.json", "phone", None)
        with opened_function(variables, Settings(keys_file=tmp_path / "keys.json")) as function:
            statuses = [
                function(rest("POST", "/v1/classify", headers={**IMAGE, **header}, body=png()), None)["statusCode"]
                for header in ({}, {"X-API-Key": key}, {"Authorization": f"Bearer {key}"})
            ]
        assert statuses == [401, 200, 200]


PIPES = ("stdin", "stdout", "stderr")
PROCESS = """
import json, sys
from serfer.api.entrypoints import function
assert "handler" not in vars(function)  # importing it opens nothing
assert not hasattr(function, "other")
handler = function.handler
assert function.handler is handler
for line in sys.stdin:
    print(json.dumps(handler(json.loads(line), None)), flush=True)
"""


def test_an_environment_is_frozen_and_thawed(variables):
    """Its connections are cut while it stands still, as they are where it stands still for long."""
    with RedisServer() as server:
        env, pipes = {**os.environ, **variables, "SERFER_STORE": server.url}, dict.fromkeys(PIPES, subprocess.PIPE)
        with subprocess.Popen([sys.executable, "-c", PROCESS], env=env, text=True, **pipes) as process:
            try:
                request = json.dumps(http_api("POST", "/v1/classify", headers=IMAGE, body=png())) + "\n"
                for _ in range(3):
                    process.stdin.write(request)
                    process.stdin.flush()
                    assert json.loads(process.stdout.readline())["statusCode"] == 200
                    process.send_signal(signal.SIGSTOP)
                    with RedisStore(server.url) as client:
                        assert client.execute([("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")]) > [0]
                    process.send_signal(signal.SIGCONT)
            finally:
                process.kill()
            lines = [json.loads(line) for line in process.stderr.read().splitlines()]
    assert [line["status"] for line in lines if line["event"] == "request"] == [200, 200, 200]


def test_a_driver_function_waits_less_than_a_second_for_room_that_it_takes_itself():
    """Twelve tries are ten seconds of an environment in which its own stages could have run."""
    waits = [Retry().backoff.wait(failures, 1.0) for failures in range(1, function_module._THROTTLED_ATTEMPTS)]
    assert (
        sum(waits) < 1 < sum(Retry().backoff.wait(failures, 0.0) for failures in range(1, Retry().throttled_attempts))
    )


class TestPings:
    """A schedule's events, which no HTTP request can be."""

    @pytest.fixture
    def warmed(self, shared, monkeypatch):
        """What a ping has warmed: the queries at once, for each call."""
        calls = []

        def warm(queries):
            calls.append(queries)
            return [Warmth("stage-0", 2, 2, 1, 7.0, "throttled: no room" if queries > 1 else None)]

        [pipeline] = shared._pipelines
        monkeypatch.setattr(pipeline, "warm", warm)
        return calls

    def test_it_warms_the_functions_of_every_model_and_what_is_not_warm_is_logged(self, shared, warmed, caplog):
        answer = shared(ping_event(1), None)
        assert [warmth["function"] for warmth in answer["functions"]] == ["stage-0"]
        assert shared(rest("GET", "/readyz"), None)["statusCode"] == 200
        assert caplog.text == ""
        shared(ping_event(3), None)
        assert warmed == [1, 3]
        assert "stage-0 is not warm: throttled" in caplog.text

    def test_workers_in_process_need_none(self, shared):
        assert shared(ping_event(1), None) == {"functions": []}

    @pytest.mark.parametrize("make", [rest, http_api])
    def test_a_request_is_never_one(self, shared, warmed, make):
        [(name, value)] = ping_event(1).items()
        body = json.dumps(ping_event(1)).encode()
        query = [(name, json.dumps(value))]
        status = shared(make("POST", "/", query, {name: "1", "content-type": "application/json"}, body), None)
        assert status["statusCode"] == 405
        event = {**make("GET", "/readyz"), name: value}  # no API gives it, and with a request beside it it is none
        assert shared(event, None)["statusCode"] == 200
        assert warmed == []

    @pytest.mark.parametrize("queries", [0, 1001, True, "1", None])
    def test_one_for_an_impossible_number_is_refused(self, shared, warmed, queries):
        with pytest.raises(InputError, match="a ping is for 1 to 1000 queries"):
            shared({**ping_event(1), "serfer_ping": {"queries": queries}}, None)
        assert warmed == []
