"""The networks of one instance: loaded when they are needed, unloaded when another one needs the room (INFaaS, 3.3).

query ──▶ loaded? ──▶ its engine's queue ──▶ computed
│ no            ▲
▼               │ it waits there, until its deadline
room? ──▶ loaded (one at a time, a thread) ──▶ attached to its engine
│ no
▼
networks with nothing to do are unloaded, the least recently used first; else wait until one has nothing to do
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from numpy.typing import NDArray

from serfer.control.dispatch import Batching, Occupant, ServiceTimeEstimator, victims
from serfer.core.errors import NetworkLoadError, OverloadedError
from serfer.core.http_messages import InstanceState, ModelState, ModelStatus
from serfer.drivers.driver import RequestContext
from serfer.drivers.target import InstanceAnswer
from serfer.instance.device import Device
from serfer.instance.engine import Engine
from serfer.instance.measuring import NetworkMeasurement
from serfer.instance.network import Network
from serfer.system import give_back

_LONGEST = 200  # characters of a reason
_LOG = logging.getLogger(__name__)


class Resident:
    """A network and its engine: a Target, whether or not the network is in memory."""

    def __init__(
        self, name: str, measured: NetworkMeasurement, window_s: float, engine: Engine, owner: Residents
    ) -> None:
        self.name = name
        self.measured = measured
        self.window_s = window_s
        self.engine = engine
        self.held = measured.size if engine.network else 0  # bytes that it takes now
        self.status: ModelStatus = "loaded" if engine.network else "unloaded"
        self.loads = int(engine.network is not None)
        self.unloads = 0
        self.load_s = measured.load_s
        self.failure = ""
        self.last_used: float | None = None
        self.wanted_until = 0.0
        self.bringing: asyncio.Task[bool | None] | None = None
        self._owner = owner

    @property
    def busy(self) -> bool:
        return self.status == "loading" or self.engine.busy

    async def run(self, batch: NDArray[Any], deadline_s: float, context: RequestContext) -> InstanceAnswer:
        """Answer one query, with what it takes to load the network; raises what `Engine.run` does, NetworkLoadError."""
        self._owner.want(self)
        return await self.engine.run(batch, deadline_s, context)

    async def close(self) -> None:
        await self._owner.close(self)

    def state(self, now: float) -> ModelState:
        return ModelState(
            status=self.status,
            bytes=self.measured.size,
            resident_bytes=self.held,
            idle_s=None if self.last_used is None else round(max(0.0, now - self.last_used), 3),
            loads=self.loads,
            unloads=self.unloads,
            load_s=round(self.load_s, 3),
            failure=self.failure,
            signals=self.engine.signals(now),
            caution=self.measured.caution,
        )


class Residents:
    """Keeps at most `bound` bytes of networks in memory (None: any number), on one event loop.

    `load` opens a network, in a thread; it may raise anything.
    """

    def __init__(self, bound: int | None, load: Callable[[NetworkMeasurement], Network]) -> None:
        self.bound = bound
        self.device = Device()
        self._load = load
        self._all: dict[str, Resident] = {}
        self._lock = asyncio.Lock()  # one network at a time comes
        self._change = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="serfer-loader")

    def add(self, name: str, measured: NetworkMeasurement, network: Network | None, window_s: float) -> Resident:
        engine = Engine(
            measured.plan,
            network,
            Batching(measured.max_batch, window_s),
            ServiceTimeEstimator(measured.profile, measured.max_batch),
            name=measured.device,
            device=self.device,
            on_rest=self._changed,
            on_missing=lambda: self.want(resident),
        )
        resident = self._all[name] = Resident(name, measured, window_s, engine, self)
        return resident

    def __getitem__(self, name: str) -> Resident:
        return self._all[name]

    @property
    def held(self) -> int:
        return sum(resident.held for resident in self._all.values())

    def states(self) -> Mapping[str, ModelState]:
        now = time.monotonic()  # the event loop's clock
        return {name: resident.state(now) for name, resident in self._all.items()}

    def state(self) -> InstanceState:
        now = time.monotonic()
        devices = ", ".join({resident.measured.device: None for resident in self._all.values()})
        return InstanceState(devices, self.bound, self.held, round(self.device.utilisation(now), 4))

    def want(self, resident: Resident) -> None:
        """Have a network loaded if it is not, and count it as used."""
        now = asyncio.get_running_loop().time()
        resident.last_used = now
        if resident.status == "loaded" or resident.bringing is not None:
            return
        resident.engine.ready_at = now + resident.load_s
        resident.bringing = asyncio.get_running_loop().create_task(self._bring(resident))

    async def load(self, name: str, patience_s: float) -> None:
        """Load a network, for which others may have to go, within so many seconds.

        Raises OverloadedError where there was no room, NetworkLoadError where it cannot be loaded.
        """
        resident, loop = self._all[name], asyncio.get_running_loop()
        resident.wanted_until = loop.time() + patience_s
        self.want(resident)
        if resident.bringing is None:
            return
        loaded = None
        try:
            async with asyncio.timeout(patience_s):
                loaded = await asyncio.shield(resident.bringing)
        except TimeoutError:
            resident.wanted_until = 0.0
            self._changed()
        if loaded is None:
            raise OverloadedError(
                f"there was no room for {name} within {patience_s:.0f} s: the other networks have queries to answer",
                retry_after_s=resident.load_s,
            )
        if not loaded:
            raise NetworkLoadError(f"{name} cannot be loaded: {resident.failure}")

    async def unload(self, name: str) -> bool:
        """Unload a network until it is needed again, and return whether it is unloaded: one with queries is not."""
        resident = self._all[name]
        async with self._lock:
            if resident.busy:
                return False
            if resident.status == "loaded":
                await self._unload([resident])
            return resident.status == "unloaded"

    async def set_batching(self, name: str, max_batch: int | None, window_s: float) -> Batching:
        """Compute at most so many images at once, and wait for so many within a window; return what holds now.

        None are those that the network was opened with, and its window; more than that is never computed at once.
        """
        resident = self._all[name]
        most = resident.measured.max_batch
        own = Batching(most, resident.window_s)
        batching = own if max_batch is None else Batching(min(max_batch, most), window_s)
        resident.engine.set_batching(batching)
        return batching

    async def close(self, resident: Resident) -> None:
        """Serve a network no more; with the last one the threads end."""
        if resident.bringing is not None:
            resident.bringing.cancel()
            await asyncio.wait((resident.bringing,))
        await resident.engine.close()
        del self._all[resident.name]
        if not self._all:
            await asyncio.to_thread(self._thread.shutdown)

    async def _bring(self, resident: Resident) -> bool | None:
        """Load a network as soon as there is room, as long as a query waits for it or it is wanted, else return None.

        One that cannot be loaded, False, fails the queries that wait for it, at the end: later ones try again.
        """
        loaded = None
        try:
            while True:
                change = self._change
                async with self._lock:
                    if (gone := self._victims(resident)) is not None:
                        await self._unload([self._all[name] for name in gone])
                        loaded = await self._open(resident)
                        break
                if not resident.engine.waiting and asyncio.get_running_loop().time() >= resident.wanted_until:
                    break
                await change.wait()
        finally:
            resident.bringing = None
            resident.engine.ready_at = 0.0
            if loaded is False:
                error = NetworkLoadError(f"{resident.name} cannot be loaded: {resident.failure}")
                resident.engine.fail_waiting(error)
        return loaded

    def _victims(self, resident: Resident) -> tuple[str, ...] | None:
        if self.bound is None:
            return ()
        there = [
            Occupant(resident.name, resident.held, resident.last_used or 0.0, resident.busy)
            for resident in self._occupants(resident)
        ]
        return victims(resident.measured.load_size, there, self.bound)

    def _occupants(self, other: Resident) -> Iterable[Resident]:
        return (resident for resident in self._all.values() if resident is not other and resident.held)

    async def _open(self, resident: Resident) -> bool:
        loop, measured = asyncio.get_running_loop(), resident.measured
        began = loop.time()
        resident.status, resident.held = "loading", measured.load_size
        resident.engine.ready_at = began + resident.load_s
        network = None
        try:
            network = await loop.run_in_executor(self._thread, self._load, measured)
        except Exception as error:  # noqa: BLE001 - whatever it is, the next query tries again
            line = str(error).partition("\n")[0].replace(str(measured.directory), measured.plan.model)
            resident.failure = line[:_LONGEST] or type(error).__name__
            _log(logging.WARNING, "network not loaded", resident, reason=resident.failure)
            await loop.run_in_executor(self._thread, give_back)
        finally:
            resident.status, resident.held = ("loaded", measured.size) if network else ("unloaded", 0)
            self._changed()
        if network is not None:
            resident.failure, resident.load_s = "", loop.time() - began
            resident.loads += 1
            resident.last_used = loop.time()
            _log(logging.INFO, "network loaded", resident, seconds=round(resident.load_s, 3))
            resident.engine.attach(network)
        return network is not None

    async def _unload(self, residents: Sequence[Resident]) -> None:
        """Unload networks that have nothing to do; all of them at once take no more queries."""
        if not residents:
            return
        networks = [resident.engine.detach() for resident in residents]
        for resident in residents:
            resident.status = "unloaded"
            resident.unloads += 1
        await asyncio.get_running_loop().run_in_executor(self._thread, _free, networks)
        for resident in residents:
            resident.held = 0
            _log(logging.INFO, "network unloaded", resident)
        self._changed()

    def _changed(self) -> None:
        self._change.set()
        self._change = asyncio.Event()


def _log(level: int, event: str, resident: Resident, **fields: Any) -> None:  # noqa: ANN401 - any JSON value
    _LOG.log(level, event, extra={"serfer": {"model": resident.name, "bytes": resident.measured.size, **fields}})


def _free(networks: list[Network | None]) -> None:
    networks.clear()
    give_back()
