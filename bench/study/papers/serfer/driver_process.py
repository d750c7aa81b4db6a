"""One process of SerFer's driver: it takes one query at a time, from frames on its standard input.

    here:  DriverProcess.ask ── [shape, pixels] ──▶ main: PollDriver.run ──▶ Redis, Invoke API
                             ◀── [counts, times, shape, logits, problem] ──

A frame is its length in 4 bytes and msgpack.
"""

from __future__ import annotations

import subprocess
import sys
from array import array
from contextlib import suppress
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import QueryError
from serfer.core.keys import StoreCounts
from serfer.local.die_with_parent import dying_with_me
from serfer.local.lambda_.function import REGION
from serfer.plan_directory import load_plan
from serfer.storage import open_store
from serfer_bench.core.part_times import PartTimes, Times
from serfer_bench.core.processes import pipe_of, read_frame, write_frame
from serfer_bench.study.baselines.handlers.objects import Array
from serfer_bench.study.papers.serfer.poll_driver import PollDriver

if TYPE_CHECKING:
    from collections.abc import Callable

_READY = "ready"


@dataclass(frozen=True)
class Configuration:
    """A driver process's settings: plan directory, store's URL, the Invoke API's endpoint and access, kind of tiles."""

    directory: str
    store: str
    endpoint: str
    key_id: str
    secret: str = field(repr=False)
    contiguous: bool


class DriverProcess:
    """A driver's process, which dies with the thread that makes it; one thread at a time may use it."""

    def __init__(self) -> None:
        command = dying_with_me(sys.executable, "-P", "-m", __name__)
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        self.counts = StoreCounts()
        self._times = PartTimes()

    def configure(self, configuration: Configuration) -> None:
        self._send(asdict(configuration))
        self._receive()

    def ask(self, pixels: NDArray[np.uint8]) -> Array:
        self._send([pixels.shape, np.ascontiguousarray(pixels).data])
        counts, times, shape, logits, problem = self._receive()
        self.counts = StoreCounts(*counts)
        for part, values in times.items():
            self._times.add(part, memoryview(values).cast("d"))
        if problem:
            raise QueryError(problem)
        return np.frombuffer(logits, dtype="<f4").reshape(shape)

    def take_times(self) -> Times:
        return self._times.take()

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.wait()
        with suppress(BrokenPipeError):  # of a question that it never read
            pipe_of(self._process.stdin).close()
        pipe_of(self._process.stdout).close()

    def _send(self, value: Any) -> None:  # noqa: ANN401 - any plain value
        try:
            write_frame(pipe_of(self._process.stdin), value)
        except OSError as error:
            raise QueryError("the driver's process has ended") from error

    def _receive(self) -> Any:  # noqa: ANN401 - any plain value
        value = read_frame(pipe_of(self._process.stdout))
        if value is None:
            raise QueryError("the driver's process has ended")
        return value


def _event_invoker(configuration: Configuration) -> Callable[[str, bytes], object]:
    import boto3  # noqa: PLC0415 - only a driver's process needs it

    client = boto3.client(
        "lambda",
        endpoint_url=configuration.endpoint,
        region_name=REGION,
        aws_access_key_id=configuration.key_id,
        aws_secret_access_key=configuration.secret,
    )
    return lambda function, payload: client.invoke(FunctionName=function, InvocationType="Event", Payload=payload)


def main() -> None:
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    configuration = Configuration(**read_frame(questions))
    plan, invoke = load_plan(Path(configuration.directory)), _event_invoker(configuration)
    with open_store(configuration.store) as store:
        driver = PollDriver(plan, store, invoke, contiguous=configuration.contiguous)
        write_frame(answers, _READY)
        while (question := read_frame(questions)) is not None:
            write_frame(answers, _answer(driver, *question))


def _answer(driver: PollDriver, shape: list[int], data: bytes) -> list[Any]:
    try:
        logits = driver.run(np.frombuffer(data, dtype=np.uint8).reshape(shape))
    except Exception as error:  # noqa: BLE001 - whatever it is, the one who asked must hear it
        return [astuple(driver.counts), _packed(driver.take_times()), [], b"", f"{type(error).__name__}: {error}"]
    values = np.ascontiguousarray(logits, dtype="<f4").data
    return [astuple(driver.counts), _packed(driver.take_times()), logits.shape, values, ""]


def _packed(times: Times) -> dict[str, bytes]:
    return {part: array("d", values).tobytes() for part, values in times.items()}


if __name__ == "__main__":
    main()
