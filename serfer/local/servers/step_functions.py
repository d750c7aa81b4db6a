"""AWS Step Functions on one machine, for one state machine whose tasks are invocations of the local Lambda service.

Standard machines run on moto, Express ones on ministack, which lives in a virtual environment of its own beside this
one (it pins another botocore). Neither is quick: moto runs a Map's iterations nearly one after the other, ministack
waits 150 ms before it starts; and ministack takes a function's error for its answer. They keep executions in memory.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from botocore.config import Config
from botocore.session import Session

from serfer.core.errors import UnavailableError, UsageError
from serfer.core.sigv4 import Access
from serfer.extras import installed
from serfer.local.lambda_.function import REGION
from serfer.local.server import LocalServer

KINDS = ("standard", "express")
_APPS = Path(__file__).with_name("state_machines")
_ANSWER_S = 1.0
_TIMEOUT_S = 900
_ROLE = "arn:aws:iam::123456789012:role/serfer"
_ZIP = b"PK\x05\x06" + bytes(18)  # no files: nothing of it is ever run


class StepFunctionsServer(LocalServer):
    """A Step Functions service with one state machine, started by the constructor and ended by `stop` or `with`.

    `kind` is "standard" or "express"; the definition's tasks invoke `functions`, by their names, of the Lambda service
    at `lambda_url`, signed with `access`. It refuses other users, takes a free port of loopback, is deaf to the
    terminal's Ctrl-C, writes no files and dies with this process; start it from a thread that lives as long as it
    should (see `die_with_parent`).

    Raises:
        UsageError: the kind is unknown.
        UnavailableError: what it needs is not installed, or does not start, or refuses the definition.
    """

    NAME, READY_S, POLL_S = "local Step Functions", 60.0, 0.02

    def __init__(
        self, kind: str, functions: Iterable[str], lambda_url: str, definition: Mapping[str, Any], access: Access
    ) -> None:
        if kind not in KINDS:
            raise UsageError(f"a state machine is {' or '.join(KINDS)}, not {kind!r}")
        self._kind, self._access, self._lambda_port = kind, access, urlsplit(lambda_url).port or 0
        self._start_at(0)
        try:
            self.arn = self._deploy(functions, lambda_url, definition)
        except BaseException:
            self.stop()
            raise

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def _start(self) -> str | None:
        command, variables = self._command()
        variables |= {"LOCAL_ACCESS_KEY_ID": self._access.key_id, "LOCAL_SECRET_ACCESS_KEY": self._access.secret}
        output = self._spawn(command, variables=variables)
        return output and output.rpartition("\n")[2]

    def _command(self) -> tuple[list[str], dict[str, str]]:
        address, port = f"127.0.0.1:{self._port}", str(self._port)
        if self._kind == "standard":
            installed("moto")
            return [sys.executable, "-P", str(_APPS / "moto_app.py"), port], {"MOTO_PORT": str(self._lambda_port)}
        # By its web server, in one process: ministack's own command would write a file.
        command = [str(_ministack()), "-m", "hypercorn", "-w", "0", "--bind", address, f"{_APPS}/ministack_app.py:app"]
        return command, {"GATEWAY_PORT": port, "SERVICES": "lambda,states", "MINISTACK_REGION": REGION}

    def _answers(self) -> bool:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=_ANSWER_S)) as connection:
            try:
                if self._kind == "standard":
                    config = json.dumps({"stepfunctions": {"execute_state_machine": True}})
                    connection.request("POST", "/moto-api/config", config, {"Content-Type": "application/json"})
                else:
                    connection.request("GET", "/_ministack/health")
                return connection.getresponse().status in (200, 201)
            except (OSError, http.client.HTTPException):
                return False

    def _deploy(self, functions: Iterable[str], lambda_url: str, definition: Mapping[str, Any]) -> str:
        if self._kind == "express":
            with self._client("lambda") as client:
                for name in functions:
                    self._declare(client, name, f"{lambda_url}/2015-03-31/functions/{name}/invocations")
        with self._client("stepfunctions") as client:
            try:
                created = client.create_state_machine(
                    name="serfer", definition=json.dumps(definition), roleArn=_ROLE, type=self._kind.upper()
                )
            except client.exceptions.ClientError as error:
                raise UnavailableError(f"local Step Functions refuses the state machine: {error}") from error
            arn: str = created["stateMachineArn"]
            return arn

    def _declare(self, client: Any, name: str, url: str) -> None:  # noqa: ANN401 - boto3's
        client.create_function(
            FunctionName=name,
            Role=_ROLE,
            Runtime="python3.11",
            Handler="none.none",
            Code={"ZipFile": _ZIP},
            Timeout=_TIMEOUT_S,
            Environment={"Variables": {"MINISTACK_LAMBDA_PROXY_URL": url}},
        )

    @contextlib.contextmanager
    def _client(self, service: str) -> Iterator[Any]:
        client = Session().create_client(
            service,
            region_name=REGION,
            endpoint_url=self.endpoint,
            aws_access_key_id="unused",
            aws_secret_access_key="unused",  # noqa: S106 - neither service verifies signatures
            config=Config(retries={"total_max_attempts": 1}),
        )
        try:
            yield client
        finally:
            client.close()


def _ministack() -> Path:
    python = Path(sys.prefix) / "ministack" / "bin" / "python"
    if not python.exists():
        raise UnavailableError("local Express workflows need ministack in an environment of its own: run `make setup`")
    return python
