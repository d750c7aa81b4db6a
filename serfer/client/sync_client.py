# Made from async_client.py by tests/client/unasync.py: change that file, and run that script.
"""The blocking client of a SerFer service (serfer serve; docs/reference/client.md).

    with serfer.Client("http://localhost:8000") as client:
        report = client.classify("cat.jpg")
        print(report.images[0].predictions[0].label, report.latency_ms, report.cost_usd)

Requests and retries are decided in serfer/client/conversation.py, and sent by serfer/client/wire.py.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self, overload

import httpx

from serfer.client.conversation import Clock, Conversation, Retries
from serfer.client.messages import Image, QueryOptions, upload
from serfer.client.results import ServedResult
from serfer.client.sync_session import Session
from serfer.client.tensors import ServedTensor
from serfer.client.wire import Wire, checked_url, headers
from serfer.core.http_messages import (
    NO_OBJECTIVES,
    JobStatus,
    Objectives,
    ServedModel,
    ServedPrediction,
    ServedReport,
)


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
        self._conversation = conversation
        self._session = Session(Wire(http, sleep, conversation.clock.monotonic), conversation)

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
        body = upload(images, names)
        return self._session.run(self._conversation.classify(body, options))

    def predict(  # noqa: PLR0913 - a query's options, by name
        self,
        images: Image | Sequence[Image],
        *,
        model: str | None = None,
        application: str | None = None,
        objectives: Objectives = NO_OBJECTIVES,
        top_k: int = 5,
        min_score: float | None = None,
        deadline_ms: int | None = None,
        explain: bool = False,
        names: Sequence[str] | None = None,
        idempotency_key: str | None = None,
    ) -> ServedPrediction:
        """Ask what any network finds in images, all in one query, and return its report.

        By its `kind`, each image has `predictions`, the `boxes` of a detector (of at least `min_score`, in the image's
        own pixels), or `outputs`: vectors' values, maps as PNG or where the service keeps them. Everything else is as
        for `classify`.
        """
        options = QueryOptions(
            model,
            top_k,
            deadline_ms,
            explain,
            idempotency_key,
            application,
            objectives,
            min_score=min_score,
            classifies=False,
        )
        body = upload(images, names)
        return self._session.run(self._conversation.predict(body, options))

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
        body = upload(images, names)
        return Job(self._session.run(self._conversation.submit(body, options)), self._session)

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
            stored = self._session.run(self._conversation.infer_result(batch, model, outputs, deadline_ms))
            return ServedResult(stored, self._session)
        return self._session.run(self._conversation.infer(batch, model, outputs, deadline_ms))

    def open_result(self, result_id: str) -> ServedResult:
        """Return a result that the service keeps, by its id."""
        stored = self._session.run(self._conversation.open_result(result_id))
        return ServedResult(stored, self._session)

    def models(self) -> tuple[ServedModel, ...]:
        """Return the models that the service answers for."""
        return self._session.run(self._conversation.models())

    def ready(self) -> bool:
        """Return whether the service takes queries now; raises ServiceUnavailableError where nothing answers."""
        return self._session.run(self._conversation.ready())

    def close(self) -> None:
        """Close the connections."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self._base_url!r})"


@dataclass(frozen=True)
class Job:
    """A submitted query: the service keeps its result under `id` for a while."""

    id: str
    _session: Session = field(repr=False)

    def status(self) -> JobStatus:
        """Return the job's status."""
        return self._session.run(self._session.conversation.status(self.id))

    def result(self, timeout_s: float | None = None) -> ServedReport:
        """Wait for its result, at most `timeout_s` or as long as the client's calls may take.

        Raises what `classify` raises, RequestRefusedError when the service keeps it no longer, and
        ServiceDeadlineError when the time is up: the job continues, and `result` may be called again.
        """
        return self._session.run(self._session.conversation.result(self.id, timeout_s))

    def cancel(self) -> None:
        """Cancel the job."""
        self._session.run(self._session.conversation.cancel(self.id))
