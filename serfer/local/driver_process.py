"""One `serfer serve` beside others, at a port of its own, started again whenever it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from serfer.core.errors import UnavailableError
from serfer.core.retry import Backoff
from serfer.local.die_with_parent import dying_with_me
from serfer.local.lambda_.log import LogTail
from serfer.local.lambda_.process import WorkerProcess, exit_reason

_RESTARTS = Backoff(base=0.2, longest=10.0)  # s
_STEADY_S = 30.0  # after which an end counts as the first one again
_QUIET_S = 300.0  # for a driver to come up


class DriverProcess:
    """Runs `command` and `--port`, a `serfer serve --json`, on the running loop; it dies with that loop's thread.

    The process sees `variables` and nothing else of an environment. `on_line` gets every line that it writes, `say` one
    whenever it has ended or is back.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        variables: Mapping[str, str],
        on_line: Callable[[str], None],
        say: Callable[[str], None],
    ) -> None:
        self.name = name
        self.url = ""  # once it listens
        self._command = command
        self._variables = variables
        self._on_line = on_line
        self._say = say
        self._loop = asyncio.get_running_loop()
        self._process: WorkerProcess | None = None
        self._last = ""  # its last line: the reason of its end
        self._early: list[str] = []  # its lines before it first listened: the last are reported if it never does
        self._came_up: asyncio.Future[None] = self._loop.create_future()
        self._gone = asyncio.Event()
        self._ends = 0  # in a row
        self._since = 0.0  # when it was started, on the loop's clock
        self._again: asyncio.TimerHandle | None = None
        self._stopping = False

    @property
    def pid(self) -> int | None:
        """The process id, None while there is no process."""
        return self._process.pid if self._process else None

    @property
    def port(self) -> int:
        """The port on 127.0.0.1, 0 until it is known."""
        return urlsplit(self.url).port or 0

    async def start(self) -> None:
        """Start the process and wait until it listens; raises UnavailableError with its last words if not."""
        self._launch()
        try:
            async with asyncio.timeout(_QUIET_S):
                await self._came_up
        except TimeoutError as error:
            raise UnavailableError(f"{self.name} did not start within {_QUIET_S:g} s: {self._last}") from error

    def drain(self) -> None:
        """Ask the process to drain and exit; it is not restarted."""
        self._stopping = True
        if self._again is not None:
            self._again.cancel()
        if self._process is None:
            self._gone.set()
        else:
            with suppress(ProcessLookupError):
                os.kill(self._process.pid, signal.SIGTERM)

    async def stop(self) -> None:
        """Drain the process and wait until nothing is left of it; a cancelled caller kills it."""
        self.drain()
        try:
            await self._gone.wait()
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill the process at once; once it is to stop, it is not started again."""
        if self._process is not None:
            self._process.kill()

    def _launch(self) -> None:
        self._again = None
        self._since = self._loop.time()
        try:
            self._process = WorkerProcess(
                dying_with_me(*self._command, "--port", str(self.port)),
                cwd=Path.cwd(),
                env=self._variables,
                log=LogTail(self._heard),
                on_exit=self._ended,
            )
        except OSError as error:  # of descriptors, memory or processes, there may be more later
            if self._came_up.done():
                self._retry(f"could not be started ({error.strerror})")
            else:
                self._came_up.set_exception(UnavailableError(f"{self.name} cannot be started: {error.strerror}"))

    def _heard(self, line: str) -> None:
        url = _listens_at(line)
        if url is None:
            self._last = line.removeprefix("serfer: ")
            if self._came_up.done():
                self._on_line(line)
            else:
                self._early.append(line)
            return
        self.url = url
        if self._came_up.done():
            self._say(f"{self.name} is back at {url}")
        else:
            self._came_up.set_result(None)
            for early in self._early:
                self._on_line(early)
            self._early.clear()

    def _ended(self, status: int) -> None:
        self._process = None
        if self._stopping:
            self._gone.set()
        if not self._came_up.done():
            self._came_up.set_exception(UnavailableError(f"{self.name}: {self._last or exit_reason(status)}"))
        elif not self._stopping:
            self._retry(f"has ended ({_reason(status)})")

    def _retry(self, problem: str) -> None:
        """Start the process again after a pause, which grows with each end that follows another soon."""
        self._ends = 1 if self._loop.time() - self._since > _STEADY_S else self._ends + 1
        wait_s = pause(self._ends)
        self._say(f"{self.name} {problem}: it is started again in {wait_s:g} s")
        self._again = self._loop.call_later(wait_s, self._launch)


def pause(ends: int) -> float:
    """Return the seconds before a process that has ended so many times in a row is started again."""
    return _RESTARTS.wait(ends)


def _reason(status: int) -> str:
    if status >= 0:
        return f"exit code {status}"
    return f"signal: {(signal.strsignal(-status) or str(-status)).lower()}"


def _listens_at(line: str) -> str | None:
    """Return the URL in the line that `serfer serve --json` writes once it listens, None for any other."""
    if not line.startswith('{"url": "'):
        return None
    try:
        return str(json.loads(line)["url"])
    except (ValueError, KeyError):
        return None
