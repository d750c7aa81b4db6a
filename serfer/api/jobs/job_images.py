"""The images of offline jobs: objects below a prefix of the place that the operator has named.

A job names a prefix below that place, so no client chooses a bucket, a host or a folder of the driver's machine.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from serfer.core.errors import ImageError, ImageTooLargeError, InputError
from serfer.images import SUFFIXES, image_files

if TYPE_CHECKING:
    from serfer.storage.s3.client import S3Client

MOST_IMAGES: Final = 10_000
_PREFIX: Final = re.compile(r"(?!.*//)(?!(.*/)?\.{1,2}(/|$))[^/\x00-\x1f\x7f][^\x00-\x1f\x7f]{0,499}")
_S3: Final = "s3://"


class JobImages:
    """The images at a place, `s3://BUCKET/PREFIX` (with the options of a store's URL) or a directory."""

    def __init__(self, place: str) -> None:
        self._place = place

    def names(self, prefix: str) -> Sequence[str]:
        """Return the images below a prefix, by their suffixes and in their order; raises InputError for none."""
        if not _PREFIX.fullmatch(prefix):
            raise InputError("images is a prefix: relative, at most 500 characters, without . and .. as names")
        prefix = prefix.rstrip("/")
        names = self._objects(prefix) if self._place.startswith(_S3) else self._files(prefix)
        if not names:
            raise InputError(f"there are no images below {prefix!r}: none of its objects ends in {', '.join(SUFFIXES)}")
        if len(names) > MOST_IMAGES:
            raise InputError(f"there are more than {MOST_IMAGES:,} images below {prefix!r}: give a longer prefix")
        return sorted(names)

    def read(self, name: str, most_bytes: int) -> bytes:
        """Return an image's bytes; raises ImageTooLargeError for more than `most_bytes`, ImageError for none."""
        if self._place.startswith(_S3):
            data = self._object(name, most_bytes)
        else:
            try:
                with Path(self._place, name).open("rb") as file:
                    data = file.read(most_bytes + 1)
            except OSError as error:
                raise ImageError(f"{name} cannot be read: {error.strerror}") from error
        if len(data) > most_bytes:
            raise ImageTooLargeError(f"{name} has more than the {most_bytes:,} bytes that an image may have")
        return data

    @cached_property
    def _bucket(self) -> tuple[S3Client, str]:
        from botocore.session import Session  # noqa: PLC0415 - most services read no bucket

        from serfer.storage.s3.address import address, parse_url  # noqa: PLC0415 - same
        from serfer.storage.s3.client import S3Client  # noqa: PLC0415 - same

        where, session = parse_url(self._place), Session()
        return S3Client(where.bucket, address(where, session), session), where.prefix

    def _objects(self, prefix: str) -> list[str]:
        client, own = self._bucket
        names: list[str] = []
        for page in client.names(f"{own}{prefix}/", time.time() + 1):
            names += [name.removeprefix(own) for name in page if PurePosixPath(name).suffix.lower() in SUFFIXES]
            if len(names) > MOST_IMAGES:
                break
        return names

    def _object(self, name: str, most_bytes: int) -> bytes:
        from serfer.storage.s3.client import RefusedError  # noqa: PLC0415 - as above

        client, own = self._bucket
        try:
            return bytes(client.get(f"{own}{name}", length=most_bytes + 1).body)
        except RefusedError as error:
            raise ImageError(f"{name} cannot be read: the bucket answers {error}") from error

    def _files(self, prefix: str) -> list[str]:
        root = Path(self._place)
        folder = root / prefix
        if not folder.is_dir() or not folder.resolve().is_relative_to(root.resolve()):
            return []
        return [path.relative_to(root).as_posix() for path in image_files(folder)]
