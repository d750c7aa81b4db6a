"""Stores of the activations between stages: `open_store(url)`."""

import pkgutil
import re
from collections.abc import Callable
from urllib.parse import quote, unquote

from serfer.core.errors import UsageError
from serfer.storage.store import Range, Store

__all__ = ["Range", "Store", "check_known", "distribution", "open_store", "redact", "schemes"]

# Resolved when opened: a worker imports the one backend that it uses.
_BUILT_IN = {
    "memory": "serfer.storage.memory:open_memory",
    "file": "serfer.storage.file.store:open_file",
    "redis": "serfer.storage.redis.store:RedisStore",
    "rediss": "serfer.storage.redis.store:RedisStore",
    "s3": "serfer.storage.s3.store:S3Store",
    "redis+cluster": "serfer.storage.redis.cluster:RedisClusterStore",
    "rediss+cluster": "serfer.storage.redis.cluster:RedisClusterStore",
    "delay": "serfer.storage.faults:open_delaying",
    "fail": "serfer.storage.faults:open_failing",
}


def open_store(url: str) -> Store:
    """Open the store that a URL names: built in, or plugged in by the entry point group `serfer.stores`.

    Raises:
        UsageError: no store has that scheme, or the URL is malformed.
        StoreUnavailableError: it cannot be used (a Redis server is connected when first used).
    """
    return _opener(url)(url)


def check_known(option: str, url: str) -> None:
    """Refuse a URL that is empty or whose scheme no store has; raises UsageError that names the option."""
    if not url:
        raise UsageError(f"{option} is empty: give a store's URL, or leave it out")
    _opener(url)


def schemes(url: str) -> set[str]:
    """Return the scheme of a store's URL, and those of the stores inside it if it is a wrapper's."""
    return set(re.findall(r"([A-Za-z][A-Za-z0-9+.-]*)://", unquote(url)))


def distribution(url: str) -> str | None:
    """Return the name of the installed distribution that a store is plugged in by, also of one inside a wrapper's URL.

    None for a built-in store, and for one that is unknown.
    """
    from serfer.plug_ins import plugged_in  # noqa: PLC0415  as below

    used = schemes(url) - _BUILT_IN.keys()
    return next(
        (entry.dist.name for entry in plugged_in("serfer.stores").values() if entry.name in used and entry.dist), None
    )


def redact(url: str) -> str:
    """Hide the password of a store's URL, also of one inside a wrapper's, for messages and logs."""
    url = re.sub(r"(?<=://)([^:]*):.*@", r"\1:***@", url)
    url = re.sub(r"(?i)(?<=password=)[^&#]*", "***", url)
    return re.sub(r"(?<=[?&]store=)[^&#]*", lambda inner: quote(redact(unquote(inner[0])), safe="*"), url)


def _opener(url: str) -> Callable[[str], Store]:
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme in _BUILT_IN:
        built_in: Callable[[str], Store] = pkgutil.resolve_name(_BUILT_IN[scheme])
        return built_in
    from serfer.plug_ins import load_entry, plugged_in  # noqa: PLC0415  it costs a cold start 20 ms

    others = plugged_in("serfer.stores")
    if scheme in others:
        opener: Callable[[str], Store] = load_entry(others[scheme])
        return opener
    known = ", ".join(f"{name}://" for name in sorted({*_BUILT_IN, *others}))
    shown = repr(scheme + "://") if scheme else "what has no scheme"  # the rest may hold a secret anywhere
    raise UsageError(f"no store is known for {shown}: use one of {known}")
