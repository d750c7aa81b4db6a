"""`serfer serve` as a user runs it: a process, its address, its end."""

import json
import signal

import httpx
import pytest

from tests.e2e.conftest import PATIENCE, eventually
from tests.support.served import png


@pytest.fixture
def serve(start, single):
    """Start a service with local workers; returns the command and its status line."""

    def launch(*arguments, **variables):
        command = start("serve", "--plan", single, "--port", "0", "--json", *arguments, **variables)
        return command, command.said()

    return launch


def logged(result, event="request"):
    lines = [json.loads(line) for line in result.err.splitlines()]
    return [line for line in lines if line["event"] == event]


@pytest.mark.killed
@pytest.mark.who_may
def test_a_service_answers_who_has_a_key_replaces_killed_workers_and_ends_on_a_signal(serve, serfer_here, tmp_path):
    file = tmp_path / "keys.toml"
    key = serfer_here("keys", "add", "alice", "--file", file).out.strip()
    command, status = serve("--set", "drain_s=600", "--keys", str(file))
    assert (status["pid"], status["models"]) == (command.pid, ["small"])
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=status["url"], timeout=PATIENCE) as http:
        assert http.get("/healthz").status_code == http.get("/readyz").status_code == 200
        refused = http.post("/v1/classify", files={"image": png()})
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        image = {"image": ("secret-name.png", png())}
        reply = http.post("/v1/classify?explain=true", files=image, headers={**headers, "X-Request-Id": "mine-1"})
        assert reply.status_code == 200, reply.text
        assert reply.headers["x-request-id"] == "mine-1"
        assert reply.json()["images"][0]["name"] == "secret-name.png"
        command.started("worker", 0).send(signal.SIGKILL)
        assert http.post("/v1/classify", files=image, headers=headers).status_code == 200
        serfer_here("keys", "remove", "alice", "--file", file)

        def locked_out():
            return http.get("/v1/models", headers=headers).status_code == 401

        eventually(locked_out, "the file is read again")
        command.interrupt(signal.SIGTERM)
        eventually(lambda: http.get("/readyz").status_code == 503, "it drains")
    result = command.stop()  # a second signal ends it at once
    [line] = [line for line in logged(result) if line["request_id"] == "mine-1"]
    assert (line["route"], line["status"], line["model"]) == ("/v1/classify", 200, "small")
    assert "secret-name" not in result.err
    assert key not in result.err
    assert '"client": "alice"' in result.err


@pytest.mark.parametrize(
    ("number", "code", "words"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_while_workers_and_store_start_leaves_nothing(start, single, number, code, words):
    command = start("serve", "--plan", single, "--port", "0", "--json")
    command.started("redis")
    command.interrupt(number)
    command.end().complains(code, words)
    eventually(lambda: command.processes() == [], "workers and redis end")
