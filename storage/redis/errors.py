"""Errors of Redis servers, in one line that says what to change."""

import socket
from typing import TYPE_CHECKING

from serfer.core.errors import StoreError, StoreUnavailableError, ValueTooLargeError

if TYPE_CHECKING:
    from ssl import SSLError

_SHOWN = 120  # characters of what the server has said
_NOT_REDIS = "it is not a Redis server, or it wants TLS (rediss:// in --store) or wants none (redis://)"
CLOSED = f"closed the connection: it has stopped, or {_NOT_REDIS}"
NO_CONNECTION = "has no connection free: raise max_connections in --store"
_CUT_OFF = "closed the connection midway: it has stopped, or takes no value of that size (its proto-max-bulk-len)"
_ANONYMOUS = "wants a password: write redis://[USER]:PASSWORD@HOST:PORT in --store, rediss:// with TLS"
_LOGIN = (
    "refused the login: correct user and password in --store; with iam=, the user, the cache's name and the permission "
    "elasticache:Connect"
)
_FORBIDDEN = (
    "forbids it ({}): give the user in --store +get +getrange +set +exists +del +eval +xadd +xread +pexpire on the "
    "keys ~serfer:*"
)
_NO_TLS = "does not answer in TLS{}: if it is a Redis server without TLS, write redis:// in --store, not rediss://"
_NAME_MISMATCHES = {62, 64}  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH

# The first row whose code, the first word of the server's error, and words fit.
_REFUSALS: tuple[tuple[str, str, str], ...] = (
    ("ERR", "without any password", "has no password: leave it out of --store"),
    ("ERR", "no password is set", "has no password: leave it out of --store"),
    ("ERR", "invalid password", _LOGIN),
    ("ERR", "wrong number of arguments for 'auth'", "knows no users, only a password: leave the user out of --store"),
    ("ERR", "max number of clients", "has no connection free ({}): raise its maxclients"),
    ("ERR", "cluster support disabled", "is not a cluster: write redis:// or rediss:// in --store"),
    ("ERR", "DB index is out of range", "has no database of that number: correct the last part of --store"),
    ("NOAUTH", "", _ANONYMOUS),
    ("WRONGPASS", "", _LOGIN),
    ("NOPERM", "", _FORBIDDEN),
    ("OOM", "", "is full (maxmemory): give it more memory, or name another store with --store"),
    ("READONLY", "", "is a read-only replica: name its primary in --store"),
    ("LOADING", "", "is still loading its data: try again in a while"),
    ("CLUSTERDOWN", "", "says that its cluster is down ({}): repair it, or name another store with --store"),
    ("MASTERDOWN", "", "says that its cluster is down ({}): repair it, or name another store with --store"),
    ("TRYAGAIN", "", "is moving these keys to another node: try again"),
    ("UNBLOCKED", "", "has ended a wait (it became a replica): try again"),
    *(
        (code, "", "is a node of a cluster: write redis+cluster:// in --store, or rediss+cluster:// with TLS")
        for code in ("ASK", "MOVED")
    ),
)
_CODES = {code for code, _, _ in _REFUSALS}


class RedisError(Exception):
    """Why a command has no reply: its text follows "Redis at HOST:PORT"."""


class ResponseError(RedisError):
    """A server's own error, whose first word is its code."""


class RedirectionError(ResponseError):
    """MOVED, or ASK: another node has the slot, at `host`, "" for the same, and `port`; raises ValueError."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        code, _, address = text.split(" ")
        self.host, _, port = address.rpartition(":")
        self.port = int(port)
        self.moved = code == "MOVED"


def explained(error: RedisError, where: str, command: str) -> StoreError | StoreUnavailableError:
    if not isinstance(error, ResponseError):
        return StoreUnavailableError(f"Redis at {where} {error}")
    code, text = _split_code(str(error))
    if "invalid bulk length" in text:
        return ValueTooLargeError(f"Redis at {where} takes no value of that size: raise its proto-max-bulk-len")
    for known, words, reason in _REFUSALS:
        if code == known and words in text:
            return StoreUnavailableError(f"Redis at {where} {reason.format(text[:_SHOWN])}")
    return StoreError(f"Redis at {where} refused {command}: {text}")


def _split_code(text: str) -> tuple[str, str]:
    if "Error running script" in text:  # Redis before 7 has the reason of the script's command behind that
        text = text.rpartition(": -")[2]
    code, _, rest = text.partition(" ")
    return (code, rest) if code in _CODES else ("", text)


def invalid(line: bytes) -> RedisError:
    return RedisError(f"does not speak Redis's protocol ({line[:_SHOWN]!r}): are host and port in --store right?")


def failure(error: Exception, doing: str) -> str:
    """Return the text of a RedisError for what has failed while `doing`: connecting, writing or reading."""
    from ssl import SSLError  # noqa: PLC0415  takes 10 ms to import

    if isinstance(error, SSLError):
        return _tls_reason(error)
    if isinstance(error, TimeoutError):
        return _late(error, doing)
    if isinstance(error, ConnectionResetError | BrokenPipeError):
        return _CUT_OFF if doing == "writing" else CLOSED
    if isinstance(error, OSError):
        what = "found" if isinstance(error, socket.gaierror) else "reached"
        return f"cannot be {what} ({error.strerror}): is it running, and are host and port in --store right?"
    return f"cannot be reached ({error}): are host and port in --store right?"


def _tls_reason(cause: "SSLError") -> str:
    from ssl import SSLCertVerificationError  # noqa: PLC0415  as above

    if not isinstance(cause, SSLCertVerificationError):
        return _NO_TLS.format(f" ({cause.reason or cause.strerror})")
    if cause.verify_code in _NAME_MISMATCHES:
        return f"has a certificate for another name ({cause.verify_message}): write the host in --store as it has it"
    return (
        f"has a certificate that is not trusted ({cause.verify_message}): name the file of its authority, "
        "ssl_ca_certs=FILE, in --store"
    )


def _late(error: TimeoutError, doing: str) -> str:
    if "handshake" in str(error):
        return _NO_TLS.format(" in time")
    if doing == "connecting":
        return "cannot be reached in time: are host and port in --store right, and does a firewall let us through?"
    return (
        "does not answer in time: it is not a Redis server, or is too busy: check --store, where "
        "socket_timeout=SECONDS waits longer"
    )
