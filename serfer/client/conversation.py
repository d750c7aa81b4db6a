"""The protocol of a client, without a network: what to send when, and when to give up.

    classify ──▶ Try(call, after 0 s) ──▶ Reply ──▶ a report
                    ▲                       │ or a fault
                    └── after a wait ◀──────┴──▶ ServiceError, if another try is pointless or the time is up

Each conversation is a generator of tries that takes replies, so that the client for asyncio (async_client.py) and the
one that blocks hold the same ones. Time comes from a Clock, and a wait is something that a Try asks for.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, TypeAlias, TypeVar
from urllib.parse import quote

from serfer.client.arrays import ChunkSink, Values
from serfer.client.messages import (
    Call,
    QueryOptions,
    Reply,
    Upload,
    failure,
    read_models,
    read_prediction,
    read_report,
    read_status,
    refusal,
    retry_after,
    unreadable,
)
from serfer.client.tensors import (
    INLINE,
    LINK,
    StoredOutput,
    StoredResult,
    infer_call,
    read_location,
    read_stored,
    read_stored_array,
    read_tensors,
)
from serfer.core.errors import ServiceDeadlineError, ServiceError, ServiceUnavailableError, UsageError
from serfer.core.http_messages import JobStatus, ServedModel, ServedPrediction, ServedReport
from serfer.core.inference_protocol import ServedTensor
from serfer.core.retry import Backoff, RetryPolicy
from serfer.core.zarr import METADATA

T = TypeVar("T")
_SLOWEST = 1_000_000.0  # bytes a second that a download is allowed time for
_CHUNK = (HTTPStatus.OK, HTTPStatus.TEMPORARY_REDIRECT)
_LAST_LOOK_S = 0.05  # with less time left, another look is pointless


@dataclass(frozen=True)
class Clock:
    """Sources of time and randomness: seconds since some moment, seconds since 1970, uniform in [0, 1)."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    chance: Callable[[], float] = random.random


@dataclass(frozen=True)
class Try:
    """Send a call after so many seconds, and wait so many for its reply."""

    call: Call
    after_s: float
    timeout_s: float


Steps: TypeAlias = Generator[Try, Reply, T]


@dataclass(frozen=True)
class Retries:
    """The retries of a call: their number, and waits in seconds.

    The n-th wait, from 0, is what the service asked for, if anything, and base * 2^n, at most `longest`, times a random
    factor in [0.5, 1): clients that were turned away together do not come back together.
    """

    most: int = 5
    base_s: float = 0.1
    longest_s: float = 5.0

    def __post_init__(self) -> None:
        if self.most < 0:
            raise UsageError(f"retries must be 0 or more, not {self.most}")

    def next_wait(self, attempt: int, error: ServiceError, left_s: float, chance: float) -> float | None:
        """Return how long to wait after the `attempt`-th try, from 1, failed; None if there is to be no other."""
        policy = RetryPolicy("client", ServiceUnavailableError, self.backoff, self.most + 1)
        return policy.wait(attempt, error, left_s, error.retry_after_s or 0.0, chance)

    def next_look(self, look: int, requested_s: float | None, left_s: float, chance: float) -> float | None:
        """Return how long to wait after the `look`-th look, from 1, at what has not ended; None when time is up."""
        wait = self.backoff.wait(look, chance) if requested_s is None else requested_s
        return min(wait, 0.8 * left_s) if left_s > _LAST_LOOK_S else None  # the rest is for the look itself

    @property
    def backoff(self) -> Backoff:
        """The waits where the service does not say."""
        return Backoff(self.base_s, self.longest_s)


class Conversation:
    """The conversations of a client, each within `timeout_s`; `secret` is kept out of errors.

    `retry_safe` ones are answered once, however often they are sent.
    """

    def __init__(
        self, timeout_s: float, retries: Retries, clock: Clock, secret: str, *, retry_safe: bool = False
    ) -> None:
        self.clock = clock
        self._retry_safe = retry_safe
        self._timeout_s = _checked(timeout_s)
        self._retries = retries
        self._secret = secret

    def classify(self, upload: Upload, options: QueryOptions) -> Steps[ServedReport]:
        return read_report((yield from self._answer(options.call(upload, HTTPStatus.OK, {}, once=self._retry_safe))))

    def predict(self, upload: Upload, options: QueryOptions) -> Steps[ServedPrediction]:
        return read_prediction(
            (yield from self._answer(options.call(upload, HTTPStatus.OK, {}, once=self._retry_safe)))
        )

    def submit(self, upload: Upload, options: QueryOptions) -> Steps[str]:
        call = options.call(upload, HTTPStatus.ACCEPTED, {"Prefer": "respond-async"}, once=True)
        reply = yield from self._answer(call)
        return read_status(reply).id

    def status(self, job: str) -> Steps[JobStatus]:
        return read_status((yield from self._answer(Call("GET", _place(job)))))

    def result(self, job: str, timeout_s: float | None) -> Steps[ServedReport]:
        """Poll a job until it has ended, as often as the service asks for, and return its result."""
        allowed_s = self._timeout_s if timeout_s is None else _checked(timeout_s)
        deadline = self.clock.monotonic() + allowed_s
        look, wait_s = 1, 0.0
        while True:
            reply = yield from self._answer(Call("GET", _place(job)), deadline, wait_s)
            status = read_status(reply)
            if status.ended:
                return self._outcome(status, reply)
            requested_s, left_s = retry_after(reply, self.clock.wall()), deadline - self.clock.monotonic()
            wait = self._retries.next_look(look, requested_s, left_s, self.clock.chance())
            if wait is None:
                raise ServiceDeadlineError(f"the job has not ended within {allowed_s:g} s: ask again, or cancel it")
            look, wait_s = look + 1, wait

    def cancel(self, job: str) -> Steps[None]:
        yield from self._answer(Call("DELETE", _place(job), (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND)))

    def models(self) -> Steps[tuple[ServedModel, ...]]:
        return read_models((yield from self._answer(Call("GET", "/v1/models"))))

    def infer(self, batch: Any, model: str | None, *asked: Any) -> Steps[dict[str, ServedTensor]]:  # noqa: ANN401 - infer_call's
        return read_tensors((yield from self._inferred(batch, model, *asked, INLINE)))

    def infer_result(self, batch: Any, model: str | None, *asked: Any) -> Steps[StoredResult]:  # noqa: ANN401 - same
        """Have the service keep what a model's network makes of a batch, and return what it says of that."""
        return read_stored((yield from self._inferred(batch, model, *asked, LINK)))

    def open_result(self, result: str) -> Steps[StoredResult]:
        return read_stored((yield from self._answer(Call("GET", _place(result, "v2")))))

    def delete_result(self, result: str) -> Steps[None]:
        """Delete a result; one that is already gone is not an error."""
        yield from self._answer(Call("DELETE", _place(result, "v2"), (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_FOUND)))

    def fetch(self, output: StoredOutput, values: Values, timeout_s: float | None) -> Steps[None]:
        """Download an output, chunk by chunk, from the service or from where it says that a chunk lies."""
        usual_s = self._timeout_s + output.form.nbytes / _SLOWEST
        deadline = self.clock.monotonic() + (usual_s if timeout_s is None else _checked(timeout_s))
        reply = yield from self._answer(Call("GET", f"{output.place}/{METADATA}"), deadline)
        array = read_stored_array(reply, output.form)
        values.start()
        for chunk in array.chunks:
            sink = ChunkSink(array, chunk, values)
            reply = yield from self._answer(Call("GET", f"{output.place}/{chunk.path}", _CHUNK, sink=sink), deadline)
            if reply.status == HTTPStatus.TEMPORARY_REDIRECT:
                yield from self._answer(Call("GET", read_location(reply), sink=sink, elsewhere=True), deadline)

    def _inferred(self, batch: Any, model: str | None, *asked: Any) -> Steps[Reply]:  # noqa: ANN401 - same
        if model is None:
            model = next((model.name for model in (yield from self.models()) if model.default), "")
        return (yield from self._answer(infer_call(model, batch, *asked)))

    def ready(self) -> Steps[bool]:
        reply = yield from self._answer(Call("GET", "/readyz", (HTTPStatus.OK, HTTPStatus.SERVICE_UNAVAILABLE)))
        return reply.status == HTTPStatus.OK

    def _answer(self, call: Call, deadline: float | None = None, after_s: float = 0.0) -> Steps[Reply]:
        """Try until there is an answer; raise the last error when another try is pointless, or the time is up."""
        deadline = self.clock.monotonic() + self._timeout_s if deadline is None else deadline
        attempt = 1
        while True:
            left_s = deadline - self.clock.monotonic() - after_s
            try:
                reply = yield Try(call, after_s, left_s)
            except ServiceError as fault:
                error = fault
            else:
                if reply.status in call.expected:
                    return reply
                error = refusal(reply, self.clock.wall(), self._secret)
            left_s = deadline - self.clock.monotonic()
            wait = self._retries.next_wait(attempt, error, left_s, self.clock.chance())
            if wait is None:
                raise error
            attempt, after_s = attempt + 1, wait

    def _outcome(self, status: JobStatus, reply: Reply) -> ServedReport:
        if status.result is not None:
            return status.result
        if status.problem is None:
            raise unreadable("the job ended with neither result nor problem", reply)
        raise failure(status.problem.status, status.problem.detail, None, self._secret)


def _place(result: str, version: str = "v1") -> str:
    return f"/{version}/results/{quote(result, safe='')}"


def _checked(timeout_s: float) -> float:
    if not 0 < timeout_s < math.inf:
        raise UsageError(f"timeout_s must be a number of seconds above 0, not {timeout_s}")
    return timeout_s
