"""Clients of a SerFer service (serfer serve, serfer up): one that blocks, one for asyncio (docs/reference/client.md).

    with serfer.Client("http://localhost:8000") as client:
        report = client.classify("cat.jpg")
        print(report.images[0].predictions[0].label, report.latency_ms, report.cost_usd)

Requests and retries are decided in serfer/client/conversation.py, and sent by serfer/client/wire.py.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, overload

import httpx

from serfer.client.conversation import Clock, Conversation, Retries
from serfer.client.messages import Image, QueryOptions, upload
from serfer.client.registering import AsyncRegistrationJob, Described, Place, RegistrationJob, registration_form
from serfer.client.results import AsyncServedResult, ServedResult
from serfer.client.tensors import ServedTensor
from serfer.client.wire import AsyncWire, Wire
from serfer.core.errors import UsageError
from serfer.core.served import NO_OBJECTIVES, JobStatus, Objectives, ServedModel, ServedReport

_KEY = re.compile(r"[!-~]{1,1024}")


class Client:
    """A service's client whose calls wait for their answers; threads may share it.

    `api_key` is sent with each request. A call takes at most `timeout_s`, in which it is tried again up to `retries`
    times where the service cannot be reached or has no room. With `retry_safe` all tries of a `classify` have one
    idempotency key, so that the service computes it once: it looks into its store before and keeps the answer after it,
    two round trips for each call. `transport` is httpx's, and with `sleep` and `clock` for tests.

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
        self._base_url = _checked_url(base_url)
        self._conversation = _conversation(api_key, timeout_s, retries, clock, retry_safe=retry_safe)
        http = httpx.Client(base_url=self._base_url, headers=_headers(api_key), transport=transport)
        self._wire = Wire(http, sleep, self._conversation.clock.monotonic)

    def classify(  # noqa: PLR0913 - a query's options, by name
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
        return self._wire.run(self._conversation.classify(upload(images, names), options))

    def submit(
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
    ) -> Job:
        """Hand in what `classify` takes, and return the job that answers it, without waiting for it."""
        options = QueryOptions(
            model,
            top_k,
            deadline_ms,
            idempotency_key=idempotency_key,
            application=application,
            objectives=objectives,
        )
        return Job(
            self._wire.run(self._conversation.submit(upload(images, names), options)), self._wire, self._conversation
        )

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
        if result == "link":
            stored = self._wire.run(self._conversation.infer_result(batch, model, outputs, deadline_ms))
            return ServedResult(stored, self._wire, self._conversation)
        return self._wire.run(self._conversation.infer(batch, model, outputs, deadline_ms))

    def open_result(self, result_id: str) -> ServedResult:
        """Return a result that the service keeps, by its id."""
        stored = self._wire.run(self._conversation.open_result(result_id))
        return ServedResult(stored, self._wire, self._conversation)

    def register(
        self,
        network: Place,
        application: str,
        validation: Place,
        *,
        name: str | None = None,
        preprocess: Place | None = None,
        labels: Place | None = None,
        **options: str | float,
    ) -> RegistrationJob:
        """Hand a network in to be registered in an application, and return the job that does so, without waiting.

        `network` is the path of an ONNX file or the name of one of the zoo, `validation` a directory of labelled images
        or an archive of one (zip, tar, tar.gz), which are held in memory while they are sent. `preprocess` and `labels`
        are paths; `options` are `output`, `most`, `max_loss`, `latency_ms`, `instance`, `usd_per_hour`, `size` and
        `channels`, as `serfer register` has them. The same, handed in again, is one registration, and goes on.
        """
        form = registration_form(network, validation, Described(name, preprocess, labels, options))
        begun = self._wire.run(self._conversation.register(application, form))
        return RegistrationJob(application, begun.id, self._wire, self._conversation)

    def registration(self, application: str, registration: str) -> RegistrationJob:
        """Return a registration that was handed in before, by its id."""
        return RegistrationJob(application, registration, self._wire, self._conversation)

    def models(self) -> tuple[ServedModel, ...]:
        """Return the models that the service answers for."""
        return self._wire.run(self._conversation.models())

    def ready(self) -> bool:
        """Return whether the service takes queries now; raises ServiceUnavailableError where nothing answers."""
        return self._wire.run(self._conversation.ready())

    def close(self) -> None:
        """Close the connections."""
        self._wire.http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._base_url!r})"


class AsyncClient:
    """A service's client for asyncio: all of Client, awaited. Tasks of one event loop may share it."""

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
        self._base_url = _checked_url(base_url)
        self._conversation = _conversation(api_key, timeout_s, retries, clock, retry_safe=retry_safe)
        http = httpx.AsyncClient(base_url=self._base_url, headers=_headers(api_key), transport=transport)
        self._wire = AsyncWire(http, sleep)

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
        """Classify images as `Client.classify` does."""
        options = QueryOptions(model, top_k, deadline_ms, explain, idempotency_key, application, objectives)
        body = await asyncio.to_thread(upload, images, names)
        return await self._wire.run(self._conversation.classify(body, options))

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
        """Hand images in as `Client.submit` does."""
        options = QueryOptions(
            model,
            top_k,
            deadline_ms,
            idempotency_key=idempotency_key,
            application=application,
            objectives=objectives,
        )
        body = await asyncio.to_thread(upload, images, names)
        return AsyncJob(await self._wire.run(self._conversation.submit(body, options)), self._wire, self._conversation)

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
        """Run a network on a batch as `Client.infer` does."""
        if result == "link":
            stored = await self._wire.run(self._conversation.infer_result(batch, model, outputs, deadline_ms))
            return AsyncServedResult(stored, self._wire, self._conversation)
        return await self._wire.run(self._conversation.infer(batch, model, outputs, deadline_ms))

    async def open_result(self, result_id: str) -> AsyncServedResult:
        """Return a result that the service keeps, by its id."""
        stored = await self._wire.run(self._conversation.open_result(result_id))
        return AsyncServedResult(stored, self._wire, self._conversation)

    async def register(
        self,
        network: Place,
        application: str,
        validation: Place,
        *,
        name: str | None = None,
        preprocess: Place | None = None,
        labels: Place | None = None,
        **options: str | float,
    ) -> AsyncRegistrationJob:
        """Hand a network in to be registered as `Client.register` does."""
        described = Described(name, preprocess, labels, options)
        form = await asyncio.to_thread(registration_form, network, validation, described)
        begun = await self._wire.run(self._conversation.register(application, form))
        return AsyncRegistrationJob(application, begun.id, self._wire, self._conversation)

    def registration(self, application: str, registration: str) -> AsyncRegistrationJob:
        """Return a registration that was handed in before, by its id."""
        return AsyncRegistrationJob(application, registration, self._wire, self._conversation)

    async def models(self) -> tuple[ServedModel, ...]:
        """Return the models that the service answers for."""
        return await self._wire.run(self._conversation.models())

    async def ready(self) -> bool:
        """Return whether the service takes queries now; raises ServiceUnavailableError where nothing answers."""
        return await self._wire.run(self._conversation.ready())

    async def aclose(self) -> None:
        """Close the connections."""
        await self._wire.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"AsyncClient({self._base_url!r})"


@dataclass(frozen=True)
class Job:
    """A submitted query: the service keeps its result under `id` for a while."""

    id: str
    _wire: Wire = field(repr=False)
    _conversation: Conversation = field(repr=False)

    def status(self) -> JobStatus:
        """Return the job's status."""
        return self._wire.run(self._conversation.status(self.id))

    def result(self, timeout_s: float | None = None) -> ServedReport:
        """Wait for its result, at most `timeout_s` or as long as the client's calls may take.

        Raises what `classify` raises, RequestRefusedError when the service keeps it no longer, and
        ServiceDeadlineError when the time is up: the job continues, and `result` may be called again.
        """
        return self._wire.run(self._conversation.result(self.id, timeout_s))

    def cancel(self) -> None:
        """Cancel the job."""
        self._wire.run(self._conversation.cancel(self.id))


@dataclass(frozen=True)
class AsyncJob:
    """All of Job, awaited."""

    id: str
    _wire: AsyncWire = field(repr=False)
    _conversation: Conversation = field(repr=False)

    async def status(self) -> JobStatus:
        """Return the job's status."""
        return await self._wire.run(self._conversation.status(self.id))

    async def result(self, timeout_s: float | None = None) -> ServedReport:
        """Wait for its result as `Job.result` does."""
        return await self._wire.run(self._conversation.result(self.id, timeout_s))

    async def cancel(self) -> None:
        """Cancel the job."""
        await self._wire.run(self._conversation.cancel(self.id))


def _checked_url(base_url: str) -> str:
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise UsageError("base_url is not a URL: give one such as http://localhost:8000") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise UsageError("base_url must begin with http:// or https:// and name a host, as in http://localhost:8000")
    if url.userinfo or url.query or url.fragment:
        raise UsageError("base_url takes no user, no query and no fragment: an API key goes into api_key")
    return str(url)


def _headers(api_key: str | None) -> dict[str, str]:
    """Return what every request carries; replies come uncompressed, so that their bound is known as they arrive."""
    if api_key is not None and not _KEY.fullmatch(api_key):
        raise UsageError("api_key must be visible ASCII characters, 1 to 1024 of them and nothing around them")
    plain = {"Accept": "application/json", "Accept-Encoding": "identity", "User-Agent": "serfer"}
    # X-API-Key and not a bearer token: API Gateway, which is in front of function drivers, reads no other header.
    return plain if api_key is None else {**plain, "X-API-Key": api_key}


def _conversation(
    api_key: str | None, timeout_s: float, retries: int, clock: Clock | None, *, retry_safe: bool
) -> Conversation:
    if retries < 0:
        raise UsageError(f"retries must be 0 or more, not {retries}")
    return Conversation(timeout_s, Retries(retries), clock or Clock(), api_key or "", retry_safe=retry_safe)
