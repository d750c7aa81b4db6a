"""An application at a port: uvicorn with our bounds on heads, and an end in which no request is lost.

    SIGTERM or Ctrl-C ──> on_drain: /readyz says 503 ── drain_s ──> no new connections ──> what runs ends ──> return
                          balancers look and turn away              a second signal cuts what runs off

Requests that run are bounded by their deadlines, and all of them together by `FINISH_S`.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from serfer.api.protocol import limited_protocol
from serfer.core.errors import UnavailableError

FINISH_S = 900
_KEEP_ALIVE_S = 75  # longer than a balancer's, so that it never sends a request into a connection that we close
_MOST_HEAD = 32 * 1024  # bytes
_BACKLOG = 2048
_CUT = 2  # the signal that cuts off what runs; a third one waits for nothing
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    app: ASGIApp,
    *,
    host: str,
    port: int,
    header_timeout_s: float,
    drain_s: float,
    on_drain: Callable[[], None],
    on_started: Callable[[str], None],
) -> None:
    """Serve until SIGTERM or Ctrl-C, drain, and return; call it in the main thread.

    `on_started` gets the URL once requests are taken (port 0: any free one). The first signal calls `on_drain`; for
    `drain_s` seconds more, requests are taken. Both are called on the loop. Raises UnavailableError where the address
    cannot be had.
    """
    with _listening(host, port) as listener:
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=limited_protocol(header_timeout_s),
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=FINISH_S,
            h11_max_incomplete_event_size=_MOST_HEAD,
        )
        _Server(config, drain_s, on_drain, lambda: on_started(_url(listener))).run([listener])


class _Server(uvicorn.Server):
    """uvicorn's server, which drains before it ends and leaves the signals as it found them."""

    def __init__(
        self, config: uvicorn.Config, drain_s: float, on_drain: Callable[[], None], on_started: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._drain_s = drain_s
        self._on_drain = on_drain
        self._on_started = on_started
        self._signals = 0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take requests, and say so."""
        await super().startup(sockets)
        if not self.should_exit:
            self._on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Drain at the first signal; unlike uvicorn's own, raise it no more afterwards: it was obeyed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in _SIGNALS}
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._signal)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                signal.signal(number, handler)

    def _signal(self) -> None:
        self._signals += 1
        if self._signals == 1:
            self._on_drain()
            asyncio.get_running_loop().call_later(self._drain_s, self._close)
            return
        self.should_exit = True
        self.force_exit = self._signals > _CUT  # not at once: the application is told that its clients are gone
        for connection in list(self.server_state.connections):
            connection.transport.abort()

    def _close(self) -> None:
        self.should_exit = True


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raises UnavailableError that names the option to change."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=_BACKLOG)
    except (socket.gaierror, UnicodeError) as error:
        raise UnavailableError(f"--host {host!r} is no address of this machine: choose 127.0.0.1 or 0.0.0.0") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UnavailableError(f"--port {port} is taken: choose another, or stop what listens there") from error
        raise UnavailableError(
            f"--host {host} --port {port}: cannot listen there: {os.strerror(error.errno or 0)}"
        ) from error


def _url(listener: socket.socket) -> str:
    """Return the URL for clients on this machine."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - where to reach what listens everywhere
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
