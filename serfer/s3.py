"""S3 through a client of botocore's: registries, policies' states, images and results of maps.

Activations have a faster client (storage/s3, docs/adr/0044). Where places are files, botocore, which takes 0.2 s to
import, is not imported.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any, Final

from serfer.core.errors import SerferError

MISSING: Final = frozenset({"404", "NoSuchKey", "NotFound", "NoSuchUpload", "NoSuchVersion"})
DENIED: Final = frozenset({"403", "AccessDenied", "Forbidden"})
_BUCKET: Final = re.compile(r"(?!.*\.\.)[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_MAX_PARTS: Final = 10_000
_PARTS_AT_ONCE: Final = 4


def is_bucket(name: str) -> bool:
    """Return whether a bucket of S3 may have that name."""
    return _BUCKET.fullmatch(name) is not None


def open_client(
    session: Any,  # noqa: ANN401 - botocore's
    connect_s: float,
    read_s: float,
    tries: int | None = None,
    *,
    unsigned: bool = False,
    **where: str | None,
) -> Any:  # noqa: ANN401 - botocore's, untyped
    """Return a client whose requests wait so many seconds, `tries` times; raises what `s3_errors` catches.

    `where` may have region_name and endpoint_url; without them, and without `tries`, AWS settings count. `unsigned`
    sends no credentials.
    """
    from botocore import UNSIGNED  # noqa: PLC0415 - see above
    from botocore.config import Config  # noqa: PLC0415 - same

    given: dict[str, Any] = {"retries": {"mode": "standard"} | ({"total_max_attempts": tries} if tries else {})}
    if unsigned:
        given["signature_version"] = UNSIGNED
    return session.create_client("s3", config=Config(connect_timeout=connect_s, read_timeout=read_s, **given), **where)


def code_of(error: Exception) -> str:
    """Return S3's code of a refusal, "" where S3 did not answer; that of a HEAD request is its HTTP status."""
    response: Any = getattr(error, "response", None) or {}
    return str(response.get("Error", {}).get("Code", ""))


@contextmanager
def s3_errors(explain: Callable[[Exception], SerferError]) -> Iterator[None]:
    """Raise what `explain` makes of what botocore raises."""
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - see above

    try:
        yield
    except (BotoCoreError, ClientError, ValueError) as error:  # ValueError: an invalid AWS_ENDPOINT_URL
        raise explain(error) from error


def part_size(size: int, least: int) -> int:
    """Return how many bytes a part has, `least` or more, so that S3 takes all parts of `size` bytes."""
    return max(least, -(-size // _MAX_PARTS))


def put_in_parts(
    client: Any,  # noqa: ANN401 - botocore's, untyped
    where: Mapping[str, str],
    parts: Iterable[bytes],
    begun: Callable[[Mapping[str, str]], object] = lambda _upload: None,
) -> None:
    """Put an object in parts, four at once: it becomes visible whole, or a failure, also of `parts`, deletes them all.

    `begun` is called with what abort_multipart_upload takes.
    """
    upload = {**where, "UploadId": client.create_multipart_upload(**where)["UploadId"]}
    try:
        begun(upload)
        client.complete_multipart_upload(**upload, MultipartUpload={"Parts": [*_sent(client, upload, parts)]})
    except BaseException:
        with suppress(Exception):  # what went wrong first is what the caller should know
            client.abort_multipart_upload(**upload)
        raise


def _sent(client: Any, upload: Mapping[str, str], parts: Iterable[bytes]) -> Iterator[dict[str, Any]]:  # noqa: ANN401
    waiting: deque[tuple[int, Future[Any]]] = deque()
    with ThreadPoolExecutor(_PARTS_AT_ONCE) as threads:
        for number, part in enumerate(parts, 1):
            waiting.append((number, threads.submit(client.upload_part, **upload, PartNumber=number, Body=part)))
            if len(waiting) == _PARTS_AT_ONCE:
                yield _finished(*waiting.popleft())
        yield from (_finished(*sent) for sent in waiting)


def _finished(number: int, sent: Future[Any]) -> dict[str, Any]:
    return {"PartNumber": number, "ETag": sent.result()["ETag"]}
