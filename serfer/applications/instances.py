"""The instances that run variants: their states, read every two seconds, and targets that send queries to one.

An instance is a `serfer instance --registry URL --app NAME`, which has the variants of that application for instances
as models, some of them in memory (INFaaS, 3.3). Each is a place of every variant that it has. Which instances there
are may change (serfer/applications/scaling).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from numpy.typing import NDArray

from serfer.control.selection import VariantSignals
from serfer.core.dataclass_codec import structure
from serfer.core.errors import InputError, OverloadedError, UnavailableError
from serfer.core.http_messages import InstanceState, ModelState
from serfer.core.plan import Plan
from serfer.core.variants import Place
from serfer.drivers.driver import RequestContext
from serfer.drivers.instance.client import Fault, FaultKind, InstanceClient, InstanceProbe, StatusError, open_http
from serfer.drivers.target import InstanceAnswer
from serfer.fleet.log_events import TroubleLog

if TYPE_CHECKING:
    import aiohttp

PERIOD_S: Final = 2.0
"""Seconds between two looks at an instance (INFaaS, section 5)."""
_PATIENCE_S = 1.5
_MOST_BYTES = 4 << 20
_DOWN_S = 4.5  # without an answer to a look, after which an instance is down
_SHARE = 0.5  # of a query's time
_NOISE_MS = 1.0  # by which a batch may be slower than profiled: of small networks that is no interference
_FULL_S = 1.0  # what is refused may come again then


@dataclass(frozen=True)
class _ModelEntry:
    name: str
    state: ModelState | None = None


@dataclass(frozen=True)
class _Listing:
    models: tuple[_ModelEntry, ...]
    instance: InstanceState | None = None


@dataclass(frozen=True)
class SeenInstance:
    """What an instance said of its models, and when; a `memory_bytes` of None means no bound."""

    models: Mapping[str, ModelState]
    utilisation: float
    memory_bytes: int | None
    at: float


class VariantInstances:
    """Instances by their URLs; `key` is the API key that they want."""

    def __init__(self, urls: Iterable[str], key: str, clock: Callable[[], float]) -> None:
        self.urls: tuple[str, ...] = ()
        self._key = key
        self._clock = clock
        self._troubles = TroubleLog("instance trouble", clock)
        self._seen: dict[str, SeenInstance] = {}
        self._looked = float("-inf")
        self.use(urls)

    def use(self, urls: Iterable[str]) -> None:
        known, self.urls = self.urls, tuple(dict.fromkeys(url.rstrip("/") for url in urls))
        self._seen = {url: seen for url, seen in self._seen.items() if url in self.urls}
        for gone in set(known) - set(self.urls):
            self._troubles.forget(gone)
        if not set(self.urls) <= set(known):
            self.look_soon()

    def look_soon(self) -> None:
        self._looked = float("-inf")

    def seen(self, url: str) -> SeenInstance | None:
        seen = self._seen.get(url)
        return seen if seen is not None and self._clock() - seen.at < _DOWN_S else None

    async def look(self) -> None:
        if not self.urls or self._clock() - self._looked < PERIOD_S:
            return
        self._looked, urls = self._clock(), self.urls
        async with open_http(self._key) as http:
            found = await asyncio.gather(*(self._read(http, url) for url in urls))
        self._seen |= {
            url: seen for url, seen in zip(urls, found, strict=True) if seen is not None and url in self.urls
        }

    def down(self, url: str) -> None:
        self._seen.pop(url, None)
        self.look_soon()

    def signals(self, model: str) -> dict[str, VariantSignals]:
        now = self._clock()
        return {
            url: _signals(seen.models[model], seen.utilisation, now - seen.at)
            for url, seen in self._seen.items()
            if model in seen.models and now - seen.at < _DOWN_S
        }

    def cautions(self, model: str) -> dict[str, str]:
        return {
            url: state.caution
            for url in self.urls
            if (seen := self.seen(url)) and (state := seen.models.get(model)) and state.caution
        }

    def target(self, url: str, model: str, plan: Plan) -> OneInstance:
        return OneInstance(url, model, plan, self._key)

    async def _read(self, http: aiohttp.ClientSession, url: str) -> SeenInstance | None:
        import aiohttp  # noqa: PLC0415 - most services have no instances, and it takes 7 MB

        try:
            async with asyncio.timeout(_PATIENCE_S):
                data, _ = await InstanceProbe(url, http).read("GET", "/v1/models", _MOST_BYTES)
            listing = structure(_Listing, json.loads(data), "models", lenient=True, error=InputError)
        except (TimeoutError, aiohttp.ClientError, StatusError, InputError, ValueError, RecursionError) as error:
            self._troubles.note(url, str(error)[:200], instance=url)
            return None
        self._troubles.over(url, instance=url)
        models = {model.name: model.state for model in listing.models if model.state is not None}
        shared = listing.instance
        memory = shared.memory_bytes if shared else None
        return SeenInstance(models, shared.utilisation if shared else 0.0, memory, self._clock())


def _signals(state: ModelState, utilisation: float, age_s: float) -> VariantSignals:
    engine = state.signals
    excess_ms = engine.profiled_ms * (engine.interference - 1.0)
    ratio = engine.interference if excess_ms >= _NOISE_MS else min(1.0, engine.interference)
    return VariantSignals(
        Place.INSTANCE,
        warm=int(state.status == "loaded"),
        share=min(1.0, max(0.0, utilisation)),
        waiting=engine.waiting / max(1, engine.max_batch),
        latency_ratio=ratio if engine.batches else None,
        age_s=age_s,
    )


class OneInstance:
    """A target that sends every query to one model of one instance; used on the event loop of its pipeline."""

    def __init__(self, url: str, model: str, plan: Plan, key: str) -> None:
        self._url = url
        self._model = model
        self._plan = plan
        self._key = key
        self._http: aiohttp.ClientSession | None = None
        self._client: InstanceClient | None = None

    async def run(self, batch: NDArray[Any], deadline_s: float, context: RequestContext) -> InstanceAnswer:
        """Answer a query within half of its time, so that the rest is left for another place where it is not.

        Raises OverloadedError where the instance has no room, UnavailableError where it fails or is too slow.
        """
        if self._client is None:
            self._http = open_http(self._key)
            self._client = InstanceClient(self._url, self._model, self._plan, self._http)
        result = await self._client.infer(batch, deadline_s * _SHARE, deadline_s * _SHARE, context.request)
        if isinstance(result, Fault):
            raise _error(result)
        computed_ms = result.computed_ms or 0.0
        return InstanceAnswer(result.logits, self._url, result.batch or len(result.logits), computed_ms, 0.0)

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()


def _error(fault: Fault) -> Exception:
    if fault.kind is FaultKind.REFUSED:
        return OverloadedError(fault.message, retry_after_s=_FULL_S)
    return UnavailableError(fault.message)
