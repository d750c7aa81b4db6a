"""An instance over HTTP: batches, refusals, deadlines and clients that go, with a network that waits for the test."""

import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from tritonclient.http import InferenceServerClient
from tritonclient.utils import InferenceServerException

from serfer.api.admission import Admission
from serfer.api.app import make_app
from serfer.api.service import Service
from serfer.control.batching import Profile
from serfer.settings import Settings
from tests.e2e.conftest import eventually
from tests.e2e.small import batch
from tests.instance.conftest import PATIENCE, QUICK
from tests.support.served import Observed, running
from tests.support.tensors import plain, triton_input

INFER = "/v2/models/small/infer"


@pytest.fixture
def profile():
    """What the engine believes of its speed."""
    return QUICK


@pytest.fixture
def served(engine_of, pipeline_of, profile):
    """Serve an engine; yields its URL and the engine."""
    engine = engine_of(profile=profile)
    service = Service({"small": pipeline_of(engine).asynchronous}, Admission(100, 0), Observed())
    with running(make_app(service, Settings())) as url:
        yield url, engine


def ask(url, images, **parameters):
    return httpx.post(url + INFER, json=plain(images, parameters=parameters), timeout=PATIENCE)


@pytest.mark.parametrize("profile", [Profile(((1, 1_000_000.0),))])
def test_a_predicted_deadline_miss_is_429_with_retry_after(served, network):
    url, engine = served
    timeout = 1_500_000_000  # microseconds: an image takes 1,000 s, and one is being computed
    with ThreadPoolExecutor(1) as pool, InferenceServerClient(url.removeprefix("http://")) as triton:
        with network.held():
            first = pool.submit(ask, url, batch())
            network.wait()
            refused = ask(url, batch(), timeout=timeout)
            assert (refused.status_code, "too much to do" in refused.json()["error"]) == (429, True)
            assert 100 <= int(refused.headers["retry-after"]) <= 500
            with pytest.raises(InferenceServerException, match="too much to do"):
                triton.infer("small", triton_input(batch()), timeout=timeout)
        assert first.result().status_code == 200
    assert (engine.counts.refused, network.sizes) == (2, [1])


def test_a_disconnected_clients_query_leaves_the_queue(served, network):
    url, engine = served
    with ThreadPoolExecutor(2) as pool:
        with network.held():
            first = pool.submit(ask, url, batch())
            network.wait()
            gone = threading.Event()

            def leave():
                with (
                    httpx.Client(timeout=httpx.Timeout(PATIENCE, read=0.2)) as client,
                    pytest.raises(httpx.ReadTimeout),
                ):
                    client.post(url + INFER, json=plain(batch(2)))
                gone.set()

            leaving = pool.submit(leave)
            eventually(lambda: engine.waiting == 2, "it waits")
            eventually(lambda: gone.is_set() and engine.waiting == 0, "it is gone from the queue")
            leaving.result()
        assert first.result().status_code == 200
    assert network.sizes == [1]


def test_an_engine_that_fails_is_not_ready_until_it_computes_again(served, network):
    url, engine = served
    network.error = RuntimeError("no kernel image")
    failed = ask(url, batch())
    assert (failed.status_code, "no kernel image" in failed.text) == (503, False)
    with httpx.Client(base_url=url, timeout=PATIENCE) as http:
        eventually(lambda: http.get("/v2/health/ready").status_code == 503, "it says so")
        network.error = None
        eventually(lambda: http.get("/v2/health/ready").status_code == 200, "it recovers by itself")
    assert engine.trouble == ""
