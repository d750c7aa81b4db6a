"""The systems that serve one ONNX file: how each is started, what it is sent, and where its answer stands."""

from __future__ import annotations

import json
import sys
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from serfer import __version__
from serfer.core.sigv4 import Access, sign
from serfer.local.lambda_.access import random_access
from serfer.local.lambda_.function import REGION
from serfer.settings import access_setting
from serfer_bench.peers.apps.classifier import BATCH, MODEL, PORT, THREADS, WORKERS

APPS: Final = "serfer_bench.peers.apps"
BARE, SERFER, NULL = "bare uvicorn", "serfer serve", "nothing computed"
_JPEG = {"Content-Type": "image/jpeg"}
_RAY = {
    "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
    "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0",  # for balancers in front of replicas: there is none
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "60",  # a busy machine takes more than its 5 s
    "RAY_USAGE_STATS_ENABLED": "0",
}
_JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Request:
    """What a client posts; `headers` are made anew for each sending, where they carry a time."""

    url: str
    body: bytes
    headers: Callable[[], Mapping[str, str]]


@dataclass(frozen=True)
class Launch:
    """What a server needs to start: the network's file, and threads in each of so many workers.

    `home` is a folder of its own, `python` its environment's interpreter, and `ports` are free ones, of which the first
    is for HTTP.
    """

    python: Path
    home: Path
    network: Path
    threads: int
    workers: int
    ports: tuple[int, ...]
    access: Access = field(default_factory=random_access)
    batch: int = 1

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    @property
    def served(self) -> dict[str, str]:
        own = {
            MODEL: str(self.network),
            THREADS: self.threads,
            WORKERS: self.workers,
            PORT: self.ports[0],
            BATCH: self.batch,
        }
        return {name: str(value) for name, value in own.items()}

    @property
    def variables(self) -> dict[str, str]:
        return {**self.served, "PYTHONPATH": str(self.code)}

    @property
    def code(self) -> Path:
        return self.home / "code"


@dataclass(frozen=True)
class Peer:
    """One way to serve: its `lock` names the environment, without which it runs in this one.

    `command` and `variables` start it; `request` makes what is posted of an image, `predictions` reads the answer.
    `bounded` is one that refuses more queries at once than it has workers: its client holds the others back. A pass
    takes `batch` images at most.
    """

    name: str
    about: str
    command: Callable[[Launch], Sequence[str]]
    request: Callable[[Launch, bytes], Request]
    lock: str | None = None
    predictions: Callable[[bytes], Any] = lambda body: json.loads(body)["predictions"]
    variables: Callable[[Launch], Mapping[str, str]] = lambda launch: launch.variables
    bounded: bool = False
    batch: int = 1

    @property
    def requirements(self) -> str:
        return files("serfer_bench.peers").joinpath("locks", f"{self.lock}.txt").read_text(encoding="utf-8")

    @property
    def version(self) -> str:
        lines = self.requirements.splitlines() if self.lock else []
        return next((line for line in lines if line.startswith(f"{self.lock}==")), f"serfer=={__version__}")


def _posted(
    path: str, headers: Mapping[str, str], encode: Callable[[bytes], bytes], launch: Launch, image: bytes
) -> Request:
    return Request(f"{launch.url}{path}", encode(image), lambda: headers)


def _raw(path: str = "/") -> Callable[[Launch, bytes], Request]:
    return partial(_posted, path, _JPEG, bytes)


def _as_json(path: str, document: Callable[[str], Any]) -> Callable[[Launch, bytes], Request]:
    return partial(_posted, path, _JSON, lambda image: json.dumps(document(b64encode(image).decode())).encode())


def _form(launch: Launch, image: bytes) -> Request:
    boundary = uuid4().hex
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="image.jpg"\r\n'
    body = f"{head}Content-Type: image/jpeg\r\n\r\n".encode() + image + f"\r\n--{boundary}--\r\n".encode()
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    return Request(f"{launch.url}/classify", body, lambda: headers)


def _invocation(launch: Launch, image: bytes) -> Request:
    target = "/2015-03-31/functions/peer/invocations"
    body = json.dumps({"body": b64encode(image).decode(), "isBase64Encoded": True}).encode()
    host = {"host": launch.url.removeprefix("http://")}

    def headers() -> Mapping[str, str]:
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        return sign(launch.access, REGION, now, "POST", target, host, body)

    return Request(f"{launch.url}{target}", body, headers)


def _of_function(body: bytes) -> Any:  # noqa: ANN401 - JSON
    return json.loads(json.loads(body)["body"])["predictions"]


def _of_protocol(body: bytes) -> Any:  # noqa: ANN401 - JSON
    return json.loads(json.loads(body)["outputs"][0]["data"][0])["predictions"]


def _uvicorn(app: str, launch: Launch) -> list[str]:
    options = ["--workers", str(launch.workers), "--port", str(launch.ports[0]), "--log-level", "warning"]
    quiet = ["--lifespan", "off", "--no-access-log", "--backlog", "2048"]
    return [str(launch.python), "-m", "uvicorn", f"{APPS}.{app}:app", *options, *quiet]


def _mlserver(launch: Launch) -> list[str]:
    folder = launch.home / "mlserver"
    folder.mkdir(exist_ok=True)
    http, grpc = launch.ports[:2]
    settings = {
        "debug": False,
        "host": "127.0.0.1",
        "http_port": http,
        "grpc_port": grpc,
        "metrics_endpoint": None,
        "parallel_workers": launch.workers,
    }
    (folder / "settings.json").write_text(json.dumps(settings), encoding="utf-8")
    model = {"name": "peer", "implementation": f"{APPS}.mlserver_runtime.Runtime"}
    (folder / "model-settings.json").write_text(json.dumps(model), encoding="utf-8")
    program = "from mlserver.cli import main; main()"
    return [str(launch.python), "-c", program, "start", str(folder)]


def _bentoml(launch: Launch) -> list[str]:
    options = ["--host", "127.0.0.1", "--port", str(launch.ports[0])]
    return [str(launch.python), "-m", "bentoml", "serve", f"{APPS}.bentoml_service:Service", *options]


def _program(name: str, launch: Launch) -> list[str]:
    return [str(launch.python), "-m", f"{APPS}.{name}"]


def _function(launch: Launch) -> list[str]:
    layer = next((launch.python.parents[1] / "lib").glob("python*/site-packages"))
    given = {"port": launch.ports[0], "layer": str(layer), "home": str(launch.home), "workers": launch.workers}
    return [sys.executable, "-m", "serfer_bench.peers.lambda_service", json.dumps({**given, "env": launch.served})]


def _serfer(options: Sequence[str], launch: Launch) -> list[str]:
    where = ["--port", str(launch.ports[0]), "--set", "log_level=error", *options]
    return [sys.executable, "-m", "serfer", "serve", str(launch.network), "--output", "softmax", *where]


_AT_ONCE = ("--set", "drain_s=0")  # it ends


def _ours(name: str, about: str, *options: str) -> Peer:
    return Peer(
        name,
        about,
        partial(_serfer, options),
        _raw("/v1/classify?top_k=5"),
        predictions=lambda body: json.loads(body)["images"][0]["predictions"],
        variables=lambda launch: {
            "SERFER_LOCAL_CONCURRENCY": str(launch.workers),
            "SERFER_SESSION_THREADS": str(launch.threads),  # of workers in process; others have one for each vCPU
        },
    )


_LITSERVE: Final = Peer(
    "LitServe",
    "workers_per_device, fast_queue, an HTTP server for each worker, no batches",
    partial(_program, "litserve_server"),
    _as_json("/predict", lambda image: {"image": image}),
    "litserve",
)
PEERS: Final = (
    Peer(BARE, "an ASGI application of 20 lines, the pass on the loop", partial(_uvicorn, "bare"), _raw(), "uvicorn"),
    Peer(
        "Lambda handler",
        "a function of 20 lines on SerFer's local Lambda service, a worker for each environment",
        _function,
        _invocation,
        "lambda",
        _of_function,
        lambda launch: {"SERFER_LOCAL_ACCESS": access_setting(launch.access).get_secret_value()},
        bounded=True,
    ),
    _LITSERVE,
    replace(_LITSERVE, name="LitServe in batches", about="the same, a pass takes up to 8 that wait", batch=8),
    Peer(
        "BentoML",
        "workers, no batches",
        _bentoml,
        _form,
        "bentoml",
        variables=lambda launch: {**launch.variables, "BENTOML_DO_NOT_TRACK": "True"},
    ),
    Peer(
        "Ray Serve",
        "a replica for each worker, RAY_SERVE_THROUGHPUT_OPTIMIZED, no batches",
        partial(_program, "ray_server"),
        _raw(),
        "ray",
        variables=lambda launch: {**launch.variables, **_RAY},
    ),
    Peer(
        "MLServer",
        "parallel_workers, no batches",
        _mlserver,
        _as_json(
            "/v2/models/peer/infer",
            lambda image: {"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": [image]}]},
        ),
        "mlserver",
        _of_protocol,
    ),
    _ours(SERFER, "threads of the service's own process, as by default", *_AT_ONCE),
    _ours(f"{SERFER} --drivers 2", "two such processes behind HAProxy", "--drivers", "2"),
    _ours(f"{SERFER} --workers local", "a process for each worker", *_AT_ONCE, "--workers", "local"),
)
NULL_PEER: Final = Peer(NULL, "the client alone", partial(_uvicorn, "null"), _raw(), "uvicorn", lambda _: None)
