"""A registry by its URL: a directory, or a prefix of a bucket of S3."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit

from serfer.core.errors import NoRegistryError, UnavailableError, UsageError
from serfer.files import check_owner, lies_inside
from serfer.registry.registry import Registry
from serfer.s3 import is_bucket

if TYPE_CHECKING:
    from serfer.registry.store import RegistryStore

_PREFIX: Final = re.compile(r"|[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*){0,7}")
_FORM: Final = "give a directory, or s3://BUCKET/PREFIX"
_READ_S: Final = 20.0


def open_registry(url: str, *, create: bool = True) -> Registry:
    """Open the registry in a directory (a path, or a file URL) or in S3 (s3://BUCKET/PREFIX).

    Where there is none, it is made if `create`. Raises UsageError for a URL that is malformed, a place that holds
    something else, a registry of another format or an S3 server that ignores conditions; UnavailableError where it
    cannot be reached, or none is there and none can be made; NoRegistryError where one can.
    """
    store = open_store(url, create=create)
    store.open(create=create)
    return Registry(store)


def check_apart(url: str, store: str) -> None:
    if lies_inside(url, store):
        raise UsageError(f"the registry {url:.100} is inside the store of activations, where all expires: give another")


def open_store(url: str, *, create: bool) -> RegistryStore:
    """Return what reads and writes the objects of a registry's place, whose format is not looked at."""
    if not url or "\0" in url:
        raise UsageError(f"{url!r:.100} is not a registry: {_FORM}")
    if "://" not in url:
        return _in_directory(Path(url).expanduser().absolute(), create=create)
    parts = urlsplit(url)
    if (
        parts.scheme == "file"
        and not parts.netloc
        and parts.path.startswith("/")
        and not (parts.query or parts.fragment)
    ):
        return _in_directory(Path(unquote(parts.path)), create=create)
    prefix = parts.path.strip("/")
    if parts.scheme == "s3" and is_bucket(parts.netloc) and _PREFIX.fullmatch(prefix) and not parts.query:
        return _in_bucket(parts.netloc, prefix)
    raise UsageError(f"{url!r:.100} is not a registry: {_FORM}")


def _in_directory(root: Path, *, create: bool) -> RegistryStore:
    from obstore.exceptions import BaseError  # noqa: PLC0415 - most services have no registry
    from obstore.store import LocalStore  # noqa: PLC0415 - same

    from serfer.registry.store import MARK, PARTS, RegistryStore  # noqa: PLC0415 - same

    try:
        if not (root / MARK).exists():
            if create:
                root.mkdir(mode=0o700, parents=True, exist_ok=True)
            there = next(path for path in (root, *root.parents) if path.exists())
            found = there.iterdir() if there == root else ()
            foreign = [path.name for path in found if path.name != PARTS and not path.name.startswith(MARK)]
            if foreign and not (root / MARK).exists():
                raise UsageError(f"{root} is not empty and not a registry: give an empty or a new directory")
            if not create:
                if not (there.is_dir() and os.access(there, os.W_OK)):
                    raise UnavailableError(f"there is no registry in {root}, and {there} cannot be written")
                raise NoRegistryError(f"there is no registry in {root}: serfer app register makes one")
            (root / PARTS).mkdir(mode=0o700, exist_ok=True)
        check_owner(root)
        return RegistryStore(LocalStore(root), str(root), root)
    except (OSError, BaseError) as error:
        raise UnavailableError(f"the registry {root} cannot be used: {getattr(error, 'strerror', error)}") from error


def _in_bucket(bucket: str, prefix: str) -> RegistryStore:
    from botocore.session import Session  # noqa: PLC0415 - only registries in S3 need botocore

    from serfer.registry.store import RegistryStore  # noqa: PLC0415 - most services have no registry
    from serfer.storage.s3.address import BucketUrl, address  # noqa: PLC0415 - same
    from serfer.storage.s3.client import open_bucket  # noqa: PLC0415 - same

    session = Session()
    where = address(BucketUrl(bucket, ""), session, "--registry")
    objects = open_bucket(where, session, bucket, _READ_S, prefix=prefix or None)
    return RegistryStore(objects, f"s3://{bucket}/{prefix}".rstrip("/"))
