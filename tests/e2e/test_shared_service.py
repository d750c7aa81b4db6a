import socket
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

import serfer
from serfer.core.errors import UnavailableError, UsageError
from serfer.local.lambda_.access import random_access
from serfer.local.lambda_.faults import Faults
from serfer.pipeline.event_loop import LoopThread
from serfer.plan_directory import load_plan
from serfer.settings import access_setting
from serfer.wiring.local import local_service, start_service
from tests.e2e.small import batch


@pytest.fixture
def serve(settings, redis):
    """Start a Lambda service with the functions of several plan directories, and return it."""
    loop, services = LoopThread(), []

    def start(*directories):
        service = local_service([(load_plan(path), path) for path in directories], redis, settings)
        services.append(service)
        loop.wait(start_service(service))
        return service

    yield start
    for service in services:
        loop.wait(service.stop())
    loop.close()


def sharing(settings, service):
    """Return settings that use a service that runs already."""
    return settings.model_copy(update={"local_url": service.url, "local_access": access_setting(service.access)})


def test_one_service_runs_the_functions_of_several_plans_for_all_clients(serve, settings, plan, lean, redis):
    service = serve(plan, lean, lean)
    shared = sharing(settings, service)
    for directory in (plan, lean):
        with serfer.open(directory) as own:
            expected = own.run(batch())
        with serfer.open(directory, workers="local", store=redis, settings=shared) as pipeline:
            np.testing.assert_allclose(pipeline.run(batch()), expected, atol=1e-4)
    assert service.environments >= 3  # a pipeline that closes leaves them to the others


def test_service_without_a_plans_functions_is_refused(serve, settings, plan, lean, redis):
    shared = sharing(settings, serve(lean))
    with pytest.raises(UnavailableError, match=r"SERFER_LOCAL_URL.* has no function serfer-small-"):
        serfer.open(plan, workers="local", store=redis, settings=shared)


def test_credentials_of_another_service_are_refused(serve, settings, lean, redis):
    other = settings.model_copy(update={"local_url": serve(lean).url, "local_access": access_setting(random_access())})
    with pytest.raises(UnavailableError, match=r"SERFER_LOCAL_ACCESS: the Lambda service at .* refuses"):
        serfer.open(lean, workers="local", store=redis, settings=other)


def test_options_of_a_private_service_are_refused_on_a_shared_one(settings, lean, redis):
    unsigned = settings.model_copy(update={"local_url": "http://127.0.0.1:9"})
    with pytest.raises(UsageError, match="SERFER_LOCAL_URL needs SERFER_LOCAL_ACCESS"):
        serfer.open(lean, workers="local", store=redis, settings=unsigned)
    shared = unsigned.model_copy(update={"local_access": access_setting(random_access())})
    with pytest.raises(UsageError, match="SERFER_LOCAL_URL needs --store"):
        serfer.open(lean, workers="local", settings=shared)
    with pytest.raises(UsageError, match="unset SERFER_LOCAL_URL"):
        serfer.open(lean, workers="local", store=redis, faults=Faults(), settings=shared)


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
