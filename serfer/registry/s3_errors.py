"""What S3 says where it refuses, as the registry's errors, and what its responses mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from botocore.exceptions import BotoCoreError, ClientError

from serfer.core.errors import UnavailableError

MISSING: Final = frozenset({"404", "NoSuchKey", "NoSuchVersion"})
UNMET: Final = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", *MISSING})
"""Codes of a conditional request whose condition does not hold, or could not be seen to hold."""
_FORBIDDEN: Final = frozenset({"403", "AccessDenied"})


def code_of(error: ClientError) -> str:
    """Return S3's code of a refusal; that of a HEAD request is its HTTP status."""
    response: Any = error.response
    return str(response.get("Error", {}).get("Code", ""))


@contextmanager
def s3_errors(where: str) -> Iterator[None]:
    """Raise UnavailableError for what botocore raises, with what to do about it."""
    try:
        yield
    except ClientError as error:
        code = code_of(error)
        if code == "NoSuchBucket":
            raise UnavailableError(f"the registry {where}: its bucket does not exist: create it") from error
        if code in _FORBIDDEN:
            raise UnavailableError(
                f"the registry {where}: S3 refused ({error}): allow s3:GetObject, GetObjectVersion, PutObject, "
                "DeleteObject, DeleteObjectVersion, ListBucket and ListBucketVersions"
            ) from error
        raise UnavailableError(f"the registry {where}: {error}") from error
    except (BotoCoreError, ValueError) as error:  # ValueError: an invalid AWS_ENDPOINT_URL
        raise UnavailableError(f"the registry {where}: {error}") from error
