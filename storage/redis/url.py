"""The URL of a Redis server or cluster as the options of its connections."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from serfer.core.errors import UsageError

if TYPE_CHECKING:
    from ssl import SSLContext

MALFORMED = (
    "--store: the Redis URL is malformed or has an unknown option: write "
    "redis://[USER]:PASSWORD@HOST:PORT[/DB][?OPTION=VALUE], special characters of user and password percent-encoded; "
    "docs/reference/stores.md has the options"
)
_DEFAULTS: dict[str, Any] = {
    "port": 6379,
    "max_connections": 64,
    "timeout": 5.0,
    "socket_timeout": 5.0,
    "socket_connect_timeout": 2.0,
}
_IAM = ("iam", "iam_serverless", "iam_region")
_TLS_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_TLS = (*_TLS_FILES, "ssl_password", "ssl_cert_reqs", "ssl_check_hostname")


def server_options(url: str) -> dict[str, Any]:
    """Return the options of RedisNode for `redis://` or, with certificate and host name checked, `rediss://`."""
    secure = url.startswith("rediss://")
    options = _with_iam(_parse(url), secure=secure)
    user, password = options.pop("username", None), options.pop("password", None)
    if "login" not in options and (user or password):
        login = (user, password or "") if user else (password,)
        options["login"] = lambda: login
    return _with_tls(options) if secure else options


def cluster_options(url: str) -> tuple[list[tuple[str, int]], dict[str, Any]]:
    """Return the nodes to ask first, (host, port) each, and the nodes' options, for `redis+cluster://HOST:PORT,...`.

    Raises:
        UsageError: the URL is malformed, or names a database other than 0, the only one that a cluster has.
    """
    scheme, _, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    tail = rest.removeprefix(authority)
    login, at, hosts = authority.rpartition("@")
    urls = [f"{scheme.removesuffix('+cluster')}://{login}{at}{host}{tail}" for host in hosts.split(",")]
    nodes = [(parsed["host"], parsed["port"]) for parsed in map(_parse, urls)]
    options = server_options(urls[0])
    if options.pop("db", 0):
        raise UsageError("--store: a Redis cluster has no database but 0: leave the number out")
    return nodes, options


def _parse(url: str) -> dict[str, Any]:
    try:
        parts = urlsplit(url)
        given = {**_address(parts), **_parse_query(parts)}
    except (ValueError, KeyError):
        raise UsageError(MALFORMED) from None
    if not re.fullmatch(r"rediss?://[^/?#]+(/\d*)?(\?[^#]*)?", url):
        raise UsageError(MALFORMED)
    return {**_DEFAULTS, **given}


def _address(parts: SplitResult) -> dict[str, Any]:
    if not (host := unquote(parts.hostname or "")):
        raise ValueError
    if not host.isascii():
        host.encode("idna")
    given = {
        "host": host,
        "port": parts.port,
        "username": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "db": int(parts.path.strip("/") or 0),
    }
    return {name: value for name, value in given.items() if value}


def _parse_query(parts: SplitResult) -> dict[str, Any]:
    known: Mapping[str, Callable[[str], Any]] = {
        **dict.fromkeys((*_IAM, *_TLS), str),
        **dict.fromkeys(("timeout", "socket_timeout", "socket_connect_timeout"), float),
        "ssl_check_hostname": lambda text: text.upper() not in {"0", "F", "FALSE", "N", "NO"},
        "max_connections": _count,
        "db": int,
    }
    if parts.scheme == "redis":
        known = {name: value for name, value in known.items() if name not in _TLS}
    return {name: known[name](values[0]) for name, values in parse_qs(parts.query).items()}


def _count(text: str) -> int:
    if (number := int(text)) < 1:
        raise ValueError
    return number


def _with_iam(options: dict[str, Any], *, secure: bool) -> dict[str, Any]:
    cache, serverless, region = (options.pop(name, None) for name in _IAM)
    if cache is None and serverless is None and region is None:
        return options
    user = options.pop("username", None)
    if not (cache and user and secure and not options.get("password") and serverless in {None, "true", "false"}):
        raise UsageError(
            "--store: login by IAM is written rediss://USER@HOST:PORT?iam=CACHE, without a password and with TLS, "
            "and takes iam_serverless=true or false and iam_region=REGION"
        )
    from serfer.storage.redis.iam import IamLogin  # noqa: PLC0415  botocore costs a cold start some 100 ms

    login = IamLogin(user, cache, region=region, serverless=serverless == "true")
    return {**options, "login": login.credentials}


def _with_tls(options: dict[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in options.items() if name not in _TLS}
    given = {name: options.get(name) for name in _TLS}
    for name in _TLS_FILES:
        if name in options and not Path(options[name]).is_file():
            raise UsageError(f"--store: {name} names no file: {options[name]}")
    if given["ssl_cert_reqs"] not in {None, "required", "none"}:
        raise UsageError("--store: ssl_cert_reqs is required or none")
    return {**rest, "tls": _context(given)}


def _context(given: dict[str, Any]) -> "SSLContext":
    import ssl  # noqa: PLC0415 - takes 10 ms

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
