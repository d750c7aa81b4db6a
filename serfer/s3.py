"""S3 through a client of botocore's: registries, policies' states, images and results of maps.

Activations have a faster client (storage/s3, docs/adr/0044). Where places are files, botocore, which takes 0.2 s to
import, is not imported.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from serfer.core.errors import SerferError

MISSING: Final = frozenset({"404", "NoSuchKey", "NotFound", "NoSuchUpload", "NoSuchVersion"})
DENIED: Final = frozenset({"403", "AccessDenied", "Forbidden"})
_BUCKET: Final = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


def is_bucket(name: str) -> bool:
    return _BUCKET.fullmatch(name) is not None


def open_client(
    session: Any,  # noqa: ANN401 - botocore's
    connect_s: float,
    read_s: float,
    tries: int | None = None,
    **where: str | None,
) -> Any:  # noqa: ANN401 - botocore's, untyped
    """Return a client whose requests wait so many seconds, `tries` times; raises what `s3_errors` catches.

    `where` may have region_name and endpoint_url; without them, and without `tries`, AWS settings count.
    """
    from botocore.config import Config  # noqa: PLC0415 - see above

    retries: Any = {"mode": "standard"} | ({"total_max_attempts": tries} if tries else {})
    config = Config(connect_timeout=connect_s, read_timeout=read_s, retries=retries)
    return session.create_client("s3", config=config, **where)


def code_of(error: Exception) -> str:
    """Return S3's code of a refusal, "" where S3 did not answer; that of a HEAD request is its HTTP status."""
    response: Any = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


@contextmanager
def s3_errors(explain: Callable[[Exception], SerferError]) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - see above

    try:
        yield
    except (BotoCoreError, ClientError, ValueError) as error:  # ValueError: an invalid AWS_ENDPOINT_URL
        raise explain(error) from error
