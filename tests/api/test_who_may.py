"""Who may: every route of the application, with a key of each scope, with no key, and without keys at all."""

import asyncio
import logging
import re
import time

import fastapi.routing
import httpx
import pytest

from serfer.api.app import make_app
from serfer.api.auth.keys import KeyRing, Scope, add_key
from serfer.registry import open_registry
from serfer.settings import Settings
from tests.applications.services import open_service
from tests.applications.worlds import register, variant, version

ROUTES = getattr(fastapi.routing, "iter_route_contexts", iter)  # earlier versions of FastAPI copy a router's routes
OPEN, ANY = "open", "any key"  # without a key; with one of any scope
RULES = {
    "GET /": OPEN,
    "HEAD /": OPEN,
    "GET /page/{name}": OPEN,
    "HEAD /page/{name}": OPEN,
    "GET /docs": OPEN,
    "HEAD /docs": OPEN,
    "GET /openapi.json": OPEN,
    "HEAD /openapi.json": OPEN,
    "GET /healthz": OPEN,
    "HEAD /healthz": OPEN,
    "GET /readyz": OPEN,
    "HEAD /readyz": OPEN,
    "GET /v2/health/live": OPEN,
    "GET /v2/health/ready": OPEN,
    "POST /v1/classify": Scope.CLASSIFY,
    "POST /v1/predict": Scope.CLASSIFY,
    "GET /v1/results/{result_id}": Scope.CLASSIFY,
    "DELETE /v1/results/{result_id}": Scope.CLASSIFY,
    "GET /v1/models": Scope.CLASSIFY,
    "GET /v1/models/{name}": Scope.CLASSIFY,
    "GET /v1/load": Scope.CLASSIFY,
    "GET /metrics": Scope.CLASSIFY,
    "POST /v1/jobs": Scope.CLASSIFY,
    "GET /v1/jobs/{job}": Scope.CLASSIFY,
    "GET /v1/jobs/{job}/results": Scope.CLASSIFY,
    "DELETE /v1/jobs/{job}": Scope.CLASSIFY,
    "GET /v2": Scope.CLASSIFY,
    "GET /v2/models/{model}": Scope.CLASSIFY,
    "GET /v2/models/{model}/ready": Scope.CLASSIFY,
    "POST /v2/models/{model}/infer": Scope.CLASSIFY,
    "GET /v2/models/{model}/versions/{version}": Scope.CLASSIFY,
    "GET /v2/models/{model}/versions/{version}/ready": Scope.CLASSIFY,
    "POST /v2/models/{model}/versions/{version}/infer": Scope.CLASSIFY,
    "POST /v2/repository/index": Scope.CLASSIFY,
    "POST /v2/repository/models/{model}/load": Scope.OPERATE,
    "POST /v2/repository/models/{model}/unload": Scope.OPERATE,
    "POST /v2/repository/models/{model}/batching": Scope.OPERATE,
    "GET /v2/results/{result_id}": Scope.CLASSIFY,
    "DELETE /v2/results/{result_id}": Scope.CLASSIFY,
    "GET /v2/results/{result_id}/zarr/{path:path}": Scope.CLASSIFY,
    "GET /v2/results/{result_id}/outputs/{name:path}": Scope.CLASSIFY,
    "HEAD /v2/results/{result_id}/outputs/{name:path}": Scope.CLASSIFY,
    "GET /v1/applications": ANY,
    "GET /v1/applications/{name}": ANY,
    "POST /v1/applications/{name}/promote": Scope.PROMOTE,
    "POST /v1/applications/{name}/canary": Scope.PROMOTE,
    "POST /v1/applications/{name}/rollback": Scope.PROMOTE,
    "POST /v1/applications/{name}/retire": Scope.DELETE,
    "DELETE /v1/applications/{name}": Scope.DELETE,
}
CHANGES = {rule for rule, scope in RULES.items() if scope in {Scope.PROMOTE, Scope.DELETE}}
REFUSED = {401, 403}


class Repository:
    def states(self):
        return {}

    def state(self):
        return None


@pytest.fixture
def service(tmp_path, forks):
    """A service of all routes: an application, and an instance's repository."""
    registry = open_registry(str(tmp_path / "registry"))
    register(registry, "faces", version("net", 1, variant("net.1")))
    service = open_service(str(tmp_path / "registry"), tmp_path / "cache", forks, opened=False)
    service.repository = Repository()
    return service


def ask(app, rules, headers=None):
    """Send an empty request of each rule; returns the answers by rule."""

    async def all_of_them():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
            return {rule: await client.request(*_request(rule)) for rule in rules}

    return asyncio.run(all_of_them())


def _request(rule):
    method, _, path = rule.partition(" ")
    return method, re.sub(r"\{[^}]*\}", lambda found: "faces" if found[0] == "{name}" else "x", path)


def _rules_of(app):
    return {f"{method} {route.path}" for route in ROUTES(app.routes) for method in route.methods or ()}


@pytest.mark.who_may
def test_every_route_has_a_rule_of_who_may(service):
    assert _rules_of(make_app(service, Settings())) == set(RULES)


@pytest.mark.who_may
def test_a_key_is_good_for_the_routes_of_its_scope_alone(service, tmp_path):
    file = tmp_path / "keys.json"
    keys = {scope: add_key(file, scope.value, None, scopes=[scope]) for scope in Scope}
    keys["old"] = add_key(file, "old", None)
    app = make_app(service, Settings(), KeyRing(file, time.monotonic))
    for scope, key in keys.items():
        holds = Scope.CLASSIFY if scope == "old" else scope
        for rule, reply in ask(app, RULES, {"X-API-Key": key}).items():
            assert (reply.status_code not in REFUSED) == (RULES[rule] in {OPEN, ANY, holds}), (rule, scope, reply.text)
    for headers in ({}, {"X-API-Key": "sf_" + "A" * 43}):
        for rule, reply in ask(app, RULES, headers).items():
            assert (reply.status_code == 401) == (RULES[rule] != OPEN), (rule, reply.text)


@pytest.mark.who_may
def test_a_key_of_another_application_is_refused_wherever_an_application_is_named(service, tmp_path):
    file = tmp_path / "keys.json"
    key = add_key(file, "dogs", None, scopes=[*Scope], applications={"dogs": None})
    named = {rule for rule in RULES if "/applications/{name}" in rule}
    app = make_app(service, Settings(), KeyRing(file, time.monotonic))
    for rule, reply in ask(app, named, {"X-API-Key": key}).items():
        assert reply.status_code == 403, (rule, reply.text)


@pytest.mark.who_may
def test_a_key_for_one_application_learns_of_no_other(service, tmp_path):
    """Keys may be different customers': names, models and counts of what others use are not theirs."""
    file = tmp_path / "keys.json"
    key = add_key(file, "customer", None, scopes=[*Scope], applications={"dogs": None})
    app = make_app(service, Settings(), KeyRing(file, time.monotonic))
    rules = {rule: rule.replace("/applications/{name}", "/applications/dogs") for rule in RULES}
    replies = ask(app, rules.values(), {"X-API-Key": key})
    for rule, asked in rules.items():
        reply = replies[asked]
        assert "faces" not in reply.text.replace("names the application 'faces'", ""), rule
        of_all = rule == "GET /metrics" or (re.match("GET /v./models/{|POST ", rule) and "/applications/" not in rule)
        assert (reply.status_code == 403) == bool(of_all), (rule, reply.text)
    assert replies["GET /v1/applications"].json() == {"applications": []}
    assert replies["GET /v1/models"].json()["models"] == []


@pytest.mark.who_may
def test_without_keys_nobody_changes_the_registry_unless_it_is_open(service, tmp_path):
    for rule, reply in ask(make_app(service, Settings()), RULES).items():
        assert (reply.status_code in REFUSED) == (rule in CHANGES), (rule, reply.text)
        if rule in CHANGES:
            assert "--set open_registry=true" in reply.json()["detail"]
    assert open_registry(str(tmp_path / "registry")).applications() == ["faces"]
    for rule, reply in ask(make_app(service, Settings(open_registry=True)), RULES).items():
        assert reply.status_code not in REFUSED, (rule, reply.text)
    assert open_registry(str(tmp_path / "registry")).applications() == []


@pytest.mark.who_may
def test_a_key_that_was_made_before_operate_is_named_in_the_log_once(service, tmp_path, caplog):
    file = tmp_path / "keys.json"
    headers = {"X-API-Key": add_key(file, "driver", None)}
    app = make_app(service, Settings(), KeyRing(file, time.monotonic))
    with caplog.at_level(logging.WARNING, "serfer.api.app"):
        ask(app, [rule for rule, scope in RULES.items() if scope is Scope.OPERATE], headers)
    [line] = [record.getMessage() for record in caplog.records if record.name == "serfer.api.app"]
    assert "'driver'" in line
    assert "operate" in line
