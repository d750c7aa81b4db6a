"""The networks of an instance as its HTTP server sees them: it runs on another event loop than they do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping

from serfer.control.dispatch import Batching
from serfer.core.served import InstanceState, ModelState
from serfer.instance.residents import Residents
from serfer.pipeline.event_loop import LoopThread


class InstanceRepository:
    """Tells the state of networks that run on `loop`, and loads and unloads them; used from any other event loop."""

    def __init__(self, residents: Residents, loop: LoopThread) -> None:
        self._residents = residents
        self._loop = loop

    def states(self) -> Mapping[str, ModelState]:
        """Return the state of every network."""
        return self._residents.states(time.monotonic())  # as the event loop's clock

    def state(self) -> InstanceState:
        """Return the state of what they share."""
        return self._residents.state(time.monotonic())

    async def load(self, name: str, patience_s: float) -> None:
        """Load a network within so many seconds; see Residents.load."""
        await asyncio.wrap_future(self._loop.submit(self._residents.load(name, patience_s)))

    async def unload(self, name: str) -> bool:
        """Unload a network that has nothing to do; see Residents.unload."""
        return await asyncio.wrap_future(self._loop.submit(self._residents.unload(name)))

    async def set_batching(self, name: str, max_batch: int | None, window_s: float) -> Batching:
        """Set how a network is batched; see Residents.set_batching."""
        return await asyncio.wrap_future(self._loop.submit(self._residents.set_batching(name, max_batch, window_s)))
