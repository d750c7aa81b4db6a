"""The URL of a Redis server or cluster as the options of redis-py's connection pool."""

import re
from typing import Any

from redis.connection import parse_url

from serfer.core.errors import UsageError
from storage.redis.tls import with_tls

MALFORMED = (
    "--store: the Redis URL is malformed or has an unknown option: write "
    "redis://[USER]:PASSWORD@HOST:PORT[/DB][?OPTION=VALUE], special characters of user and password percent-encoded"
)
_DEFAULTS: dict[str, Any] = {
    "port": 6379,
    "max_connections": 64,
    "timeout": 5.0,
    "socket_timeout": 5.0,
    "socket_connect_timeout": 2.0,
    "socket_read_size": 1 << 18,
    "protocol": 2,
    "driver_info": None,
}


def server_options(url: str) -> dict[str, Any]:
    """Return the pool's options for `redis://` or, with certificate and host name checked, `rediss://`.

    Raises:
        UsageError: the URL is malformed; no message quotes a part of it that could belong to the password.
    """
    options = _with_iam(_parsed(url), secure=(secure := url.startswith("rediss://")))
    return with_tls(options) if secure else options


def cluster_options(url: str) -> tuple[list[tuple[str, int]], dict[str, Any]]:
    """Return the nodes to ask first, (host, port) each, and the pools' options, for `redis+cluster://HOST:PORT,...`.

    Raises:
        UsageError: the URL is malformed, or names a database other than 0, the only one that a cluster has.
    """
    scheme, _, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    tail = rest.removeprefix(authority)
    login, at, hosts = authority.rpartition("@")
    urls = [f"{scheme.removesuffix('+cluster')}://{login}{at}{host}{tail}" for host in hosts.split(",")]
    nodes = [(parsed["host"], parsed["port"]) for parsed in map(_parsed, urls)]
    options = server_options(urls[0])
    if options.pop("db", 0):
        raise UsageError("--store: a Redis cluster has no database but 0: leave the number out")
    return nodes, options


def _parsed(url: str) -> dict[str, Any]:
    try:
        given: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]
        given["host"].encode("idna")
    except (ValueError, KeyError):
        raise UsageError(MALFORMED) from None
    if not re.fullmatch(r"rediss?://[^/?#]+(/\d*)?(\?[^#]*)?", url):
        raise UsageError(MALFORMED)
    return {**_DEFAULTS, **given}


def _with_iam(options: dict[str, Any], *, secure: bool) -> dict[str, Any]:
    """Replace `iam=CACHE[&iam_serverless=true][&iam_region=...]` by what makes ElastiCache's login tokens."""
    cache, serverless, region = (options.pop(name, None) for name in ("iam", "iam_serverless", "iam_region"))
    if cache is None and serverless is None and region is None:
        return options
    user = options.pop("username", None)
    if not (cache and user and secure and not options.get("password") and serverless in {None, "true", "false"}):
        raise UsageError(
            "--store: login by IAM is written rediss://USER@HOST:PORT?iam=CACHE, without a password and with TLS, "
            "and takes iam_serverless=true or false and iam_region=REGION"
        )
    from storage.redis.iam import IamLogin  # noqa: PLC0415  botocore costs a cold start some 100 ms

    login = IamLogin(user, cache, region=region, serverless=serverless == "true")
    return {**options, "credential_provider": login}
