"""Queries of an application over HTTP: objectives in, the variant that answered and the reason out."""

import shutil
import time
from contextlib import contextmanager
from dataclasses import replace

import httpx
import pytest

import serfer
from serfer.api.app import make_app
from serfer.api.auth.keys import KeyRing, Scope, add_key
from serfer.core.variants import Objectives
from serfer.registry import open_registry
from serfer.settings import Settings
from tests.applications.services import faces, open_service
from tests.applications.worlds import register, version
from tests.e2e.conftest import eventually
from tests.support.served import Observed, asking, png, running


@pytest.fixture(scope="module")
def registry_url(tmp_path_factory):
    return faces(tmp_path_factory.mktemp("registry"))


def serving(registry_url, cache, forks, **more):
    return asking(make_app(open_service(registry_url, cache, forks), Settings(), **more))


@pytest.fixture
def http(registry_url, tmp_path, forks):
    with serving(registry_url, tmp_path, forks) as client:
        yield client


@pytest.fixture(scope="module")
def shared(registry_url, tmp_path_factory, forks):
    """A service for the tests to which it is the same what was asked before."""
    with serving(registry_url, tmp_path_factory.mktemp("shared"), forks) as client:
        yield client


def classify(http, query="", **headers):
    return http.post(f"/v1/classify{query}", files={"image": png()}, headers=headers)


def test_a_query_without_objectives_is_answered_by_the_cheapest_active_variant(http):
    reply = classify(http)
    assert reply.status_code == 200, reply.text
    selected = reply.json()["selected"]
    assert selected["variant"] == "small.whole"
    assert (selected["application"], selected["release"], selected["missed"]) == ("faces", 2, {})
    assert classify(http, "?application=faces").json()["selected"]["reason"].startswith("the cheapest active")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("min_accuracy=0.9", "other.whole"),
        ("variant=small.tiles", "small.tiles"),
        ("network=other", "other.whole"),
        ("max_cost_usd=0.00001", "small.whole"),
    ],
)
def test_objectives_select_the_variant(shared, query, expected):
    reply = classify(shared, f"?application=faces&{query}")
    assert reply.status_code == 200, reply.text
    assert reply.json()["selected"]["variant"] == expected


def test_objectives_that_no_variant_meets_get_the_nearest_and_by_how_much_it_misses(http):
    selected = classify(http, "?latency_ms=10").json()["selected"]
    assert selected["reason"].startswith("no variant meets")
    assert selected["missed"]["latency_ms"] > 0
    assert classify(http, "?max_cost_usd=1e-12").json()["selected"]["missed"]["max_cost_usd"] == pytest.approx(1e-5)
    assert classify(http, "?max_cost_usd=0.0000099999999").json()["selected"]["missed"]["max_cost_usd"] > 0


@pytest.mark.parametrize(
    ("query", "status", "words"),
    [
        ("application=dogs", 404, "dogs"),
        ("application=faces&variant=small.none", 422, "small.none"),
        ("application=faces&network=none", 422, "none"),
        ("latency_ms=nan", 422, "latency_ms"),
        ("min_accuracy=70", 422, "min_accuracy"),
        ("min_accuracy=0.999&strict=true", 422, "min_accuracy"),
        ("max_cost_usd=-1", 422, "max_cost_usd"),
        ("application=a/b", 422, "application"),
        ("model=small", 404, "small"),
    ],
)
def test_what_cannot_be_asked_is_refused_by_name(shared, query, status, words):
    reply = classify(shared, f"?{query}")
    assert reply.status_code == status, reply.text
    assert words in reply.json()["detail"]


def test_the_client_asks_for_objectives(http):
    with serfer.Client(str(http.base_url)) as client:
        report = client.classify(png(), application="faces", objectives=Objectives(min_accuracy=0.9, strict=True))
        job = client.submit(png(), objectives=Objectives(variant="small.tiles"))
        later = job.result()
    assert report.selected.variant == "other.whole"
    assert later.selected.variant == "small.tiles"
    assert len(later.timeline.tasks) > 4


def test_applications_and_their_variants_are_listed(http):
    assert classify(http, "?variant=small.tiles").status_code == 200
    [listed] = http.get("/v1/applications").json()["applications"]
    assert (listed["name"], listed["networks"], listed["variants"]) == ("faces", {"small": 1, "other": 1}, 3)
    detail = http.get("/v1/applications/faces").json()
    assert [row["name"] for row in detail["table"]] == ["small.whole", "small.tiles", "other.whole"]
    rows = {row["name"]: row for row in detail["table"]}
    assert rows["small.tiles"]["open"]
    assert not rows["other.whole"]["open"]
    assert rows["other.whole"]["accuracy"]["low"] == pytest.approx(0.9455, abs=1e-4)
    assert rows["other.whole"]["latency_ms"] == {"value": 70.0, "source": "predicted"}
    assert http.get("/v1/applications/dogs").status_code == 404


def test_an_open_variants_plan_is_described_and_not_listed(http, registry_url):
    named = "/v1/models/faces:small.tiles"
    assert http.get(named).status_code == 404
    assert classify(http, "?variant=small.tiles").status_code == 200
    plan = http.get(named).raise_for_status().json()
    assert (plan["name"], plan["default"], plan["tasks"]) == ("faces:small.tiles", False, 9)
    assert plan["plan"] == open_registry(registry_url).application("faces").networks[0].variants[0].plan
    assert [stage["tasks"] for stage in plan["stages"]] == [4, 4, 1]
    assert http.get("/v1/models").json()["models"] == []


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("faces:other.whole", "not open"),
        ("faces:none", "GET /v1/applications/faces"),
        ("faces:", "no variant ''"),
        ("faces", "no variant ''"),
        ("dogs:small.tiles", "no model"),
    ],
)
def test_what_is_not_an_open_variant_has_no_plan_to_describe(http, name, words):
    reply = http.get(f"/v1/models/{name}")
    assert (reply.status_code, reply.headers["content-type"]) == (404, "application/problem+json")
    assert words in reply.json()["detail"]


class Retiring(Observed):
    """Has every variant closed as soon as a query was answered, as when it is retired meanwhile."""

    def answered(self, model, answered):
        super().answered(model, answered)
        self.pipelines.keep(())


@pytest.mark.parametrize("later", [False, True])
def test_a_variant_that_is_retired_during_a_query_still_answers_it(registry_url, tmp_path, forks, later):
    observer = Retiring()
    service = open_service(registry_url, tmp_path, forks, observer=observer)
    observer.pipelines = service.applications.pipelines
    with running(make_app(service, Settings())) as url, serfer.Client(url) as client:
        job = client.submit(png(), application="faces") if later else None
        assert (job.result() if job else client.classify(png())).selected.variant == "small.whole"
        assert httpx.get(f"{url}/v1/models/faces:small.whole").status_code == 404


def test_the_same_key_with_other_objectives_is_another_request(shared):
    headers = {"Idempotency-Key": "once"}
    assert classify(shared, "?min_accuracy=0.9", **headers).status_code == 200
    assert classify(shared, "?min_accuracy=0.9", **headers).headers["idempotent-replayed"] == "true"
    assert classify(shared, "?min_accuracy=0.8", **headers).status_code == 422


def test_models_beside_applications_are_what_a_query_without_a_name_means(registry_url, small_plan, tmp_path, forks):
    pipeline = serfer.open(small_plan, store="memory://", workers="inprocess")
    app = make_app(open_service(registry_url, tmp_path, forks, {"small": pipeline.asynchronous}), Settings())
    with asking(app) as client:
        assert "selected" not in classify(client).json()
        assert classify(client, "?application=faces").json()["selected"]["variant"] == "small.whole"
        assert classify(client, "?model=small&application=faces").status_code == 422
        assert [model["name"] for model in client.get("/v1/models").json()["models"]] == ["small"]
        assert infer(client, "small").status_code == 200
        assert infer(client, "small", latency_ms=5.0).status_code == 400  # a model has no objectives


INPUTS = [{"name": "image", "datatype": "UINT8", "shape": [1, 34, 34, 3], "data": [7] * (34 * 34 * 3)}]


def infer(http, name="faces", **parameters):
    return http.post(f"/v2/models/{name}/infer", json={"inputs": INPUTS, "parameters": parameters})


def test_the_inference_protocol_asks_an_application_for_objectives(http):
    reply = infer(http, variant="small.tiles")
    assert reply.status_code == 200, reply.text
    body = reply.json()
    assert (body["model_name"], body["parameters"]["variant"]) == ("faces", "small.tiles")
    assert infer(http, "faces:other", latency_ms=5000.0).json()["parameters"]["variant"] == "other.whole"
    assert http.get("/v2/models/faces").json()["inputs"][1]["shape"] == [-1, 34, 34, 3]
    assert http.get("/v2/models/faces:other/ready").status_code == 200
    assert [entry["name"] for entry in http.post("/v2/repository/index").json()] == ["faces"]


@pytest.mark.parametrize(
    ("name", "output"), [("faces", "logits"), ("faces:small", "logits"), ("faces:other", "scores")]
)
def test_an_output_has_the_name_that_its_networks_file_has(shared, name, output):
    described, answered = shared.get(f"/v2/models/{name}").json(), infer(shared, name).json()
    assert [[tensor["name"] for tensor in said["outputs"]] for said in (described, answered)] == [[output]] * 2


@pytest.mark.parametrize(
    ("name", "parameters", "status"),
    [
        ("faces:none", {}, 404),
        ("dogs", {}, 404),
        ("faces", {"min_accuracy": 0.99, "strict": True}, 422),
        ("faces", {"latency_ms": -1}, 400),
        ("faces", {"variant": "other.whole"}, 422),
    ],
)
def test_the_inference_protocol_refuses_what_cannot_be_asked(shared, name, parameters, status):
    reply = infer(shared, name, **parameters)
    assert reply.status_code == status, reply.text
    assert reply.json()["error"]


def changeable(registry_url, folder):
    shutil.copytree(registry_url, folder / "own")
    registry = open_registry(str(folder / "own"))
    only = next(each for each in registry.application("faces").networks if each.network == "other").variants[0]
    register(registry, "faces", version("other", 2, replace(only, name="other.v2")))
    return registry


@contextmanager
def by_keys(registry, folder, forks):
    """Serve a registry to those who have keys; yields a request by the key of a name."""
    file = folder / "keys.json"
    keys = {
        "asker": add_key(file, "asker", None),
        "ops": add_key(file, "ops", None, scopes=[Scope.CLASSIFY, Scope.PROMOTE, Scope.DELETE]),
        "dogs": add_key(file, "dogs", None, scopes=[Scope.CLASSIFY, Scope.PROMOTE], applications={"dogs": None}),
        "promoter": add_key(file, "promoter", None, scopes=[Scope.PROMOTE]),
        "phone": add_key(file, "phone", None, applications={"faces": 2}),
        "walker": add_key(file, "walker", None, applications={"dogs": None}),
    }
    with serving(str(registry), folder / "cache", forks, keys=KeyRing(file, time.monotonic)) as client:

        def post(name, path, **body):
            at = path if path.startswith("/") else f"/v1/applications/faces/{path}"
            return client.post(at, json=body, headers={"X-API-Key": keys[name]})

        post.client, post.keys, post.registry = client, keys, registry
        post.get = lambda name, path: client.get(path, headers={"X-API-Key": keys[name]})
        yield post


@pytest.fixture
def keyed(registry_url, tmp_path, forks):
    with by_keys(changeable(registry_url, tmp_path), tmp_path, forks) as post:
        yield post


@pytest.fixture(scope="module")
def guarded(registry_url, tmp_path_factory, forks):
    """A service with keys of which nothing that is asked changes anything."""
    folder = tmp_path_factory.mktemp("guarded")
    with by_keys(changeable(registry_url, folder), folder, forks) as post:
        yield post


def test_a_deleted_application_is_not_found_until_it_is_restored(keyed):
    def delete():
        return keyed.client.delete("/v1/applications/faces", headers={"X-API-Key": keyed.keys["ops"]})

    version = next(keyed.registry.history("faces")).version
    assert delete().status_code == 204
    for path in ("/v1/classify?application=faces", "/v2/models/faces/infer"):
        reply = keyed.client.post(path, files={"image": png()}, headers={"X-API-Key": keyed.keys["asker"]})
        assert (reply.status_code, "serfer app restore" in reply.text) == (404, True), reply.text
    assert keyed.get("asker", "/v1/applications").json() == {"applications": []}
    assert delete().status_code == 404
    keyed.registry.restore("faces", version)
    eventually(lambda: keyed.get("asker", "/v1/applications/faces").status_code == 200, "it is restored")


def test_who_may_promotes_tries_out_rolls_back_and_retires(keyed):
    assert keyed("ops", "canary", networks={"other": 2}, share=0.5).json()["canary"]["networks"]["other"] == 2
    assert keyed("ops", "canary", networks={"other": 2}).status_code == 422
    promoted = keyed("ops", "promote", why="better").json()
    assert (promoted["release"], promoted["networks"], promoted["canary"]) == (3, {"small": 1, "other": 2}, None)
    record = keyed.registry.application("faces")
    assert (record.live_release.by, record.live_release.why) == ("ops", "better")
    assert keyed("ops", "rollback").json()["networks"]["other"] == 1
    assert keyed("ops", "retire", network="other", version=2).status_code == 200
    assert keyed("ops", "retire", network="other", version=1).status_code == 422


@pytest.mark.parametrize(
    ("name", "path", "body", "status"),
    [
        ("asker", "promote", {"networks": {"other": 2}}, 403),
        ("dogs", "promote", {"networks": {"other": 2}}, 403),
        ("ops", "promote", {"networks": {"other": 9}}, 422),
        ("ops", "promote", {"networks": {"a/b": 1}}, 422),
        ("ops", "canary", {}, 422),
        ("ops", "canary", {"networks": {"other": 2}, "share": 2}, 422),
        ("ops", "promote", {"network": "other"}, 422),
    ],
)
def test_who_may_not_and_what_cannot_be_changes_nothing(guarded, name, path, body, status):
    before = guarded.registry.application("faces")
    assert guarded(name, path, **body).status_code == status
    assert guarded.registry.application("faces") == before


@pytest.mark.parametrize("name", ["faces", "faces:small", "faces:none", "none"])
def test_a_key_for_another_application_cannot_ask_by_the_inference_protocol_whatever_the_query_names(guarded, name):
    assert guarded("walker", f"/v2/models/{name}/infer?application=dogs", inputs=INPUTS).status_code == 403


def test_a_key_for_an_application_asks_it_by_the_inference_protocol_within_its_quota(keyed):
    statuses = [
        keyed("phone", f"/v2/models/{name}/infer", inputs=INPUTS).status_code for name in ("faces", "faces:small")
    ]
    assert statuses == [200, 200]
    assert keyed("phone", "/v2/models/faces/infer", inputs=INPUTS).status_code == 429


@pytest.mark.parametrize(
    ("name", "path", "status"),
    [
        ("asker", "/v1/applications/faces", 200),
        ("ops", "/v1/applications/faces", 200),
        ("dogs", "/v1/applications/faces", 403),
        ("dogs", "/v1/models/faces:small.whole", 403),
        ("dogs", "/v2/models/faces", 403),
        ("promoter", "/v1/applications/faces", 200),
        ("promoter", "/v2/models/faces", 403),
    ],
)
def test_keys_look_at_their_applications_alone(guarded, name, path, status):
    assert guarded.get(name, path).status_code == status


def test_a_variant_that_was_altered_in_the_cache_is_fetched_anew(registry_url, tmp_path, forks):
    for _ in range(2):
        with serving(registry_url, tmp_path, forks) as client:
            assert classify(client).json()["selected"]["variant"] == "small.whole"
        files = [*(tmp_path / "variants").rglob("*.bin")]
        assert files
        for file in files:
            file.write_bytes(bytes(file.stat().st_size))
    assert [path for path in (tmp_path / "variants").glob(".*") if path.suffix != ".lock"] == []
