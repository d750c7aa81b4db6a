"""Where pieces live between stages: `open_store(url)`."""

import pkgutil
import re
from collections.abc import Callable

from serfer.core.errors import UsageError
from storage.store import Range, Store

__all__ = ["Range", "Store", "open_store", "redact"]

# Resolved when opened: a worker imports the one backend that it uses.
_BUILT_IN = {
    "memory": "storage.memory:open_memory",
    "file": "storage.file:open_file",
    "redis": "storage.redis:RedisStore",
    "rediss": "storage.redis:RedisStore",
}


def open_store(url: str) -> Store:
    """Open the store that a URL names: built in, or plugged in by the entry point group `serfer.stores`.

    Raises:
        UsageError: no store has that scheme, or the URL is malformed.
        StoreUnavailableError: it cannot be used (a Redis server is first asked when first used).
    """
    scheme, separator, _ = url.partition("://")
    return _opener(scheme if separator else "", url)(url)


def redact(url: str) -> str:
    """Hide the password of a store's URL, for messages and logs."""
    url = re.sub(r"(?<=://)([^:]*):.*@", r"\1:***@", url)
    return re.sub(r"(?i)(?<=password=)[^&#]*", "***", url)


def _opener(scheme: str, url: str) -> Callable[[str], Store]:
    if scheme in _BUILT_IN:
        built_in: Callable[[str], Store] = pkgutil.resolve_name(_BUILT_IN[scheme])
        return built_in
    from importlib.metadata import entry_points  # noqa: PLC0415  it costs a cold start 20 ms

    plugged_in = entry_points(group="serfer.stores")
    if scheme in plugged_in.names:
        loaded: Callable[[str], Store] = plugged_in[scheme].load()
        return loaded
    known = ", ".join(f"{name}://" for name in sorted({*_BUILT_IN, *plugged_in.names}))
    raise UsageError(f"no store is known for {redact(url)!r}: use one of {known}")
