"""One execution environment: a worker process and the Runtime API that it talks to, on a port of its own.

    assign ──> [init: process starts] ── GET next ──> [invoke] ── POST response or error ──> idle ──> assign ...
                     │ init/error                        │ timeout, exit, out of memory
                     └──────────────> dead <─────────────┘

Where the host says so, the process stands still while there is no invocation, as Lambda freezes environments, and one
that starts in place of one that crashed starts in its function's own time (Lambda's suppressed init).

An init longer than Lambda's limit goes on, as Lambda's own second try does, but on the function's time: the timeout
starts at the limit and is not extended when the handler begins. The Runtime API has no credentials, so it drops what
other users connect. The memory limit is on the worker's own process; what
it starts besides is killed with it but not counted.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
import uuid
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from serfer.local.lambda_ import runtime
from serfer.local.lambda_.http_server import Exchange, HttpServer
from serfer.local.lambda_.process import LogTail, WorkerProcess, exit_reason, report_line

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from serfer.core.costs.aws import LambdaFacts
    from serfer.local.lambda_.conditions import Conditions, Counts, ProcessorLimit
    from serfer.local.lambda_.function import FunctionConfig

_log = logging.getLogger(__name__)
_API = "/2018-06-01/runtime/"
_KILLED = "Runtime exited with error: signal: killed"
_NOT_YOURS = b'{"errorType":"InvalidRequestID","errorMessage":"that invocation is not under way"}'


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of an invocation: its payload, the errorType if it failed, the log's tail if that was asked for."""

    payload: bytes
    error: str = ""
    log: bytes = b""


@dataclass(frozen=True, slots=True)
class Invocation:
    """One event for one environment; `headers` go to the runtime as they are, `done` is called once."""

    request_id: str
    payload: bytes
    done: Callable[[Outcome], None]
    tail: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Host:
    """The interface between an environment and its service."""

    facts: LambdaFacts
    runtimes: Mapping[Path, Path]  # by interpreter: what holds awslambdaric
    clock: Callable[[], float]
    on_log: Callable[[str], None] | None
    on_free: Callable[[Environment], None]  # it is idle, or dead
    on_orphan: Callable[[Environment, Invocation], None]  # it died before this invocation reached the worker
    on_reaped: Callable[[Environment], None]  # nothing is left of it
    counts: Counts
    freezes: bool  # between invocations
    conditions: Conditions


class Environment:
    """A worker of one function: takes one invocation at a time, `slowness` times as long as it needs.

    One that is `again` there starts in place of one that crashed. `crashed` is whether it has failed, and not an
    invocation alone.
    """

    def __init__(self, function: FunctionConfig, host: Host, slowness: float = 1.0, *, again: bool = False) -> None:
        self.function = function
        self.crashed = False
        self.slowness = slowness
        self.dead = False
        self.idle_since = 0.0  # s, on the host's clock
        self.reaped = asyncio.Event()
        self._host = host
        self._loop = asyncio.get_running_loop()
        self._server = HttpServer(self._handle, lambda _: host.facts.sync_payload_limit, ours_only=True)
        self._placing: asyncio.TimerHandle | None = None
        self._process: WorkerProcess | None = None
        self._log = LogTail(_prefixed(host.on_log, function.name))
        self._invocation: Invocation | None = None
        self._delivered: float | None = None  # when the worker was handed the invocation
        self._next: Exchange | None = None  # the worker's long poll
        self._timer: asyncio.TimerHandle | None = None  # holds the invocation's deadline, or the init's
        self._warm = False
        self._overran = again  # an init in the function's own time
        self._started = time.perf_counter()
        self._share: ProcessorLimit | None = None
        self._init_s: float | None = None  # of the invocation that waited for it
        self._peak = 0  # bytes

    def start_in(self, seconds: float) -> None:
        """Start the worker after the seconds that placing it takes; `kill` before that leaves nothing to wait for."""
        # No task: it might be cancelled, and stopping waits for those.
        self._placing = self._loop.call_later(seconds, self._start)

    def _start(self) -> None:
        self._placing = None
        try:
            self._started = time.perf_counter()  # it may have waited for its place
            port = self._server.listen("127.0.0.1")
            self._process = self._spawn(port)
            self._share = self._host.conditions.limit_processors(self._process, self.function.memory_mb)
        except OSError as error:
            self._crash("Runtime.StartFailed", f"the environment could not be started: {error}")
        if self._process is None:
            self._server.close()
            self._gone()

    def assign(self, invocation: Invocation) -> None:
        self._invocation = invocation
        if self._host.freezes and self._process is not None:
            self._process.go_on()
        if self._warm or self._overran:
            self._arm(self.function.timeout_s, self._timed_out)
        else:
            self._arm(self._host.facts.init_limit, self._init_overran)
        if self._next is not None:
            self._deliver(self._next)

    def kill(self) -> None:
        self.dead = True
        self._disarm()
        if self._share is not None:
            self._share.stop()
        self._server.close()
        if self._process is not None:
            self._process.kill()
        elif self._placing is not None:
            self._placing.cancel()
            self._placing = None
            self._gone()

    def check_memory(self) -> None:
        """Kill the environment if its worker's resident memory is above the function's."""
        if self._process is None or self.dead:
            return
        self._peak = max(self._peak, self._process.memory())
        if self._peak > self.function.memory_mb << 20:
            self._crash("Runtime.OutOfMemory", _KILLED)

    @property
    def _least_init_s(self) -> float:
        return self._host.conditions.least_init_s(restored=self.function.restored)

    def _spawn(self, port: int) -> WorkerProcess:
        stream = f"{time.strftime('%Y/%m/%d', time.gmtime())}/[{self.function.version}]{uuid.uuid4().hex}"
        client = self._host.runtimes[self.function.interpreter]
        return WorkerProcess(
            runtime.command(self.function, self.slowness),
            cwd=self.function.directory,
            env=runtime.variables(self.function, client, port, stream),
            log=self._log,
            on_exit=self._exited,
        )

    def _handle(self, exchange: Exchange) -> None:
        if exchange.target == f"{_API}invocation/next":
            self._on_next(exchange)
        elif exchange.target == f"{_API}init/error" and not self._warm:
            self._on_error(exchange.body, fatal=True)
        elif self._invocation is None or self._delivered is None:
            exchange.reply(400, _NOT_YOURS)
        elif exchange.oversize:
            limit = self._host.facts.sync_payload_limit
            message = f"Response payload size exceeded maximum allowed payload size ({limit} bytes)."
            self._fail("Function.ResponseSizeTooLarge", message)
        elif exchange.target == f"{_API}invocation/{self._invocation.request_id}/response":
            exchange.reply(202)
            self._settle(exchange.body)
        elif exchange.target == f"{_API}invocation/{self._invocation.request_id}/error":
            exchange.reply(202)
            self._on_error(exchange.body)
        else:
            exchange.reply(400, _NOT_YOURS)

    def _on_next(self, exchange: Exchange) -> None:
        if self.dead:
            return
        if not self._warm:
            early_s = self._least_init_s - (time.perf_counter() - self._started)
            if early_s > 0:
                self._loop.call_later(early_s, self._on_next, exchange)
                return
            self._warm = True
            self._init_s = time.perf_counter() - self._started
            if not self._overran:
                self._arm(self.function.timeout_s, self._timed_out)
        if self._invocation is None:
            self._next = exchange
            if self._host.freezes and self._process is not None:
                self._process.stand_still()
        else:
            self._deliver(exchange)

    def _deliver(self, exchange: Exchange) -> None:
        invocation, timer = self._invocation, self._timer
        if invocation is None or timer is None:
            return
        self._next = None
        if invocation.tail and self._process is not None and self._init_s is None:
            self._process.drain()
            self._log.last = b""
        if self._share is not None:
            self._share.start()
        self._delivered = time.perf_counter()
        deadline = time.time() + timer.when() - self._loop.time()
        headers = {
            "Content-Type": "application/json",  # awslambdaric crashes without it
            "Lambda-Runtime-Aws-Request-Id": invocation.request_id,
            "Lambda-Runtime-Deadline-Ms": str(int(deadline * 1000)),
            "Lambda-Runtime-Invoked-Function-Arn": self.function.arn,
            **invocation.headers,
        }
        exchange.reply(200, invocation.payload, headers)

    def _on_error(self, body: bytes, *, fatal: bool = False) -> None:
        """End the invocation with the worker's own words; a failed allocation is what Lambda kills for."""
        try:
            kind = str(json.loads(body)["errorType"])
        except (ValueError, KeyError, TypeError):
            kind = "Runtime.Unknown"
        if kind.endswith("MemoryError"):
            self._crash("Runtime.OutOfMemory", _KILLED)
            return
        if fatal:
            self.crashed = True
            self.kill()
        self._settle(body, kind)

    def _crash(self, kind: str, reason: str) -> None:
        if not self.dead and _log.hasHandlers():  # a command without a log says it with its query, if at all
            _log.warning("a worker of %s has ended (%s: %s)", self.function.name, kind, reason)
        request_id = self._invocation.request_id if self._invocation else ""
        self._fail(kind, f"RequestId: {request_id} Error: {reason}")

    def _fail(self, kind: str, message: str) -> None:
        self.crashed = True
        self.kill()
        self._settle(json.dumps({"errorType": kind, "errorMessage": message}).encode(), kind)

    def _settle(self, payload: bytes, error: str = "") -> None:
        """End the invocation: the environment is free first, then the caller hears."""
        invocation = self._invocation
        if invocation is None:
            return
        self._disarm()
        if self._share is not None:
            self._share.stop()
        log = self._report(invocation) if invocation.tail else b""
        self._invocation = self._delivered = self._init_s = None
        self.idle_since = self._host.clock()
        if error:
            self._host.counts.failed += 1
        self._host.on_free(self)
        invocation.done(Outcome(payload, error, log))

    def _report(self, invocation: Invocation) -> bytes:
        now = time.perf_counter()
        if self._process is not None:
            self._process.drain()
            self._peak = max(self._peak, self._process.memory())
        init_s = self._init_s if self._warm else now - self._started
        duration_s = now - self._delivered if self._delivered is not None else 0.0
        report = report_line(
            invocation.request_id,
            duration_s,
            init_s,
            self.function.memory_mb,
            self._peak,
            restored=self.function.restored,
        )
        return self._log.invocation(invocation.request_id, report)

    def _exited(self, status: int) -> None:
        try:
            self._end(status)
        finally:  # whatever failed: stopping waits for this
            self._gone()

    def _end(self, status: int) -> None:
        invocation = self._invocation
        if invocation is not None and self._warm and self._delivered is None:
            self._invocation = None
            self.kill()
            self._host.on_free(self)
            self._host.on_orphan(self, invocation)
        else:
            self._crash("Runtime.ExitError", exit_reason(status))

    def _gone(self) -> None:
        self.reaped.set()
        self._host.on_reaped(self)

    def _arm(self, seconds: float, action: Callable[[], None]) -> None:
        self._disarm()
        self._timer = self._loop.call_later(seconds, action)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _init_overran(self) -> None:
        self._overran = True
        self._arm(self.function.timeout_s, self._timed_out)

    def _timed_out(self) -> None:
        self._crash("Sandbox.Timedout", f"Task timed out after {self.function.timeout_s:.2f} seconds")


def _prefixed(on_log: Callable[[str], None] | None, name: str) -> Callable[[str], None] | None:
    return on_log and (lambda line: on_log(f"{name}: {line}"))
