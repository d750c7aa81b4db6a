from contextlib import nullcontext

import pytest

from serfer.api.app import make_app
from serfer.api.entrypoints.opening import Address
from serfer.cli.balanced import _hosts
from serfer.settings import Settings
from tests.support.served import PNG, Observed, asking, png, service_of


@pytest.fixture(scope="module")
def opened(small_plan, forks):
    with service_of({"small": small_plan}, forks=forks) as service:
        yield service
        service.decoders.end()


@pytest.fixture
def observed(opened):
    """Those who were answered in this test alone."""
    opened._observer = Observed()
    return opened._observer


@pytest.fixture(scope="module")
def http(opened):
    with client(opened, "127.0.0.1", "photos.example", allow_hosts=("photos.example",)) as http:
        yield http


@pytest.fixture(scope="module")
def anywhere(opened):
    with client(opened, "0.0.0.0") as http:  # noqa: S104 - a name
        yield http


def client(service, *hosts, **settings):
    """Keep an application's lifespan from ending: it would close the service, which several share."""
    app = make_app(service, Settings(**settings), hosts=hosts)
    app.router.lifespan_context = lambda _: nullcontext()
    return asking(app)


@pytest.mark.who_may
@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "127.9.9.9", "[::1]:8000", "photos.example", "Photos.Example.:80"],
)
def test_answers_to_this_machines_names_and_to_those_that_were_allowed(http, host):
    assert http.get("/v1/models", headers={"Host": host}).status_code == 200


@pytest.mark.who_may
@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example", "evil.example:8000", "10.0.0.5", "a@b", "[::1", "1.2.3.4, x"]
)
def test_a_name_that_was_pointed_at_this_machine_reads_and_spends_nothing(http, observed, host):
    """DNS rebinding: the browser connects here, and says in Host which site it believes this to be."""
    for response in (
        http.get("/v1/models", headers={"Host": host}),
        http.post("/v1/classify", content=png(), headers={**PNG, "Host": host}),
    ):
        assert response.status_code == 403
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["type"] == "urn:serfer:problem:host"
        assert "--set allow_host=" in response.json()["detail"]
        assert "SERFER_ALLOW_HOSTS" in response.json()["detail"]
    assert observed.answers == []


@pytest.mark.who_may
@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1.evil.example", "http://10.0.0.5"])
def test_a_form_of_another_sites_page_spends_nothing(http, observed, origin):
    """A multipart form is sent without asking first (CORS preflight), and its answer is merely not shown."""
    response = http.post("/v1/classify", files={"image": png()}, headers={"Origin": origin})
    assert (response.status_code, observed.answers) == (403, [])
    assert "Origin" in response.json()["detail"]


@pytest.mark.who_may
@pytest.mark.parametrize(
    ("host", "origin", "status"),
    [
        ("localhost:8000", "http://localhost:8000", 200),
        ("[::1]:8000", "http://[::1]:8000", 200),
        ("LOCALHOST.", "http://localhost:80", 200),
        ("127.0.0.1", "https://127.0.0.1:443", 200),  # behind a proxy that takes TLS off
        ("localhost:8000", "https://photos.example", 200),  # behind one that names itself as Host
        ("localhost:8000", "http://photos.example:3000", 200),
        ("localhost:8000", "http://localhost:3000", 403),
        ("localhost:8000", "http://localhost", 403),
        ("localhost:8000", "http://127.0.0.1:8000", 403),
        ("127.0.0.1", "http://127.0.0.1:1", 403),
        ("127.0.0.1:443", "http://127.0.0.1", 403),
        ("localhost", "localhost", 403),
        ("localhost", "http://localhost:99999", 403),
        ("", "http://", 403),
    ],
)
def test_the_services_own_page_and_those_of_allowed_hosts_may_ask(http, observed, host, origin, status):
    reply = http.post("/v1/classify", files={"image": png()}, headers={"Host": host, "Origin": origin})
    assert (reply.status_code, len(observed.answers)) == (status, int(status == 200))
    assert status == 200 or "--set allow_host=" in reply.json()["detail"]


@pytest.mark.who_may
def test_a_loopback_name_that_is_allowed_may_ask_from_any_port(opened):
    with client(opened, "127.0.0.1", allow_hosts=("localhost",)) as http:
        headers = {"Host": "127.0.0.1:8000", "Origin": "http://localhost:3000"}
        assert http.post("/v1/classify", files={"image": png()}, headers=headers).status_code == 200


@pytest.mark.who_may
@pytest.mark.parametrize("name", ["10.0.0.5", "[fd00::1]", "photos.example"])
@pytest.mark.parametrize(("port", "status"), [(8000, 200), (3000, 403), (80, 403)])
def test_a_page_of_a_host_behind_the_balancer_is_of_its_port(opened, name, port, status):
    hosts = _hosts(Address(name.strip("[]"), 8000), Settings(allow_hosts=("other.example",)))
    with client(opened, "127.0.0.1", *hosts, allow_hosts=hosts) as http:
        for headers in ({"Host": f"{name}:8000"}, {"Host": "localhost:8000"}):
            for page, expected in ((name, status), ("other.example", 200)):
                origin = {"Origin": f"http://{page}:{port}"}
                assert http.get("/v1/models", headers={**headers, **origin}).status_code == expected


@pytest.mark.who_may
@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"])
def test_balancers_and_scrapers_ask_under_any_name(http, path):
    assert http.get(path, headers={"Host": "10.1.2.3:8000"}).status_code == 200


@pytest.mark.who_may
def test_a_refusal_of_the_inference_protocol_is_in_its_words(http):
    response = http.get("/v2/models/small", headers={"Host": "evil.example"})
    assert (response.status_code, list(response.json())) == (403, ["error"])


class TestAllAddresses:
    @pytest.mark.who_may
    @pytest.mark.parametrize("host", ["10.0.0.5:8000", "[fd00::1]:8000"])
    def test_any_address_is_one_of_them_and_its_own_page_may_ask(self, anywhere, host):
        same = {"Host": host, "Origin": f"http://{host}"}
        assert anywhere.post("/v1/classify", content=png(), headers={**PNG, **same}).status_code == 200

    @pytest.mark.who_may
    def test_an_unlisted_host_is_refused(self, anywhere):
        assert anywhere.get("/v1/models", headers={"Host": "evil.example"}).status_code == 403

    @pytest.mark.who_may
    def test_a_page_of_another_address_may_not_ask(self, anywhere):
        other = {"Host": "10.0.0.5", "Origin": "http://10.0.0.6"}
        assert anywhere.post("/v1/classify", content=png(), headers={**PNG, **other}).status_code == 403


@pytest.mark.who_may
def test_with_keys_any_host_is_answered(tmp_path):
    address = Address("127.0.0.1", 0)
    assert address.answers_to(Settings(allow_hosts=("a.example",))) == ("127.0.0.1", "a.example")
    assert address.answers_to(Settings(keys_file=tmp_path / "keys.json")) is None


@pytest.mark.who_may
def test_no_answer_names_the_host_that_the_client_named(http):
    response = http.get("/v1/models/", headers={"Host": "photos.example"}, follow_redirects=False)
    assert (response.status_code, "location" in response.headers) == (404, False)
