"""The whole system on one machine: store, Lambda service, drivers, and the balancer before them.

    client ──> HAProxy ──> driver (serfer serve) ──> local Lambda service ──> workers
                      └──> driver                                               │
                              └──────────────> store <──────────────────────────┘

Whatever ends by itself is started again where it was: a driver after a pause that grows, the balancer and an embedded
store at once (a store comes back empty; queries that had something in it are retried or fail). All of it lives on the
running loop and dies with its thread.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from serfer.core.errors import UnavailableError
from serfer.local.driver_process import DriverProcess, pause
from serfer.local.lambda_.service import LambdaService
from serfer.local.server import LocalServer
from serfer.local.servers.balancer import Balancer
from serfer.local.servers.redis import RedisServer

DRAIN_S = 2.0  # that a driver goes on taking requests: the balancer turns away from it within one
_FINISH_S = 900.0


@dataclass(frozen=True)
class Order:
    """The configuration: so many drivers, each run by `command` with `variables`, behind an address.

    Each gets about `requests` at the same time at most.
    """

    drivers: int
    command: Sequence[str]
    variables: Mapping[str, str]
    host: str
    port: int
    header_s: float
    requests: int


class Stack:
    """Drivers and their balancer before a started Lambda service; there may be none, nor a `store` that is embedded.

    `say` is called with what happened, `on_line` with the drivers' lines.
    """

    def __init__(
        self,
        order: Order,
        service: LambdaService | None,
        store: RedisServer | None,
        *,
        say: Callable[[str], None],
        on_line: Callable[[str], None],
    ) -> None:
        self._order = order
        self._service = service
        self._store = store
        self._say = say
        names = [f"driver {number}" for number in range(order.drivers)]
        self.drivers = [DriverProcess(name, order.command, order.variables, on_line, say) for name in names]
        self._balancer: Balancer | None = None
        self._guards: set[int] = set()  # pidfds
        self._retries: dict[str, asyncio.TimerHandle] = {}
        self._loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[None] = self._loop.create_future()  # ends with what cannot be mended

    @property
    def url(self) -> str:
        """The address for clients."""
        return self._running().url

    def as_dict(self) -> dict[str, object]:
        """Return addresses and process ids as JSON has them, but the store's address, which has a password."""
        return {
            "url": self.url,
            "page": f"{self.url}/",
            "pid": os.getpid(),
            "drivers": [{"url": driver.url, "pid": driver.pid} for driver in self.drivers],
            "balancer": {"pid": self._running().pid},
            "functions": {"url": self._service.url if self._service else None},
            "store": {"pid": self._store.pid if self._store else None},
        }

    async def start(self, progress: Callable[[str], None]) -> None:
        """Start drivers, then the balancer; raises UnavailableError where one does not start."""
        order = self._order
        progress(f"starting {order.drivers} drivers")
        await asyncio.gather(*(driver.start() for driver in self.drivers))
        progress("starting the balancer")
        ports = [driver.port for driver in self.drivers]
        most = order.drivers * order.requests
        self._balancer = Balancer(ports, host=order.host, port=order.port, header_s=order.header_s, most=most)
        self._guard("balancer", self._balancer, self._restart_balancer)
        if self._store is not None:
            self._guard("store", self._store, self._restart_store)

    async def stop(self) -> None:
        """Drain drivers and balancer; then stop them, the Lambda service and the store."""
        for pidfd in self._guards:
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
        self._guards.clear()
        for retry in self._retries.values():
            retry.cancel()
        self.failed.cancel()
        try:
            ends = [driver.stop() for driver in self.drivers]
            if self._balancer is not None:
                ends.append(asyncio.to_thread(self._balancer.drain, _FINISH_S))
            await asyncio.gather(*ends)
        finally:
            if self._service is not None:
                await self._service.stop()
            for server in (self._balancer, self._store):
                if server is not None:
                    server.stop()

    def hurry(self) -> None:
        """Cut off what runs."""
        for driver in self.drivers:
            driver.kill()
        if self._balancer is not None:
            self._balancer.stop()

    def _guard(self, name: str, server: LocalServer, restart: Callable[[], LocalServer]) -> None:
        """Start a server again whenever it ends; what cannot be mended ends `failed`."""
        pidfd = os.pidfd_open(server.pid)

        def ended() -> None:
            self._guards.discard(pidfd)
            self._loop.remove_reader(pidfd)
            os.close(pidfd)
            self._start_again(name, restart)

        self._guards.add(pidfd)
        self._loop.add_reader(pidfd, ended)

    def _start_again(self, name: str, restart: Callable[[], LocalServer], tries: int = 1) -> None:
        """Start a server that has ended; later, where there are no descriptors or processes to be had."""
        try:
            self._guard(name, restart(), restart)
            self._say(f"the {name} had ended and is back")
        except OSError as error:
            wait_s = pause(tries)
            self._say(f"the {name} has ended and cannot be started ({error.strerror}): again in {wait_s:g} s")
            self._retries[name] = self._loop.call_later(wait_s, self._start_again, name, restart, tries + 1)
        except UnavailableError as error:
            if not self.failed.done():
                self.failed.set_exception(error)

    def _restart_balancer(self) -> Balancer:
        balancer = self._running()
        balancer.restart()
        return balancer

    def _restart_store(self) -> RedisServer:
        """Start the embedded store again at its old URL, empty."""
        assert self._store is not None  # noqa: S101 - it is this one that has ended
        self._store.stop()
        self._store = RedisServer(self._store.port, urlsplit(self._store.url).password)
        return self._store

    def _running(self) -> Balancer:
        if self._balancer is None:
            raise UnavailableError("the balancer has not been started")
        return self._balancer
