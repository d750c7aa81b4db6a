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
import json
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from serfer.core.errors import UnavailableError
from serfer.local.die_with_parent import dying_with_me
from serfer.local.lambda_.process import LogTail, WorkerProcess, exit_reason
from serfer.local.lambda_.service import LambdaService
from serfer.local.server import LocalServer
from serfer.local.servers.balancer import Balancer
from serfer.local.servers.redis import RedisServer
from serfer.local.supervisor import INHERITED, Restarts, ServingState

FEW = 1024
"""Below this a stack of drivers, functions and their clients runs out under an ordinary load."""
DRAIN_S = 2.0  # that a driver goes on taking requests: the balancer turns away from it within one
_FINISH_S = 900.0
_QUIET_S = 300.0  # for a driver to come up


class DriverProcess:
    """Runs `command` and `--port`, a `serfer serve --json`, on the running loop, and starts it again when it ends.

    The process sees `variables` and nothing else of an environment. `on_line` gets every line that it writes, `say` one
    and its level of logging whenever it has ended or is back.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        variables: Mapping[str, str],
        on_line: Callable[[str], None],
        say: Callable[[str, int], None],
    ) -> None:
        self.name = name
        self.url = ""  # once it listens
        self._command = command
        self._variables = variables
        self._on_line = on_line
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._process: WorkerProcess | None = None
        self._state: ServingState
        self._early: list[str] = []  # lines before it first listened
        self._listening: asyncio.Future[None] = self._loop.create_future()
        self._stopping = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 0

    async def start(self) -> None:
        """Start the process and wait until it listens; raises UnavailableError with its last words if not."""
        self._running = asyncio.create_task(self._keep_running())
        try:
            async with asyncio.timeout(_QUIET_S):
                await self._listening
        except TimeoutError as error:
            raise UnavailableError(f"{self.name} did not start within {_QUIET_S:g} s: {self._last}") from error

    async def stop(self) -> None:
        """Ask the process to drain and exit, and wait until nothing is left of it; a cancelled caller kills it."""
        self._stopping.set()
        if self._process is not None:
            self._state.pass_on(signal.SIGTERM, self._process.pid)
        try:
            if self._running is not None:
                await asyncio.shield(self._running)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the process at once; once it is to stop, it is not started again."""
        if self._process is not None:
            self._process.kill()

    async def _keep_running(self) -> None:
        restarts = Restarts()
        while not self._stopping.is_set():
            since = self._loop.time()
            try:
                status, problem = await self._run(restarts.count)
                first = f"{self.name}: {self._last or exit_reason(status)}"
            except OSError as error:  # of descriptors, memory or processes, there may be more later
                problem = f"could not be started ({error.strerror})"
                first = f"{self.name} cannot be started: {error.strerror}"
            if not self._listening.done():
                self._listening.set_exception(UnavailableError(first))
                return
            if self._stopping.is_set():
                return
            wait_s = restarts.pause_s(self._loop.time() - since)
            self._say(f"{self.name} {problem}: it is started again in {wait_s:g} s", logging.WARNING)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), wait_s)

    async def _run(self, restarts: int) -> tuple[int, str]:
        ended: asyncio.Future[int] = self._loop.create_future()
        command = dying_with_me(*self._command, "--port", str(self.port))
        log = LogTail(self._read_line)
        with ServingState.made(restarts) as self._state:
            state = self._state.descriptor
            known = {**self._variables, INHERITED: str(state)}
            self._process = WorkerProcess(
                command, cwd=Path.cwd(), env=known, log=log, on_exit=ended.set_result, keeps=[state]
            )
            try:
                return (status := await ended), self._state.reason(status)
            finally:
                self._process = None

    @property
    def _last(self) -> str:
        return self._early[-1].removeprefix("serfer: ") if self._early else ""

    def _read_line(self, line: str) -> None:
        url = _listens_at(line)
        if url is not None:
            self.url = url
        if self._listening.done():
            if url is None:
                self._on_line(line)
            else:
                self._say(f"{self.name} is back at {url}", logging.INFO)
        elif url is None:
            self._early.append(line)
        else:
            self._listening.set_result(None)
            for early in self._early:
                self._on_line(early)


class Stack:
    """Drivers and their balancer before a started Lambda service; there may be none, nor a `store` that is embedded.

    `command` with `variables` starts each of `drivers` drivers, which gets about `requests` at the same time at most.
    `say` is called with what happened and its level of logging, `on_line` with the drivers' lines.
    """

    def __init__(
        self,
        drivers: int,
        command: Sequence[str],
        variables: Mapping[str, str],
        service: LambdaService | None,
        store: RedisServer | None,
        *,
        say: Callable[[str, int], None],
        on_line: Callable[[str], None],
    ) -> None:
        self._service = service
        self._store = store
        self._say = say
        names = [f"driver {number}" for number in range(drivers)]
        self.drivers = [DriverProcess(name, command, variables, on_line, say) for name in names]
        self._balancer: Balancer | None = None
        self._guards: list[asyncio.Task[None]] = []

    def as_dict(self) -> dict[str, object]:
        """Return addresses and process ids as JSON has them, but the store's address, which has a password."""
        assert self._balancer is not None  # noqa: S101 - the stack has started
        return {
            "url": self._balancer.url,
            "page": f"{self._balancer.url}/",
            "pid": os.getpid(),
            "drivers": [{"url": driver.url, "pid": driver.pid} for driver in self.drivers],
            "balancer": {"pid": self._balancer.pid},
            "functions": {"url": self._service.url if self._service else None},
            "store": {"pid": self._store.pid if self._store else None},
        }

    async def start(
        self, progress: Callable[[str], None], host: str, port: int, *, header_s: float, requests: int
    ) -> str:
        """Start drivers, then the balancer, and return its URL; raises UnavailableError where one does not start."""
        progress(f"starting {len(self.drivers)} drivers")
        await asyncio.gather(*(driver.start() for driver in self.drivers))
        progress("starting the balancer")
        ports = [driver.port for driver in self.drivers]
        balancer = Balancer(ports, host=host, port=port, header_s=header_s, most=len(ports) * requests)
        self._balancer = balancer
        servers: list[tuple[str, LocalServer | None]] = [("balancer", balancer), ("store", self._store)]
        self._guards = [asyncio.create_task(self._guard(name, server)) for name, server in servers if server]
        return balancer.url

    async def failed(self) -> None:
        """Wait for what cannot be mended, and raise it."""
        await asyncio.gather(*self._guards)

    async def stop(self) -> None:
        """Drain drivers and balancer; then stop them, the Lambda service and the store."""
        for guard in self._guards:
            guard.cancel()
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

    def kill(self) -> None:
        """Cut off what runs."""
        for driver in self.drivers:
            driver.kill()
        if self._balancer is not None:
            self._balancer.stop()

    async def _guard(self, name: str, server: LocalServer) -> None:
        """Start a server again whenever it ends; later, where there are no descriptors or processes to be had."""
        failed: Restarts | None = None
        while True:
            try:
                if failed is None:
                    await _end_of(server.pid)
                server.restart()
            except OSError as error:
                failed = failed or Restarts()
                wait_s = failed.pause_s(0.0)
                problem = f"has ended and cannot be started ({error.strerror}): again in {wait_s:g} s"
                self._say(f"the {name} {problem}", logging.WARNING)
                await asyncio.sleep(wait_s)
            else:
                failed = None
                self._say(f"the {name} had ended and is back", logging.WARNING)


async def _end_of(pid: int) -> None:
    pidfd = os.pidfd_open(pid)
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(pidfd, ended.set)
    try:
        await ended.wait()
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)


def _listens_at(line: str) -> str | None:
    if not line.startswith('{"url": "'):
        return None
    try:
        return str(json.loads(line)["url"])
    except (ValueError, KeyError):
        return None
