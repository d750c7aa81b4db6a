"""Loads and unloads variants at instances, in the background, by the Open Inference Protocol's repository extension.

What an instance last said is up to two seconds old: what was done since counts beside it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Final, Literal
from urllib.parse import quote

from serfer.applications.answering import BackgroundTasks
from serfer.core.http_messages import ModelState, ModelStatus
from serfer.drivers.instance.client import InstanceProbe, open_http
from serfer.fleet.log_events import log_event

if TYPE_CHECKING:
    import aiohttp

Action = Literal["load", "unload"]
_PATIENCE_S: Final[dict[Action, float]] = {"load": 60.0, "unload": 10.0}
_BLOCKED_S: Final = 30.0  # for which a variant that could not be loaded is not loaded at that instance again
_MOST: Final = 32  # requests at once
_MOST_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class _Done:
    status: ModelStatus
    at: float
    failed: bool = False


class VariantCopies:
    """Probes instances, and loads and unloads their models; `key` is the API key that they want. On one event loop."""

    def __init__(self, key: str, clock: Callable[[], float], changed: Callable[[], None]) -> None:
        self.changes: Counter[str] = Counter()
        self._key = key
        self._clock = clock
        self._changed = changed
        self._http: aiohttp.ClientSession | None = None
        self._done: dict[tuple[str, str], _Done] = {}
        self._under_way: dict[tuple[str, str], Action] = {}
        self.tasks = BackgroundTasks()

    def probe(self, url: str) -> InstanceProbe:
        return InstanceProbe(url, self._open_http())

    def change(self, action: Action, url: str, model: str) -> None:
        if (url, model) in self._under_way or len(self._under_way) >= _MOST:
            return
        log_event(logging.INFO, f"variant {action}s", instance=url, variant=model)
        self._under_way[url, model] = action
        self.tasks.start(self._change(action, url, model))

    def status(self, url: str, model: str, listed: ModelState, at: float) -> ModelStatus:
        """Return a model's status by what its instance listed at a time, and what was done since."""
        action = self._under_way.get((url, model))
        if action is not None:
            return "unloaded" if action == "unload" else "loaded" if listed.status == "loaded" else "loading"
        done = self._done.get((url, model))
        return done.status if done is not None and not done.failed and done.at > at else listed.status

    def is_blocked(self, url: str, model: str) -> bool:
        done = self._done.get((url, model))
        return done is not None and done.failed and self._clock() - done.at < _BLOCKED_S

    def forget(self, urls: tuple[str, ...]) -> None:
        self._done = {place: done for place, done in self._done.items() if place[0] in urls}

    async def close(self) -> None:
        await self.tasks.cancel()
        if self._http is not None:
            await self._http.close()

    async def _change(self, action: Action, url: str, model: str) -> None:
        try:
            failure = await self._requested(action, url, model)
        finally:
            del self._under_way[url, model]
        if failure is None:
            self.changes[action] += 1
            self._done[url, model] = _Done("loaded" if action == "load" else "unloaded", self._clock())
        elif action == "load":
            self.changes["failed"] += 1
            self._done[url, model] = _Done("unloaded", self._clock(), failed=True)
        if failure is None:
            log_event(logging.INFO, f"variant {action}ed", instance=url, variant=model)
        else:
            log_event(logging.WARNING, f"variant not {action}ed", instance=url, variant=model, message=failure)
        self._changed()

    async def _requested(self, action: Action, url: str, model: str) -> str | None:
        import aiohttp  # noqa: PLC0415 - most services have no instances, and it takes 7 MB

        http = self._open_http()
        place = f"{url}/v2/repository/models/{quote(model, safe='')}/{action}"
        try:
            async with asyncio.timeout(_PATIENCE_S[action]), http.post(place, json={}) as reply:
                body = await reply.content.read(_MOST_BYTES)
        except TimeoutError:
            return f"no response within {_PATIENCE_S[action]:g} s"
        except aiohttp.ClientError as error:
            return str(error)[:200] or type(error).__name__
        return (
            None if reply.status == HTTPStatus.OK else f"status {reply.status}: {body[:200].decode('utf-8', 'replace')}"
        )

    def _open_http(self) -> aiohttp.ClientSession:
        self._http = self._http or open_http(self._key)
        return self._http
