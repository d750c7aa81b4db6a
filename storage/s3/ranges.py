"""Byte ranges of objects that others put into a bucket, such as weights: no keys, no expiry."""

from botocore.session import Session

from serfer.core.errors import AlteredPieceError, MissingKeyError
from storage.s3.address import address, target
from storage.s3.errors import refusal
from storage.s3.http import KeySigner, Request, S3Http

_PARTIAL, _NOT_FOUND, _NO_RANGE = 206, 404, 416


class S3Ranges:
    """Reads byte ranges of objects below `s3://BUCKET/PREFIX`, from any number of threads."""

    def __init__(self, url: str, session: Session | None = None) -> None:
        self._target = target(url)
        session = session or Session()
        where = address(self._target, session)
        self._http = S3Http(where, KeySigner(where, session), session)
        self.place = f"s3://{self._target.bucket}/{self._target.prefix}"

    def read(self, name: str, start: int, into: memoryview) -> None:
        """Fill `into` with an object's bytes from `start`.

        Raises:
            MissingKeyError: there is no such object.
            AlteredPieceError: the object ends before the range does.
            StoreUnavailableError: the bucket does not answer.
            StoreError: it refuses the request.
        """
        header = {"Range": f"bytes={start}-{start + len(into) - 1}"}
        answer = self._http.ask(Request("GET", self._target.prefix + name, headers=header, limit=len(into)))
        if answer.status == _NOT_FOUND and answer.field("Code") == "NoSuchKey":
            raise MissingKeyError(f"there is no object {name} below {self.place}")
        if answer.status == _NO_RANGE or (answer.status == _PARTIAL and len(answer.body) < len(into)):
            raise AlteredPieceError(f"{name} below {self.place} has fewer than {start + len(into):,} bytes")
        if answer.status != _PARTIAL:
            raise refusal(self._http.address, answer, f"to get {name}")
        into[:] = answer.body

    def close(self) -> None:
        """Close the idle connections."""
        self._http.close()
