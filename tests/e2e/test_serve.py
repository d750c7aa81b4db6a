"""`serfer serve` as a user runs it: a process, its address, its end."""

import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
import numpy as np
import onnx
import psutil
import pytest

from tests.e2e.conftest import PATIENCE, eventually
from tests.e2e.small import model_of
from tests.support.onnx_graph import Graph
from tests.support.served import png


@pytest.fixture
def serve(start, single):
    """Start a service; returns the command and its status line."""

    def launch(*arguments, **variables):
        command = start("serve", "--plan", single, "--port", "0", "--json", *arguments, **variables)
        return command, command.said()

    return launch


def logged(result, event="request"):
    lines = [json.loads(line) for line in result.err.splitlines() if line.startswith("{")]
    return [line for line in lines if line["event"] == event]


@pytest.mark.killed
@pytest.mark.who_may
@pytest.mark.parametrize(("computes", "workers"), [(("serving",), ()), (("worker", 0), ("--workers", "local"))])
def test_a_service_answers_who_has_a_key_replaces_what_was_killed_and_ends_on_a_signal(
    serve, serfer_here, tmp_path, computes, workers
):
    file = tmp_path / "keys.toml"
    key = serfer_here("keys", "add", "alice", "--file", file).out.strip()
    command, status = serve("--set", "drain_s=600", "--keys", str(file), *workers)
    assert (status["pid"], status["models"]) == (command.pid, ["small"])
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=status["url"], timeout=PATIENCE) as http:
        assert http.get("/healthz").status_code == http.get("/readyz").status_code == 200
        refused = http.post("/v1/classify", files={"image": png()})
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        image = {"image": ("secret-name.png", png())}
        reply = http.post("/v1/classify?explain=true", files=image, headers=headers)
        assert reply.status_code == 200, reply.text
        assert reply.json()["images"][0]["name"] == "secret-name.png"
    killed = command.started(*computes)
    killed.send(signal.SIGKILL)
    eventually(lambda: killed not in command.processes(), "it ends")
    with httpx.Client(base_url=status["url"], timeout=PATIENCE) as http:  # of a service in process, too, it waits
        reply = http.post("/v1/classify", files=image, headers={**headers, "X-Request-Id": "mine-1"})
        assert (reply.status_code, reply.headers["x-request-id"]) == (200, "mine-1")
        serfer_here("keys", "remove", "alice", "--file", file)

        def locked_out():
            return http.get("/v1/models", headers=headers).status_code == 401

        eventually(locked_out, "the file is read again")
        command.interrupt(signal.SIGTERM)
        eventually(lambda: http.get("/readyz").status_code == 503, "it drains")
        if not workers:  # the signal went to all processes, as systemd sends it: this one came after the parent's
            command.started("serving").send(signal.SIGTERM)
            assert [http.get("/readyz").status_code for _ in range(2)] == [503, 503]
    result = command.stop()  # a second signal ends it at once
    [line] = [line for line in logged(result) if line["request_id"] == "mine-1"]
    assert (line["route"], line["status"], line["model"]) == ("/v1/classify", 200, "small")
    assert "secret-name" not in result.err
    assert key not in result.err
    assert '"client": "alice"' in result.err
    first, *others = (json.loads(line) for line in result.err.splitlines())
    assert (first["event"], f"--workers {'inprocess' if workers else 'local'}" in first["message"]) == ("workers", True)
    [ended] = [line for line in others if "has ended" in line.get("message", "")]
    own = "the process that serves has ended (signal: killed): it is started again in 0.2 s"
    worker = "has ended (Runtime.ExitError: Runtime exited with error: signal: killed)"
    assert (ended["level"], ended["message"].endswith(worker if workers else own)) == ("warning", True)


@contextmanager
def undecoded(command, url):
    """Have two queries wait for decoders that stand still; yields what becomes of them, and the processes of all."""

    def classify(_):
        with suppress(httpx.TransportError):
            return httpx.post(f"{url}/v1/classify", files={"image": png()}, timeout=PATIENCE).status_code

    def in_flight():  # as its parent is shown
        state, *_ = (link for link in Path(f"/proc/{serving}/fd").iterdir() if "serfer-state" in str(link.readlink()))
        return int.from_bytes(state.read_bytes()[8:16], sys.byteorder)

    assert classify(0) == 200
    whole = [psutil.Process(command.pid), *psutil.Process(command.pid).children(recursive=True)]
    serving = next((process.pid for process in command.processes() if process.kind == "serving"), None)
    decoders = psutil.Process(serving or command.pid).children()
    decoders = [one for one in decoders if "run_fork_server" in " ".join(one.cmdline())]
    decoders += [process for one in decoders for process in one.children()]
    with ThreadPoolExecutor(2) as clients:
        for decoder in decoders:
            decoder.suspend()
        answers = clients.map(classify, range(2))
        if serving is not None:
            eventually(lambda: in_flight() == 2, "both wait for decoders")
        yield answers, whole
        for decoder in decoders:
            with suppress(psutil.NoSuchProcess):
                decoder.resume()


@pytest.mark.killed
@pytest.mark.parametrize(
    ("options", "name"), [((), "the process that serves"), (("--drivers", "1", "--workers", "inprocess"), "driver 0")]
)
def test_queries_that_a_killed_process_loses_are_said_in_the_log(serve, options, name):
    command, status = serve(*options, SERFER_API_PLAIN_BYTES="0")  # all images are decoded in processes
    with undecoded(command, status["url"]) as (answers, _):
        command.started("serving").send(signal.SIGKILL)
        assert set(answers) <= {None, 503}
    own = status["drivers"][0]["url"] if options else status["url"]

    def metrics():
        with suppress(httpx.TransportError):
            return httpx.get(f"{own}/metrics", timeout=PATIENCE).text

    assert "\nserfer_process_restarts_total 1.0\n" in eventually(metrics, "it is back", every=0.1)
    ended = [(line["level"], line["message"]) for line in logged(command.stop(signal.SIGINT), "serve")]
    words = f"{name} has ended (signal: killed) with 2 queries in flight: it is started again in 0.2 s"
    assert ("warning", words) in ended


@pytest.mark.killed
@pytest.mark.parametrize("workers", ["inprocess", "local"])
@pytest.mark.parametrize("drivers", [(), ("--drivers", "1")])
def test_a_sigterm_to_all_processes_answers_what_runs(serve, drivers, workers):
    command, status = serve(*drivers, "--workers", workers, SERFER_API_PLAIN_BYTES="0")
    with undecoded(command, status["url"]) as (answers, whole):
        for process in whole:
            process.terminate()
    assert ([*answers], command.end().code) == ([200, 200], 0)


@pytest.fixture
def limited(tmp_path):
    """Return what puts processes under a limit of 500 MB, at which the kernel kills; skip where that is not allowed."""
    groups, file = Path("/sys/fs/cgroup"), "memory.max"
    if (groups / "memory").exists():
        groups, file = groups / "memory", "memory.limit_in_bytes"
    group = groups / f"serfer-{tmp_path.name}"
    try:
        group.mkdir()
        (group / file).write_text("500000000")
    except OSError as error:
        pytest.skip(f"no control group of its own: {error}")
    yield lambda *pids: [(group / "cgroup.procs").write_text(str(pid)) for pid in pids]
    eventually(lambda: not (group / "cgroup.procs").read_text(), "its processes end")
    group.rmdir()


@pytest.mark.killed
def test_a_pass_that_the_kernel_kills_for_memory_costs_its_query_and_the_service_is_back(start, limited, tmp_path):
    net = Graph()
    wide = net.op("Conv", "input", net.normal(8, 3, 1, 1))
    huge = net.op("Tile", wide, np.array([1, 1, 150, 150]))  # 0.8 GB
    net.op("Flatten", net.op("GlobalAveragePool", huge), output="logits")
    onnx.save(model_of(net, "huge", {"logits": ("float32", (8,))}), tmp_path / "huge.onnx")
    command = start("serve", "huge.onnx", "--port", "0", "--json")
    url = command.said()["url"]
    limited(command.pid, command.started("serving").pid)
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.post(f"{url}/v1/classify", files={"image": png()}, timeout=PATIENCE)
    assert httpx.get(f"{url}/readyz", timeout=PATIENCE).status_code == 200
    [ended] = [line["message"] for line in logged(command.stop(signal.SIGINT), "serve")]
    words = "the process that serves has ended (signal: killed) with 1 queries in flight"
    assert ended == f"{words}: it is started again in 0.2 s"


@pytest.mark.parametrize(
    ("number", "code", "words"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
@pytest.mark.parametrize(("starts", "workers"), [("serving", "inprocess"), ("redis", "local")])
def test_a_signal_while_it_starts_leaves_nothing(start, single, number, code, words, starts, workers):
    command = start("serve", "--plan", single, "--port", "0", "--json", "--workers", workers)
    command.started(starts)
    command.interrupt(number)
    command.end().complains(code, words)
    eventually(lambda: command.processes() == [], "all that it started ends")
