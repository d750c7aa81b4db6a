import http.client
import json
import os
import resource
import signal
import socket
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from tests.e2e.conftest import PATIENCE, eventually

QUIET = ("--set", "log_level=warning", "--json")


class System:
    """A running `serfer serve --drivers N`: its status line, and requests to it."""

    def __init__(self, command):
        self.command = command
        line = command.process.stdout.readline()
        assert line, command.process.communicate()
        self.started = json.loads(line)

    def send(self, method, path, body=None, *, at=None, **headers):
        """Return (status, headers, body) of a request on a connection of its own, to the balancer or to `at`."""
        address = (at or self.started["url"]).removeprefix("http://")
        with closing(http.client.HTTPConnection(address, timeout=PATIENCE)) as connection:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            return response.status, response.headers, response.read()

    def classify(self, image, *, at=None, **headers):
        status, _, body = self.send("POST", "/v1/classify?top_k=3", image, at=at, Content_Type="image/png", **headers)
        return status, json.loads(body)

    def persistently(self, image):
        """Ask as a client does that retries with one idempotency key, and return the answer."""
        key = uuid.uuid4().hex
        while True:
            try:
                status, answer = self.classify(image, Idempotency_Key=key)
            except (OSError, http.client.HTTPException):
                pass
            else:
                if status == 200:
                    return answer
                assert status in {409, 429, 503}, answer
            time.sleep(0.02)

    def ready(self, driver):
        try:
            return self.send("GET", "/readyz", at=driver["url"])[0] == 200
        except OSError:
            return False


@pytest.fixture
def image(examples):
    return (examples / "chelsea.png").read_bytes()


@pytest.fixture
def up(start):
    return lambda *arguments, **variables: System(
        start("serve", "--drivers", "2", "--port", 0, *QUIET, *arguments, **variables)
    )


def test_answers_over_http_shows_no_password_and_leaves_nothing_behind(up, lean, image, redis):
    system = up("--plan", lean, "--store", redis, "--set", "allow_host=photos.example")
    status, answer = system.classify(image)
    assert (status, answer["model"], len(answer["images"][0]["predictions"])) == (200, "small", 3)
    assert system.classify(image, Host="photos.example", Origin="https://photos.example")[0] == 200
    assert system.classify(image, Host="evil.example")[0] == 403
    assert system.classify(image, Origin="http://evil.example")[0] == 403
    assert system.classify(image, Origin="http://127.0.0.1:3000")[0] == 403
    assert system.classify(image, Origin=system.started["url"])[0] == 200
    assert system.send("GET", "/readyz", Host="evil.example")[0] == 200
    assert system.send("GET", "/readyz")[0] == 200
    assert len(system.started["drivers"]) == 2
    assert all(system.ready(driver) for driver in system.started["drivers"])
    password = redis.removeprefix("redis://:").partition("@")[0]
    assert password not in json.dumps(system.started)
    running = system.command.processes()
    assert len(running) >= 6  # two drivers, a balancer, three workers
    for process in running:
        assert password not in Path(f"/proc/{process.pid}/cmdline").read_text(encoding="utf-8")
    system.command.process.send_signal(signal.SIGTERM)
    assert system.command.end().code == 0


@pytest.mark.killed
@pytest.mark.slow
@pytest.mark.parametrize("plan", ["lean", "single"])  # computed by local workers, and by the drivers themselves
def test_retrying_clients_lose_nothing_and_killed_parts_restart(up, request, plan, image):
    system = up("--plan", request.getfixturevalue(plan))
    answers, stop = [], threading.Event()

    def load():
        while not stop.wait(0.02):
            answers.append(system.persistently(image))

    threads = [threading.Thread(target=load) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: len(answers) > 10, "load")
        first = system.started["drivers"][0]
        os.kill(first["pid"], signal.SIGKILL)
        before = len(answers)
        eventually(lambda: len(answers) > before + 10, "the driver that is left answers")
        eventually(lambda: system.ready(first), "the driver comes back where it was", every=0.1)
        for part in ("balancer", "store"):
            os.kill(system.started[part]["pid"], signal.SIGKILL)
            before = len(answers)
            eventually(lambda before=before: len(answers) > before + 10, f"the {part} comes back")
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    labels = {tuple(best["label"] for best in answer["images"][0]["predictions"]) for answer in answers}
    assert len(labels) == 1
    result = system.command.stop(signal.SIGINT)
    assert all(json.loads(line)["event"] for line in result.err.splitlines())
    for event in ("driver 0 has ended (signal: killed)", "the balancer had ended", "the store had"):
        assert event in result.err
    assert '"level": "info"' not in result.err


@pytest.mark.killed
@pytest.mark.slow
def test_out_of_descriptors_it_logs_little_recovers_and_ends_at_the_first_sigterm(up, lean, image):
    system = up("--plan", lean)
    pid, limit = system.command.pid, resource.RLIMIT_NOFILE
    held = len([*Path(f"/proc/{pid}/fd").iterdir()])
    usual = resource.prlimit(pid, limit, (held, resource.prlimit(pid, limit)[1]))

    def classify(_):
        try:
            return system.send("POST", "/v1/classify?deadline_ms=3000", image, Content_Type="image/png")[0]
        except (OSError, http.client.HTTPException):
            return None

    with ThreadPoolExecutor(60) as clients:
        statuses = [*clients.map(classify, range(60))]
    assert set(statuses) <= {None, 200, 429, 503, 504}
    resource.prlimit(pid, limit, (usual[0], usual[0]))
    eventually(lambda: classify(0) == 200, "it answers once there are descriptors")
    resource.prlimit(pid, limit, (held, usual[0]))
    system.command.process.send_signal(signal.SIGTERM)
    result = system.command.end()
    assert result.code == 0
    assert result.err.count("\n") < 100


@pytest.mark.killed
@pytest.mark.slow
def test_a_killed_stack_leaves_no_process(up, lean):
    system = up("--plan", lean, "--drivers", "1")
    assert {process.kind for process in system.command.processes()} >= {"redis", "part"}
    system.command.process.kill()
    system.command.process.wait()
    eventually(lambda: not system.command.processes(), "everything dies with it")


def test_drivers_of_a_settings_file_compute_themselves_and_start_no_drivers(start, single, image, tmp_path):
    keys = f'drivers = 2\nport = 0\nworkers = "inprocess"\n[serve]\nnetwork = ["{single}"]\n'
    (tmp_path / "serfer.toml").write_text(keys)
    system = System(start("serve", *QUIET))
    assert (len(system.started["drivers"]), system.started["functions"]) == (2, {"url": None})
    assert [system.classify(image, at=driver["url"])[0] for driver in system.started["drivers"]] == [200, 200]
    kinds = [process.kind for process in system.command.processes()]
    assert (kinds.count("redis"), kinds.count("worker")) == (1, 0)
    system.command.stop(signal.SIGINT)


def test_a_port_that_is_taken_and_a_store_that_is_away_are_told_once(serfer_here, lean):
    up = partial(serfer_here, "serve", "--drivers", "2", "--plan", lean)
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        up("--port", port).complains(4, f"--port {port} is taken")
    # Only drivers detect this one.
    result = up("--port", 0, "--store", "redis://:hush@127.0.0.1:1/0")
    assert "hush" not in result.complains(4, "driver ", "Redis at 127.0.0.1:1")
