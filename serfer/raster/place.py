"""Where an image lies or a result shall lie: a path, or `s3://BUCKET/KEY[?region=REGION][&endpoint=URL]`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl, urlencode

from serfer.core.errors import UsageError
from serfer.s3 import is_bucket

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_ENDPOINT = re.compile(r"https?://[^/?#@\s]+")
_OPTIONS = re.compile(r"(region|endpoint)=[^?]*")
_MOST_KEY_BYTES = 1024
_FORM = "write s3://BUCKET/KEY[?region=REGION][&endpoint=URL]"


@dataclass(frozen=True)
class S3Place:
    """An object of S3; region and endpoint are AWS settings' where they are None."""

    bucket: str
    key: str
    region: str | None = None
    endpoint: str | None = None

    @property
    def url(self) -> str:
        options = {"region": self.region, "endpoint": self.endpoint}
        given = urlencode({name: value for name, value in options.items() if value is not None})
        return f"{self}?{given}" if given else str(self)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


def parse_place(place: str | Path) -> Path | S3Place:
    if isinstance(place, Path):
        return place
    if isinstance(place, str) and not _SCHEME.match(place):
        return Path(place)
    if not isinstance(place, str) or not place.startswith("s3://"):
        raise UsageError(f"{str(place)[:80]!r} is neither a path nor s3://BUCKET/KEY")
    return _s3(place.removeprefix("s3://"))


def _s3(rest: str) -> S3Place:
    """Take `BUCKET/KEY?OPTIONS` apart; a question mark that no option follows belongs to the key."""
    body, _, tail = rest.rpartition("?")
    if not body or not _OPTIONS.fullmatch(tail):
        body, tail = rest, ""
    bucket, _, key = body.partition("/")
    if not is_bucket(bucket):
        raise UsageError(f"{bucket[:80]!r} is not a name of an S3 bucket: {_FORM}")
    if not key or len(key.encode()) > _MOST_KEY_BYTES or not key.isprintable() or {".", ".."} & {*key.split("/")}:
        raise UsageError(f"a key in s3://{bucket} has 1 to 1,024 printable bytes and no part that is . or ..: {_FORM}")
    options = dict(pairs := parse_qsl(tail, keep_blank_values=True))
    if len(options) < len(pairs) or not options.keys() <= {"region", "endpoint"}:
        raise UsageError(f"an S3 URL takes the options region and endpoint, each once: {_FORM}")
    if not _ENDPOINT.fullmatch(options.get("endpoint", "http://host").rstrip("/")) or not options.get("region", "any"):
        raise UsageError("the endpoint of an S3 URL must be like http://HOST:PORT, and region a region's name")
    return S3Place(bucket, key, options.get("region"), options.get("endpoint"))
