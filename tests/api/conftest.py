import json

import httpx
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

import serfer
from serfer.api.app import make_app
from serfer.api.decoding.fork_server import ForkServer
from serfer.api.observability.metrics import Metrics
from serfer.api.observability.telemetry import Telemetry, Tracing
from serfer.settings import Settings
from tests.api.logged import logged
from tests.e2e.small import split_small
from tests.support.served import PATIENCE, Observed, running, served, service_of


@pytest.fixture(scope="session")
def small_plan(tmp_path_factory):
    """Four tiles, four tiles, one."""
    return split_small(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def forks():
    """The process that image decoders are forked from: one for all services of the tests, as its imports take time."""
    server = ForkServer()
    server.launch()  # here, not with the first image: it is the session's, and no file's
    yield server
    server.close()


@pytest.fixture
def observed():
    return Observed()


@pytest.fixture
def settings():
    return Settings()


@pytest.fixture
def service(small_plan, observed, forks):
    """One model, "small", with workers in this process; the application closes it."""
    with service_of({"small": small_plan}, forks=forks, observed=observed) as service:
        yield service


@pytest.fixture
def app(service, settings, observed):
    return make_app(service, settings, telemetry=observed if isinstance(observed, Telemetry) else None)


@pytest.fixture
def metrics():
    return Metrics({"small": "digest"})


@pytest.fixture
def stream():
    with logged() as stream:
        yield stream


@pytest.fixture
def lines(stream):
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.fixture
def exporter():
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter):
    """Tracing whose spans the exporter gets."""
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Tracing(provider)


@pytest.fixture
def url(app):
    with running(app) as url:
        yield url


@pytest.fixture
def http(url):
    with httpx.Client(base_url=url, timeout=PATIENCE) as client:
        yield client


@pytest.fixture
def client(url):
    with serfer.Client(url, timeout_s=PATIENCE) as client:
        yield client


@pytest.fixture(scope="module")
def lasting_url(small_plan, forks):
    """The URL of a file's own service, for tests that change nothing of it."""
    with served({"small": small_plan}, forks=forks) as url:
        yield url


@pytest.fixture
def lasting_http(lasting_url):
    with httpx.Client(base_url=lasting_url, timeout=PATIENCE) as client:
        yield client
