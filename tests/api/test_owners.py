"""Owners: what a key has left behind, results, outputs, chunks, answers and jobs, is as absent to others as none."""

import re
import time

import pytest

import serfer
from serfer.api.app import make_app
from serfer.api.auth.keys import KeyRing, add_key
from serfer.api.jobs.offline import JobImages, OfflineJobs
from serfer.control.throttle import OnlineLoad
from serfer.registry import open_registry
from serfer.settings import Settings
from serfer.storage import open_store
from tests.api.kept import put_result
from tests.api.test_kept import ABSENT, OUTPUTS, SCORES, loaded, owner
from tests.api.test_who_may import RULES
from tests.applications.services import open_service
from tests.applications.worlds import register, variant, version
from tests.support.served import PATIENCE, PNG, asking, png

EVERYBODYS = {"name", "model", "version"}  # parameters of paths that name what all keys have
OWNED = {rule for rule in RULES if set(re.findall(r"\{(\w+)", rule)) - EVERYBODYS}
KEPT, ANSWERS, JOBS = "/v2/results/{result_id}", "/v1/results/{result_id}", "/v1/jobs/{job}"
PATHS = {"zarr/{path:path}": ("zarr/zarr.json", "zarr/0/c/0/0/0/0", "zarr/x"), "{name:path}": ("scores", "nonsense")}


@pytest.fixture
def world(small_plan, forks, tmp_path):
    """A client of a driver of a model and an application, which keeps results and has jobs; keys; its results."""
    register(open_registry(str(tmp_path / "registry")), "faces", version("net", 1, variant("net.1")))
    (tmp_path / "june").mkdir()
    (tmp_path / "june" / "a.png").write_bytes(png())
    file = tmp_path / "keys.json"
    names = {"phone": None, "tablet": None, "customer": {"faces": None}}
    keys = {name: {"X-API-Key": add_key(file, name, None, applications=of)} for name, of in names.items()}
    with serfer.open(small_plan, store="memory://", workers="inprocess") as small, open_store("memory://") as jobs:
        models = {"small": small.asynchronous}
        service = open_service(str(tmp_path / "registry"), tmp_path / "cache", forks, models, opened=False)
        service.results = open_store("memory://")
        images = JobImages(str(tmp_path))
        service.jobs = OfflineJobs(jobs, 600.0, images, lambda: OnlineLoad("it", 0.0), period_s=0.05)
        with asking(make_app(service, Settings(), KeyRing(file, time.monotonic))) as http:
            yield http, keys, service.results


def requests_of(rule, place):
    """Return the requests of a rule for a place: one for each kind of thing that may lie below it."""
    method, path = rule.split(" ")
    below = path.partition("}")[2]
    for pattern, names in PATHS.items():
        if below.endswith(pattern):
            return [(method, place + below.replace(pattern, name)) for name in names]
    return [(method, place + below)]


@pytest.mark.who_may
def test_what_a_key_left_is_as_absent_as_none_to_others(world):
    http, keys, store = world
    phone, tablet, customer = keys.values()
    later = {**PNG, **phone, "Prefer": "respond-async"}
    answer = http.post("/v1/classify", content=png(), headers=later).headers["Location"]
    job = http.post("/v1/jobs?images=june", headers=phone).headers["Location"]
    http.headers.update(phone)
    places = {KEPT: f"/v2/results/{put_result(store, OUTPUTS, owner=owner('phone')).id}", ANSWERS: answer, JOBS: job}
    until_done(http, answer, "status")
    until_done(http, job, "state")
    asked = set()
    for rule in sorted(OWNED, reverse=True):  # GET before DELETE, which deletes nothing
        [place] = [place for place in places if rule.partition(" ")[2].startswith(place)]
        absent = requests_of(rule, re.sub(r"\{.*", ABSENT, place))
        for (method, path), (_, none) in zip(requests_of(rule, places[place]), absent, strict=True):
            for other in (tablet, customer):
                replies = [http.request(method, where, headers=other) for where in (path, none)]
                assert [reply.status_code for reply in replies] == [404, 404], (method, path)
                assert unnamed(replies[0]) == unnamed(replies[1])
                assert {*replies[0].headers} == {*replies[1].headers}
            assert http.request(method, path, headers={"X-API-Key": "sf_" + "A" * 43}).status_code == 401
        asked.add(rule)
    assert asked == OWNED
    below = (f"{job}/results", f"{places[KEPT]}/outputs/scores", f"{places[KEPT]}/zarr/zarr.json")
    assert {http.get(path).status_code for path in (*places.values(), *below)} == {200}
    assert [http.delete(path).status_code for path in places.values()] == [204, 204, 204]


def until_done(http, location, field):
    deadline = time.monotonic() + PATIENCE
    while (state := http.get(location).json()[field]) != "done":
        assert time.monotonic() < deadline, state


def unnamed(reply):
    """Return what a refusal says, without what differs in any two: its request's id."""
    return re.sub(r'"request_id": ?"[^"]*"', "", reply.text)


@pytest.mark.who_may
def test_an_idempotency_key_means_nothing_to_other_api_keys(world):
    http, keys, _ = world
    phone, tablet, _ = keys.values()
    headers = {**PNG, "Idempotency-Key": "1"}
    replies = [http.post("/v1/classify", content=png(), headers={**headers, **key}) for key in (phone, phone, tablet)]
    assert ["Idempotent-Replayed" in reply.headers for reply in replies] == [False, True, False]
    assert http.post("/v1/classify", content=png(seed=1), headers={**headers, **phone}).status_code == 422
    headers |= {"Idempotency-Key": "2", "Prefer": "respond-async"}
    later = [http.post("/v1/classify", content=png(), headers={**headers, **key}) for key in (phone, phone, tablet)]
    assert len({reply.json()["id"] for reply in later}) == 2


@pytest.mark.who_may
def test_a_key_for_one_application_reads_the_outputs_of_its_own_results(world):
    http, keys, store = world
    http.headers.update(keys["customer"])
    place = f"/v2/results/{put_result(store, OUTPUTS, owner=owner('customer')).id}"
    assert (loaded(http.get(f"{place}/outputs/scores")) == SCORES).all()
    assert http.head(f"{place}/outputs/head%2Fclasses").status_code == 200
    assert [http.get(place + more).status_code for more in ("", "/zarr/zarr.json", "/zarr/0/c/0/0/0/0")] == [200] * 3
    assert http.delete(place).status_code == 204
