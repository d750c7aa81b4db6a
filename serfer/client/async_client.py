"""The asyncio client of a SerFer service (serfer serve; docs/reference/client.md).

    async with serfer.AsyncClient("http://localhost:8000") as client:
        report = await client.classify("cat.jpg")
        print(report.images[0].predictions[0].label, report.latency_ms, report.cost_usd)

Requests and retries are decided in serfer/client/conversation.py, and sent by serfer/client/wire.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, overload

import httpx

from serfer.client.conversation import Clock, Conversation, Retries
from serfer.client.messages import Image, QueryOptions, upload
from serfer.client.results import AsyncServedResult, AsyncSession
from serfer.client.wire import AsyncWire, checked_url, headers
from serfer.core.http_messages import NO_OBJECTIVES, JobStatus, Objectives, ServedModel, ServedPrediction, ServedReport
from serfer.core.inference_protocol import ServedTensor


class AsyncClient:
    """A service's client for asyncio; tasks of one event loop may share it.

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
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Clock | None = None,
    ) -> None:
        self._base_url = checked_url(base_url)
        conversation = Conversation(timeout_s, Retries(retries), clock or Clock(), api_key or "", retry_safe=retry_safe)
        http = httpx.AsyncClient(base_url=self._base_url, headers=headers(api_key), transport=transport)
        self._conversation = conversation
        self._session = AsyncSession(AsyncWire(http, sleep), conversation)

    async def classify(  # noqa: PLR0913 - a query's options, by name
        self,
        images: Image | Sequence[Image],
        *,
        model: str | None = None,
        application: str | None = None,
        objectives: Objectives = NO_OBJECTIVES,
        top_k: int = 5,
        deadline_ms: int | None = None,
        explain: bool = False,
        names: Sequence[str] | None = None,
        idempotency_key: str | None = None,
    ) -> ServedReport:
        """Classify images (encoded bytes, or paths), all in one query, and return its report.

        An `application` is asked for in place of a model: the service selects a variant of its networks that meets the
        `objectives`, and `selected` says which and why. `explain` adds the timeline. `names` are what the report calls
        the images: their files' names, unless given. Calls with the same `idempotency_key` get one answer.
        """
        options = QueryOptions(model, top_k, deadline_ms, explain, idempotency_key, application, objectives)
        body = await self._session.aside(upload, images, names)
        return await self._session.run(self._conversation.classify(body, options))

    async def predict(  # noqa: PLR0913 - a query's options, by name
        self,
        images: Image | Sequence[Image],
        *,
        model: str | None = None,
        application: str | None = None,
        objectives: Objectives = NO_OBJECTIVES,
        top_k: int | None = None,
        min_score: float | None = None,
        deadline_ms: int | None = None,
        explain: bool = False,
        names: Sequence[str] | None = None,
        idempotency_key: str | None = None,
    ) -> ServedPrediction:
        """Ask what any network finds in images, all in one query, and return its report.

        By its `kind`, each image has `predictions` (at most `top_k`, by default 5), the `boxes` of a detector (of at
        least `min_score`, in the image's own pixels), or `outputs`: vectors' values, maps as PNG or where the service
        keeps them. Everything else is as for `classify`.
        """
        options = QueryOptions(
            model, top_k, deadline_ms, explain, idempotency_key, application, objectives, min_score, classifies=False
        )
        body = await self._session.aside(upload, images, names)
        return await self._session.run(self._conversation.predict(body, options))

    async def submit(
        self,
        images: Image | Sequence[Image],
        *,
        model: str | None = None,
        application: str | None = None,
        objectives: Objectives = NO_OBJECTIVES,
        top_k: int = 5,
        deadline_ms: int | None = None,
        names: Sequence[str] | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncJob:
        """Hand in what `classify` takes, and return the job that answers it, without waiting for it."""
        options = QueryOptions(
            model, top_k, deadline_ms, idempotency_key=idempotency_key, application=application, objectives=objectives
        )
        body = await self._session.aside(upload, images, names)
        return AsyncJob(await self._session.run(self._conversation.submit(body, options)), self._session)

    @overload
    async def infer(
        self,
        batch: Any,  # noqa: ANN401 - as below
        *,
        model: str | None = None,
        outputs: Sequence[str] | None = None,
        deadline_ms: int | None = None,
        result: Literal["inline"] = "inline",
    ) -> dict[str, ServedTensor]: ...

    @overload
    async def infer(
        self,
        batch: Any,  # noqa: ANN401 - as below
        *,
        model: str | None = None,
        outputs: Sequence[str] | None = None,
        deadline_ms: int | None = None,
        result: Literal["link"],
    ) -> AsyncServedResult: ...

    async def infer(
        self,
        batch: Any,
        *,
        model: str | None = None,
        outputs: Sequence[str] | None = None,
        deadline_ms: int | None = None,
        result: Literal["inline", "link"] = "inline",
    ) -> dict[str, ServedTensor] | AsyncServedResult:
        """Run a network on a batch, and return its outputs by name: `numpy.asarray` makes an array (N, ...) of each.

        `batch` is (N, C, H, W) float32, preprocessed, or (N, H, W, C) uint8 pixels of the network's size. `outputs` are
        the names of those to return, in that order: all, unless given. With `result="link"` the service keeps them,
        however large they are, and they are downloaded when they are wanted.
        """
        if result == "link":
            stored = await self._session.run(self._conversation.infer_result(batch, model, outputs, deadline_ms))
            return AsyncServedResult(stored, self._session)
        return await self._session.run(self._conversation.infer(batch, model, outputs, deadline_ms))

    async def open_result(self, result_id: str) -> AsyncServedResult:
        """Return a result that the service keeps, by its id."""
        stored = await self._session.run(self._conversation.open_result(result_id))
        return AsyncServedResult(stored, self._session)

    async def models(self) -> tuple[ServedModel, ...]:
        """Return the models that the service answers for."""
        return await self._session.run(self._conversation.models())

    async def ready(self) -> bool:
        """Return whether the service takes queries now; raises ServiceUnavailableError where nothing answers."""
        return await self._session.run(self._conversation.ready())

    async def aclose(self) -> None:
        """Close the connections."""
        await self._session.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"AsyncClient({self._base_url!r})"


@dataclass(frozen=True)
class AsyncJob:
    """A submitted query: the service keeps its result under `id` for a while."""

    id: str
    _session: AsyncSession = field(repr=False)

    async def status(self) -> JobStatus:
        """Return the job's status."""
        return await self._session.run(self._session.conversation.status(self.id))

    async def result(self, timeout_s: float | None = None) -> ServedReport:
        """Wait for its result, at most `timeout_s` or as long as the client's calls may take.

        Raises what `classify` raises, RequestRefusedError when the service keeps it no longer, and
        ServiceDeadlineError when the time is up: the job continues, and `result` may be called again.
        """
        return await self._session.run(self._session.conversation.result(self.id, timeout_s))

    async def cancel(self) -> None:
        """Cancel the job."""
        await self._session.run(self._session.conversation.cancel(self.id))
