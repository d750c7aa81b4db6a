"""Byte ranges of objects that others put into a bucket, such as weights: no keys, no expiry."""

from botocore.session import Session

from serfer.core.errors import AlteredPieceError, MissingKeyError
from serfer.storage.s3.address import address, parse_url
from serfer.storage.s3.client import RefusedError, S3Client
from serfer.storage.s3.errors import refusal

_NOT_FOUND, _NO_RANGE = 404, 416


class S3Ranges:
    """Reads byte ranges of objects below `s3://BUCKET/PREFIX`, from any number of threads."""

    def __init__(self, url: str, session: Session | None = None) -> None:
        self._url = parse_url(url)
        session = session or Session()
        self._client = S3Client(self._url.bucket, address(self._url, session), session)
        self.place = f"s3://{self._url.bucket}/{self._url.prefix}"

    def read(self, name: str, start: int, into: memoryview) -> None:
        short = AlteredPieceError(f"{name} below {self.place} has fewer than {start + len(into):,} bytes")
        try:
            body = self._client.get(self._url.prefix + name, start, len(into)).body
        except RefusedError as refused:
            if refused.answer.status == _NOT_FOUND and refused.answer.field("Code") == "NoSuchKey":
                raise MissingKeyError(f"there is no object {name} below {self.place}") from None
            if refused.answer.status == _NO_RANGE:
                raise short from None
            raise refusal(self._client.address, refused.answer, f"to get {name}") from refused
        if len(body) != len(into):
            raise short
        into[:] = body

    def close(self) -> None:
        self._client.close()
