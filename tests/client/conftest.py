import httpx
import pytest

from serfer import AsyncClient, Client
from tests.client.test_client import KEY, Service, Time, Waited


@pytest.fixture
def time():
    return Time()


@pytest.fixture(params=["sync", "async"])
def open_client(request, time):
    """Open a client of a service that gives these answers, and return both."""

    def make(*answers, **options):
        service = Service(time, *answers)
        chosen = {"transport": httpx.MockTransport(service), "clock": time.clock(), "api_key": KEY, **options}
        if request.param == "sync":
            return Client("http://serfer.test/prod", sleep=time.wait, **chosen), service
        return Waited(AsyncClient("http://serfer.test/prod", sleep=time.await_, **chosen)), service

    return make
