"""An application at a port: uvicorn with our bounds on heads, and an end in which no request is lost.

    SIGTERM or Ctrl-C ──> on_drain: /readyz says 503 ── drain_s ──> no new connections ──> what runs ends ──> return
                          balancers look and turn away              a second signal cuts what runs off

Ctrl-C drains only where requests run. They are bounded by their deadlines, and all of them together by `FINISH_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Sequence

import uvicorn
from starlette.types import ASGIApp

from serfer.api.http.protocol import limited_protocol
from serfer.api.observability.logs import write
from serfer.local.acceptor import Acceptor
from serfer.local.server import local_url

FINISH_S = 900
_KEEP_ALIVE_S = 75  # longer than a balancer's, so that it never sends a request into a connection that we close
_MOST_HEAD = 32 * 1024  # bytes
_SWITCH_S = 0.0005  # Python's 5 ms pass at each system call of the loop's while another thread computes
_CUT = 2  # the signal that cuts off what runs; a third one waits for nothing
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


async def serve(
    app: ASGIApp,
    *,
    listener: socket.socket,
    header_timeout_s: float,
    connections_each: int,
    drain_s: float,
    on_drain: Callable[[], None],
    on_started: Callable[[str], None],
    passed_on: Sequence[int] | memoryview = (0,),
) -> None:
    """Serve on the running loop until SIGTERM or Ctrl-C, drain, and return; await it in the main thread.

    `on_started` gets the URL once requests are taken. The first signal calls `on_drain`; for `drain_s` seconds more,
    requests are taken. Both are called on the loop. `listener` is closed. `passed_on` counts the signals that a parent
    has passed on: what a whole group gets comes here twice, and counts once.
    """
    sys.setswitchinterval(_SWITCH_S)
    with listener:
        config = uvicorn.Config(
            app,
            http=limited_protocol(header_timeout_s, connections_each),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=FINISH_S,
            h11_max_incomplete_event_size=_MOST_HEAD,
        )
        server = _Server(config, drain_s, on_drain, lambda: on_started(local_url(*listener.getsockname()[:2])))
        server.passed_on = passed_on
        await server.serve([listener])


class _Server(uvicorn.Server):
    """uvicorn's server, which drains before it ends and leaves the signals as it found them."""

    def __init__(
        self, config: uvicorn.Config, drain_s: float, on_drain: Callable[[], None], on_started: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._drain_s = drain_s
        self._on_drain = on_drain
        self._on_started = on_started
        self._signals = self._received = 0
        self.passed_on: Sequence[int] | memoryview = (0,)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        self._acceptors = [Acceptor(listener, self._protocol) for listener in sockets or ()]
        if not self.should_exit:
            self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
            await acceptor.settled()  # uvicorn ends those that it knows
        await super().shutdown(sockets)

    def _protocol(self) -> asyncio.Protocol:
        made = self.config.http_protocol_class
        return made(self.config, self.server_state, self.lifespan.state)  # type: ignore[call-arg] # typed too widely

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Drain at the first signal; unlike uvicorn's own, raise it no more afterwards: it was obeyed."""
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._signal, number)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def _signal(self, number: int) -> None:
        self._received += 1
        before, self._signals = self._signals, max(self.passed_on[0], self._received - self.passed_on[0])
        if self._signals >= _CUT:
            self.should_exit = True
            self.force_exit = self._signals > _CUT  # not at once: the application learns that its clients are gone
            for connection in list(self.server_state.connections):
                connection.transport.abort()
        elif not before:
            self._on_drain()
            drain_s = self._drain_s if number == signal.SIGTERM or self.server_state.tasks else 0.0
            if drain_s:
                write(logging.INFO, f"draining for {drain_s:g} s, and while requests run: again to stop now", {})
            asyncio.get_running_loop().call_later(drain_s, self.handle_exit, signal.SIGTERM, None)
