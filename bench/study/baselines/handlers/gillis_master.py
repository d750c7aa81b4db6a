"""Gillis's master: forks every group to its workers, computes part 0 where it holds it, joins, continues."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

from numpy.typing import NDArray

from serfer.core.errors import InputError, LambdaUnavailableError, TaskFailedError
from serfer.core.plan import IMAGE, Stage
from serfer.core.sigv4 import Access, sign
from serfer_bench.study.baselines.handlers.environment import Array, Environment, merge
from serfer_bench.study.baselines.handlers.payload import from_json, to_json

_OK = 200


class Master:
    """Takes queries through the plan of an environment, one at a time."""

    def __init__(self, environment: Environment) -> None:
        self._environment = environment
        self._plan = environment.plan
        self._threads = ThreadPoolExecutor(max(stage.grid.tiles for stage in self._plan.stages))
        self._workers = _Workers()

    def handle(self, event: Any) -> dict[str, Any]:  # noqa: ANN401 - whatever a client sent
        """Answer a query with its logits and the bytes of tensors that its workers' payloads carried, both ways.

        The event has the pixels, (N, H, W, C) uint8, and the Invoke API's endpoint. Raises TaskFailedError where a
        worker failed.
        """
        match event:
            case {"endpoint": str(endpoint), "pixels": pixels}:
                known = {(IMAGE, IMAGE): from_json(pixels)}
            case _:
                raise InputError("the payload has no endpoint and no pixels")
        carried = 0
        for number, stage in enumerate(self._plan.stages):
            parts = [_part(stage, tile, known) for tile in range(len(stage.tiles))]
            first = 1 if self._environment.holds(stage, 0) else 0
            outputs = self._group(endpoint, number, stage, parts, first)
            known.update({(number, place): value for place, value in enumerate(merge(stage, outputs))})
            carried += sum(array.nbytes for part in (*parts[first:], *outputs[first:]) for array in part)
        return {"logits": to_json(known[len(self._plan.stages) - 1, 0]), "carried": carried}

    def _group(
        self, endpoint: str, number: int, stage: Stage, parts: Sequence[list[NDArray[Any]]], first: int
    ) -> list[list[Array]]:
        pending = []
        for index in range(first, len(parts)):
            function = self._plan.function(number, stage.tiles[index].function)
            pending.append(self._threads.submit(self._workers.ask, endpoint, function, number, index, parts[index]))
        mine = [self._environment.compute(number, index, parts[index]) for index in range(first)]
        return mine + [future.result() for future in pending]


def _part(stage: Stage, index: int, known: dict[tuple[int, int], NDArray[Any]]) -> list[NDArray[Any]]:
    cut = []
    for source, rect in zip(stage.inputs, stage.tiles[index].inputs, strict=True):
        whole = known[source.stage, source.output]
        cut.append(whole[:, *rect.slices] if source.stage == IMAGE else whole[source.shape.slices(rect)])
    return cut


class _Workers:
    """Invokes workers, from each thread over a connection of its own that is kept for the next query.

    They are signed by hand, as a package has no boto3, with the credentials that a function has in its environment.
    """

    def __init__(self) -> None:
        self._local = threading.local()
        self._access = Access(os.environ.get("AWS_ACCESS_KEY_ID", ""), os.environ.get("AWS_SECRET_ACCESS_KEY", ""))

    def ask(self, endpoint: str, function: str, stage: int, tile: int, arrays: Sequence[NDArray[Any]]) -> list[Array]:
        body = json.dumps({"stage": stage, "tile": tile, "tensors": [to_json(array) for array in arrays]})
        return [from_json(value) for value in self._post(endpoint, function, body.encode())["tensors"]]

    def _post(self, endpoint: str, function: str, body: bytes) -> dict[str, Any]:
        path = f"/2015-03-31/functions/{function}/invocations"
        headers = {"host": urlsplit(endpoint).netloc, "x-amz-invocation-type": "RequestResponse"}
        now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
        headers = sign(self._access, os.environ["AWS_REGION"], now, "POST", path, headers, body)
        try:
            connection = self._connection(endpoint)
            connection.request("POST", path, body, headers)
            response = connection.getresponse()
            answer: dict[str, Any] = json.loads(response.read())
        except OSError as error:
            raise LambdaUnavailableError(f"{endpoint} does not answer: {error}") from error
        if response.status != _OK:
            raise TaskFailedError(f"{function}: {answer.get('message', response.reason)}")
        if response.getheader("X-Amz-Function-Error"):
            raise TaskFailedError(f"{function}: {answer.get('errorMessage', 'no message')}")
        return answer

    def _connection(self, endpoint: str) -> HTTPConnection:
        known: dict[str, HTTPConnection] = self._local.__dict__.setdefault("connections", {})
        return known.setdefault(endpoint, HTTPConnection(urlsplit(endpoint).netloc))
