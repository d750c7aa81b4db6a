"""Connections to Redis over TLS."""

import socket
import ssl
from pathlib import Path
from typing import Any

from serfer.core.errors import UsageError
from storage.redis.connection import Connection

_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_OPTIONS = (*_FILES, "ssl_password", "ssl_cert_reqs", "ssl_check_hostname")


class TlsConnection(Connection):
    """A connection that shares its TLS context with others: making one takes 40 ms (measured)."""

    UNREADY = (BlockingIOError, ssl.SSLWantReadError)

    def __init__(self, *, tls: ssl.SSLContext, **options: Any) -> None:  # noqa: ANN401  a connection's
        super().__init__(**options)
        self._tls = tls

    def open_socket(self) -> socket.socket:
        """Return a socket after its handshake, for which the server has as long as for the connection."""
        plain = super().open_socket()
        try:
            return self._tls.wrap_socket(plain, server_hostname=self.host)
        except OSError:
            plain.close()
            raise


def with_tls(options: dict[str, Any]) -> dict[str, Any]:
    """Replace the ssl_ options by a TLS context, which checks certificate and host name unless they say otherwise.

    Raises:
        UsageError: a file is missing or unusable, or `ssl_cert_reqs` is neither "required" nor "none".
    """
    rest = {name: value for name, value in options.items() if name not in _OPTIONS}
    given = {name: options.get(name) for name in _OPTIONS}
    for name in _FILES:
        if name in options and not Path(options[name]).is_file():
            raise UsageError(f"--store: {name} names no file: {options[name]}")
    if given["ssl_cert_reqs"] not in {None, "required", "none"}:
        raise UsageError("--store: ssl_cert_reqs is required or none")
    return {**rest, "connection_class": TlsConnection, "tls": _context(given)}


def _context(given: dict[str, Any]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=given["ssl_ca_certs"])
        if given["ssl_certfile"]:
            context.load_cert_chain(given["ssl_certfile"], given["ssl_keyfile"], given["ssl_password"] or "")
    except (OSError, ValueError) as error:
        raise UsageError(
            f"--store: ssl_ca_certs, ssl_certfile or ssl_keyfile is not a usable PEM file ({error.args[-1]})"
        ) from None
    if given["ssl_check_hostname"] is False or given["ssl_cert_reqs"] == "none":
        context.check_hostname = False
    if given["ssl_cert_reqs"] == "none":
        context.verify_mode = ssl.CERT_NONE
    return context
