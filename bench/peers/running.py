"""A peer's server as a process of its own: started, asked until it answers, weighed, and ended with all below it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from psutil import NoSuchProcess, Process, wait_procs

from serfer.core.errors import UnavailableError
from serfer.local.server import free_ports
from serfer_bench.core.environments import copy_package, environment
from serfer_bench.core.processes import descendants, end, processor_s, used_s
from serfer_bench.peers.peers import APPS, Launch, Peer, Request

_PORTS = 2
_START_S, _ANSWER_S, _END_S = 180.0, 60.0, 10.0
_LOOK_S = 0.01
_LOG = "log.txt"
_TOLD = 400  # characters of a log


@dataclass(frozen=True)
class Running:
    """A server that answers; `start_s` are the seconds from its process to its first answer."""

    peer: Peer
    launch: Launch
    pid: int
    start_s: float
    http: aiohttp.ClientSession

    async def post(self, request: Request) -> bytes:
        return await _post(self.http, self.peer.name, request)

    def processor_s(self) -> tuple[float, float]:
        return processor_s(self.pid), used_s([Process(self.pid)])

    def pss(self) -> int:
        """Return the resident bytes of all its processes, in which a page that n share counts as an n-th of it."""
        return sum(map(_pss, [Process(self.pid), *descendants(self.pid)]))


def prepared(peer: Peer, cache: Path, progress: Callable[[str], None]) -> Path | None:
    return environment(peer.lock, peer.requirements, cache, progress) if peer.lock else None


@asynccontextmanager
async def running(
    peer: Peer, python: Path, network: Path, threads: int, workers: int, home: Path, image: bytes
) -> AsyncIterator[Running]:
    launch = Launch(python, home, network, threads, workers, tuple(free_ports(_PORTS)), batch=peer.batch)
    copy_package(APPS, launch.code)
    started, process = time.perf_counter(), _start(peer, launch)
    try:
        async with _client() as http:
            await _first_answer(peer, peer.request(launch, image), http, process, home / _LOG)
            yield Running(peer, launch, process.pid, time.perf_counter() - started, http)
    finally:
        await asyncio.to_thread(_end, process)


def _start(peer: Peer, launch: Launch) -> subprocess.Popen[bytes]:
    with (launch.home / _LOG).open("wb") as log:
        return subprocess.Popen(  # noqa: S603 - our own command
            peer.command(launch),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=launch.home,
            env={**os.environ, **peer.variables(launch)},
        )


def _client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_ANSWER_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=_ANSWER_S),
        auto_decompress=False,
    )


async def _post(http: aiohttp.ClientSession, name: str, request: Request) -> bytes:
    try:
        async with http.post(request.url, data=request.body, headers=request.headers()) as response:
            body = await response.read()
            if response.status != 200:  # noqa: PLR2004 - OK
                raise UnavailableError(f"{name} answered {response.status}: {body[:_TOLD].decode(errors='replace')}")
            return body
    except (aiohttp.ClientError, TimeoutError) as error:
        raise UnavailableError(f"{name} did not answer: {str(error) or type(error).__name__}") from error


async def _first_answer(
    peer: Peer, request: Request, http: aiohttp.ClientSession, process: subprocess.Popen[bytes], log: Path
) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        if process.poll() is not None:
            raise UnavailableError(f"{peer.name} ended with {process.returncode}: {_end_of(log)}")
        try:
            await _post(http, peer.name, request)
        except UnavailableError as error:
            if time.monotonic() > deadline:
                raise UnavailableError(f"no answer in {_START_S:g} s: {error}: {_end_of(log)}") from error
            await asyncio.sleep(_LOOK_S)
        else:
            return


def _end_of(log: Path) -> str:
    return " ".join(log.read_text(errors="replace").split())[-_TOLD:] or "it said nothing"


def _end(process: subprocess.Popen[bytes]) -> None:
    below = descendants(process.pid)
    end(process, _END_S)
    for left in wait_procs(below, timeout=1.0)[1]:
        with suppress(NoSuchProcess):
            left.kill()


def _pss(process: Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except NoSuchProcess:
        return 0
