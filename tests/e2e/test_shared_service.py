import json
import shutil
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

import serfer
from serfer.core.errors import UnavailableError, UsageError
from serfer.local.lambda_.access import random_access, send
from serfer.local.lambda_.added_functions import PLANS
from serfer.plan_directory import load_plan
from serfer.settings import access_setting
from serfer.wiring.local import local_concurrency
from tests.e2e.small import batch


@pytest.fixture(scope="module")
def plan(single):
    """A second plan, besides `lean`."""
    return single


def test_one_service_runs_the_functions_of_several_plans_for_all_clients(share, plan, lean, redis):
    service, shared = share(plan, lean, lean)
    for directory in (plan, lean):
        with serfer.open(directory) as own:
            expected = own.run(batch())
        with serfer.open(directory, workers="local", store=redis, settings=shared) as pipeline:
            np.testing.assert_allclose(pipeline.run(batch()), expected, atol=1e-4)
    assert service.environments >= 3  # a pipeline that closes leaves them to the others


def test_service_without_a_plans_functions_is_refused(share, plan, lean, redis):
    _, shared = share(lean)
    with pytest.raises(UnavailableError, match=r"SERFER_LOCAL_URL.* has no function serfer-small-"):
        serfer.open(plan, workers="local", store=redis, settings=shared)


def test_service_that_grows_gets_the_functions_of_plans_that_clients_open(share, plan, lean, redis):
    _, shared = share(lean, grows=True)
    with serfer.open(plan) as own:
        expected = own.run(batch())

    def opened(_):
        with serfer.open(plan, workers="local", store=redis, settings=shared) as pipeline:
            return pipeline.run(batch())

    with ThreadPoolExecutor(3) as clients:  # at the same time
        for answer in clients.map(opened, range(3)):
            np.testing.assert_allclose(answer, expected, atol=1e-4)


def test_a_driver_reckons_with_the_concurrency_of_the_service_that_all_share(share, settings, lean):
    shared = share(lean)[1].model_copy(update={"local_concurrency": 1})
    assert local_concurrency(shared) == settings.local_concurrency > 1
    assert local_concurrency(settings.model_copy(update={"local_concurrency": 1})) == 1


@pytest.mark.who_may
def test_what_is_not_a_whole_plan_is_not_added_and_not_by_strangers(share, lean, plan, tmp_path):
    service, _ = share(lean, grows=True)
    broken = tmp_path / "broken"
    shutil.copytree(plan, broken)
    for weights in broken.rglob("*.bin"):
        weights.write_bytes(b"\1" * weights.stat().st_size)

    def add(body, access=service.access):
        return send("POST", service.url, PLANS, access, 30.0, 10_000, body)

    for body in (b"", b"[]", b'{"directory": "plan"}', b'{"directory": "/a\\u0000b"}', b"[" * 9000, b"[" * 8000):
        assert add(body)[0] == 400, body[:40]
    for directory in (tmp_path / "none", broken):
        status, answer = add(json.dumps({"directory": str(directory)}).encode())
        assert (status, directory.name.encode() in answer) == (400, True), answer
    with pytest.raises(PermissionError):
        add(json.dumps({"directory": str(plan)}).encode(), random_access())
    names = json.loads(send("GET", service.url, "/2015-03-31/functions/", service.access, 30.0, 1 << 20)[1])
    assert {each["FunctionName"] for each in names["Functions"]} == {
        load_plan(lean).function(*part) for part in load_plan(lean).functions
    }


@pytest.mark.who_may
def test_credentials_of_another_service_are_refused(share, lean, redis):
    other = share(lean)[1].model_copy(update={"local_access": access_setting(random_access())})
    with pytest.raises(UnavailableError, match=r"SERFER_LOCAL_ACCESS: the Lambda service at .* refuses"):
        serfer.open(lean, workers="local", store=redis, settings=other)


def test_options_of_a_private_service_are_refused_on_a_shared_one(settings, lean, redis):
    unsigned = settings.model_copy(update={"local_url": "http://127.0.0.1:9"})
    with pytest.raises(UsageError, match="SERFER_LOCAL_URL needs SERFER_LOCAL_ACCESS"):
        serfer.open(lean, workers="local", store=redis, settings=unsigned)
    shared = unsigned.model_copy(update={"local_access": access_setting(random_access())})
    with pytest.raises(UsageError, match="SERFER_LOCAL_URL needs --store"):
        serfer.open(lean, workers="local", settings=shared)


def test_address_that_is_not_a_lambda_service_is_refused(settings, lean, redis):
    def opened(url):
        known = {"local_url": url, "local_access": access_setting(random_access())}
        serfer.open(lean, workers="local", store=redis, settings=settings.model_copy(update=known))

    with socket.create_server(("127.0.0.1", 0)) as other:
        url = f"http://127.0.0.1:{other.getsockname()[1]}"
    with pytest.raises(UnavailableError, match="SERFER_LOCAL_URL: no Lambda service answers at"):
        opened(url)
    with pytest.raises(UnavailableError, match=r"SERFER_LOCAL_URL: .* is not an address"):
        opened("http://127.0.0.1:99999999")
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(UnavailableError, match=r"SERFER_LOCAL_URL: .* is not a local Lambda service"):
            opened(f"http://127.0.0.1:{server.server_port}")
        thread.join()
