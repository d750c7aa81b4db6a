"""redis-py's connections to a server or node, without retries of their own, which would hide that it is lost."""

from collections.abc import Callable, Sequence
from socket import socket
from ssl import SSLContext
from typing import Any

from redis.connection import BlockingConnectionPool, Connection, ConnectionPool
from redis.credentials import CredentialProvider

_UNBOUNDED = 2**31


class _Closing(ConnectionPool):
    def close(self) -> None:
        self.disconnect(inuse_connections=False)
        self.update_active_connections_for_reconnect()


class _BlockingPool(_Closing, BlockingConnectionPool):
    """At most `max_connections`; a caller waits `timeout` s for a free one."""


class _Login(CredentialProvider):
    """Logs each new connection in with what `login` returns then."""

    def __init__(self, login: Callable[[], Sequence[str]]) -> None:
        self._login = login

    def get_credentials(self) -> Any:  # noqa: ANN401 - one or two texts
        return self._login()


class _TlsConnection(Connection):
    """A connection that shares its TLS context with others: redis-py's own makes one each, in 40 ms (measured)."""

    def __init__(self, *, tls: SSLContext, **options: Any) -> None:  # noqa: ANN401 - a connection's
        super().__init__(**options)  # type: ignore[no-untyped-call]
        self._tls = tls

    def _connect(self) -> socket:
        plain: socket = super()._connect()  # type: ignore[no-untyped-call]
        try:
            plain.settimeout(self.socket_connect_timeout)
            wrapped = self._tls.wrap_socket(plain, server_hostname=self.host)
        except OSError:
            plain.close()
            raise
        wrapped.settimeout(self.socket_timeout)
        return wrapped


def open_pool(options: dict[str, Any], *, unbounded: bool) -> ConnectionPool:
    rest = {name: value for name, value in options.items() if name not in {"login", "max_connections", "timeout"}}
    if login := options.get("login"):
        rest["credential_provider"] = _Login(login)
    rest |= {
        "connection_class": _TlsConnection if "tls" in rest else Connection,
        "protocol": 2,
        "driver_info": None,  # sends CLIENT SETINFO, which the users of our deployments may not
    }
    if unbounded:
        return _Closing(max_connections=_UNBOUNDED, **rest)
    return _BlockingPool(options["max_connections"], options["timeout"], **rest)  # type: ignore[no-untyped-call]
