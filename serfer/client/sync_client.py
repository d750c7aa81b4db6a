"""The blocking client of a SerFer service (serfer serve; docs/reference/client.md).

    with serfer.Client("http://localhost:8000") as client:
        report = client.classify("cat.jpg")
        print(report.images[0].predictions[0].label, report.latency_ms, report.cost_usd)

Its calls are those of the asyncio client (async_client.py) over a wire that blocks, on which they never suspend.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import update_wrapper
from typing import Any, Concatenate, Literal, ParamSpec, Self, TypeVar, overload

import httpx

from serfer.client.async_client import AsyncClient, AsyncJob
from serfer.client.conversation import Clock, Conversation, Retries
from serfer.client.results import AsyncServedResult, AsyncSession, ServedResult
from serfer.client.wire import BlockingWire, checked_url, headers, run_now
from serfer.core.inference_protocol import ServedTensor

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


def _blocking(method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Any, P], T]:
    def wait(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:  # noqa: ANN401 - a Client or Job
        return run_now(method(self._asynchronous, *args, **kwargs))

    return update_wrapper(wait, method)


def _blocking_as(
    convert: Callable[[T], R], method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]
) -> Callable[Concatenate[Any, P], R]:
    """Return what `_blocking` does, but for its result, which `convert` makes a blocking one."""
    call = _blocking(method)

    def wait(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:  # noqa: ANN401 - a Client
        return convert(call(self, *args, **kwargs))

    returned = inspect.signature(convert).return_annotation
    wait.__signature__ = inspect.signature(method).replace(return_annotation=returned)  # type: ignore[attr-defined]
    return update_wrapper(wait, method)


@dataclass(frozen=True)
class Job:
    """A submitted query: the service keeps its result under `id` for a while."""

    id: str
    _asynchronous: AsyncJob = field(repr=False)

    status = _blocking(AsyncJob.status)
    result = _blocking(AsyncJob.result)
    cancel = _blocking(AsyncJob.cancel)


def _job(job: AsyncJob) -> Job:
    return Job(job.id, job)


def _result(result: AsyncServedResult) -> ServedResult:
    return ServedResult(result)


class _Calls(AsyncClient):
    def __init__(self, session: AsyncSession) -> None:  # over another wire
        self._session = session
        self._conversation = session.conversation


class Client:
    """A service's client whose calls wait for their answers; threads may share it.

    `api_key` is sent with each request. A call takes at most `timeout_s`, in which it is tried again up to `retries`
    times where the service cannot be reached or has no room. With `retry_safe` all tries of a `classify` or `predict`
    have one idempotency key, so that the service computes it once: it looks into its store before and keeps the answer
    after it, two round trips for each call. `transport` is httpx's, and with `sleep` and `clock` for tests.

    Every call raises the errors of ServiceError's family: KeyRefusedError, RequestRefusedError,
    ServiceUnavailableError, ServiceDeadlineError.
    """

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        timeout_s: float = 60.0,
        retries: int = 5,
        retry_safe: bool = False,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
        clock: Clock | None = None,
    ) -> None:
        self._base_url = checked_url(base_url)
        conversation = Conversation(timeout_s, Retries(retries), clock or Clock(), api_key or "", retry_safe=retry_safe)
        http = httpx.Client(base_url=self._base_url, headers=headers(api_key), transport=transport)
        wire = BlockingWire(http, sleep, conversation.clock.monotonic)
        self._asynchronous = _Calls(AsyncSession(wire, conversation))

    classify = _blocking(AsyncClient.classify)
    predict = _blocking(AsyncClient.predict)
    submit = _blocking_as(_job, AsyncClient.submit)

    @overload
    def infer(
        self,
        batch: Any,  # noqa: ANN401 - as below
        *,
        model: str | None = None,
        outputs: Sequence[str] | None = None,
        deadline_ms: int | None = None,
        result: Literal["inline"] = "inline",
    ) -> dict[str, ServedTensor]: ...

    @overload
    def infer(
        self,
        batch: Any,  # noqa: ANN401 - as below
        *,
        model: str | None = None,
        outputs: Sequence[str] | None = None,
        deadline_ms: int | None = None,
        result: Literal["link"],
    ) -> ServedResult: ...

    def infer(
        self,
        batch: Any,
        *,
        model: str | None = None,
        outputs: Sequence[str] | None = None,
        deadline_ms: int | None = None,
        result: Literal["inline", "link"] = "inline",
    ) -> dict[str, ServedTensor] | ServedResult:
        """Run a network on a batch, and return its outputs by name: `numpy.asarray` makes an array (N, ...) of each.

        `batch` is (N, C, H, W) float32, preprocessed, or (N, H, W, C) uint8 pixels of the network's size. `outputs` are
        the names of those to return, in that order: all, unless given. With `result="link"` the service keeps them,
        however large they are, and they are downloaded when they are wanted.
        """
        call = self._asynchronous.infer
        if result == "link":
            kept = call(batch, model=model, outputs=outputs, deadline_ms=deadline_ms, result="link")
            return ServedResult(run_now(kept))
        return run_now(call(batch, model=model, outputs=outputs, deadline_ms=deadline_ms))

    open_result = _blocking_as(_result, AsyncClient.open_result)
    models = _blocking(AsyncClient.models)
    ready = _blocking(AsyncClient.ready)

    def close(self) -> None:
        """Close the connections."""
        run_now(self._asynchronous.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._base_url!r})"
