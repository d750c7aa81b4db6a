"""A registry by its URL."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from serfer.core.errors import UsageError
from serfer.files import lies_inside
from serfer.registry.directory import DirectoryStore
from serfer.registry.registry import Registry
from serfer.registry.store import RegistryStore
from serfer.s3 import is_bucket

_PREFIX: Final = re.compile(r"|[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*){0,7}")
_FORM: Final = "give a directory, or s3://BUCKET/PREFIX"


def open_registry(url: str, *, create: bool = True) -> Registry:
    """Open the registry in a directory (a path, or a file URL) or in S3 (s3://BUCKET/PREFIX).

    Where there is none, it is made if `create`. Raises UsageError for a URL that is malformed, a place that holds
    something else, a bucket that keeps no versions or an S3 server that ignores conditions; UnavailableError where it
    cannot be reached, or is not there.
    """
    return Registry(_open_store(url, create=create))


def check_apart(url: str, store: str) -> None:
    """Raise UsageError for a registry inside the store of activations, where everything expires."""
    if lies_inside(url, store):
        raise UsageError(f"the registry {url:.100} is inside the store of activations, where all expires: give another")


def _open_store(url: str, *, create: bool) -> RegistryStore:
    if not url or "\0" in url:
        raise UsageError(f"{url!r:.100} is not a registry: {_FORM}")
    if "://" not in url:
        return DirectoryStore(Path(url).expanduser().absolute(), create=create)
    parts = urlsplit(url)
    if (
        parts.scheme == "file"
        and not parts.netloc
        and parts.path.startswith("/")
        and not (parts.query or parts.fragment)
    ):
        return DirectoryStore(Path(unquote(parts.path)), create=create)
    prefix = parts.path.strip("/")
    if parts.scheme == "s3" and is_bucket(parts.netloc) and _PREFIX.fullmatch(prefix) and not parts.query:
        from serfer.registry.s3 import S3Store  # noqa: PLC0415 - only registries in S3 need botocore

        return S3Store(parts.netloc, f"{prefix}/" if prefix else "", create=create)
    raise UsageError(f"{url!r:.100} is not a registry: {_FORM}")
