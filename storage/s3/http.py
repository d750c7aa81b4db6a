"""Signed requests to one bucket over pooled connections.

botocore finds the address and the credentials and signs; urllib3 sends. A client of botocore's costs 2 to 3 ms of
processor time a request against 0.6 to 0.9 ms here (measured), and a task is a good ten of these.
"""

import base64
import contextlib
import hashlib
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from threading import Lock
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.exceptions import BotoCoreError
from botocore.httpsession import get_cert_path
from botocore.session import Session
from urllib3 import BaseHTTPResponse, PoolManager, Timeout
from urllib3.exceptions import HTTPError, ProtocolError

from serfer.core.errors import StoreUnavailableError
from serfer.core.retry import Backoff, RetryPolicy, retry
from storage.s3.address import Address
from storage.s3.errors import CONNECT_S, READ_S, Answer, no_s3, unreachable
from storage.store import Bytes

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
_CONNECTIONS = 64
_PASSING = frozenset({429, 500, 502, 503, 504})
_REFUSED = 300
_DOCUMENT = 4 << 20  # bytes: more than the longest answer in XML, a list of 1,000 keys
_PIECE = 1 << 18  # bytes given to the socket at once: its time-out is for each


class _TransientAnswerError(Exception):
    """An answer that another request may not get."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.status)
        self.answer = answer


_REQUESTS = RetryPolicy(
    "s3", (ProtocolError, _TransientAnswerError), Backoff(base=0.075, longest=0.3, factor=4.0), attempts=3
)


@dataclass(frozen=True)
class Request:
    """A request: `name` is an object's name, "" means the bucket; `limit` bounds the answer's bytes."""

    method: str
    name: str = ""
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Bytes = b""
    limit: int | None = _DOCUMENT


def document(method: str, query: str, text: str) -> Request:
    """Build a request that sends XML to the bucket; S3 demands a checksum of it."""
    body = text.encode()
    checksum = base64.b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
    headers = {"x-amz-checksum-crc32": checksum, "x-amz-sdk-checksum-algorithm": "CRC32"}
    return Request(method, query=query, headers=headers, body=body)


class Signer(Protocol):
    """Signs requests to S3."""

    def sign(self, request: AWSRequest) -> None:
        """Add the headers of a signature; raises StoreUnavailableError where there are no credentials."""


class _Signature(S3SigV4Auth):
    def payload(self, request: AWSRequest) -> str:
        return body_hash(request)


def body_hash(request: AWSRequest) -> str:
    """Return what a signature says of a body: its SHA-256, or that it is not signed where nobody could change it.

    That is so over TLS, where AWS's own clients sign no bodies either, and on this machine's own addresses.
    """
    parts = urlsplit(request.url)
    host = parts.hostname or ""
    with contextlib.suppress(ValueError):
        host = "localhost" if ip_address(host).is_loopback else host
    if parts.scheme == "https" or host == "localhost":
        return "UNSIGNED-PAYLOAD"
    return hashlib.sha256(request.data or b"").hexdigest()


class KeySigner:
    """Signs with the credentials that botocore finds, looked for when first needed and renewed by botocore."""

    def __init__(self, address: Address, session: Session) -> None:
        self._address = address
        self._session = session
        self._lock = Lock()

    def sign(self, request: AWSRequest) -> None:
        """Add the signature's headers."""
        _Signature(self.keys(), self._address.service, self._address.region).add_auth(request)

    def keys(self) -> Any:  # noqa: ANN401  botocore's frozen credentials
        """Return the credentials as they are now; raises StoreUnavailableError where there are none."""
        try:
            with self._lock:  # botocore's search is not meant for several threads
                credentials = self._session.get_credentials()
            if credentials is not None:
                return credentials.get_frozen_credentials()
        except BotoCoreError as error:
            raise StoreUnavailableError(f"the AWS credentials for --store cannot be had: {error}") from error
        raise StoreUnavailableError(
            "no AWS credentials for --store: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE, "
            "or give this machine a role"
        )


class S3Http:
    """Sends requests to one bucket, each up to three times on transient failures, once to a server that is silent."""

    def __init__(
        self, address: Address, signer: Signer, session: Session, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.address = address
        self._signer = signer
        self._sleep = sleep
        authority = session.get_config_variable("ca_bundle") or get_cert_path(verify=True)
        timeout = Timeout(connect=CONNECT_S, read=READ_S)
        self._pools = PoolManager(maxsize=_CONNECTIONS, timeout=timeout, cert_reqs="CERT_REQUIRED", ca_certs=authority)
        self._pool = self._pools.connection_from_url(address.url)

    def ask(self, request: Request) -> Answer:
        """Return the answer, a refusal too; raises StoreUnavailableError where none comes."""
        try:
            return retry(lambda: self._attempt(request), _REQUESTS, self._sleep)
        except _TransientAnswerError as last:
            return last.answer
        except HTTPError as error:
            raise unreachable(self.address, error) from error

    def close(self) -> None:
        """Close the idle connections; a later request opens new ones."""
        self._pools.clear()
        self._pool = self._pools.connection_from_url(self.address.url)

    def _attempt(self, request: Request) -> Answer:
        answer = self._send(request)
        if answer.status in _PASSING:
            raise _TransientAnswerError(answer)
        return answer

    def _send(self, request: Request) -> Answer:
        url = f"{self.address.url}/{quote(request.name, safe='/-_.~')}"
        if request.query:
            url += f"?{request.query}"
        headers = {"User-Agent": "serfer", **request.headers}
        signed = AWSRequest(request.method, url, data=request.body, headers=headers)
        self._signer.sign(signed)
        parts = urlsplit(url)
        response = self._pool.urlopen(
            request.method,
            f"{parts.path}?{parts.query}" if parts.query else parts.path,
            body=_pieces(request.body) if len(request.body) else None,
            headers={**signed.headers, **({"Content-Length": str(len(request.body))} if _has_body(request) else {})},
            retries=False,
            redirect=False,
            assert_same_host=False,
            preload_content=False,
            decode_content=False,
        )
        try:
            return self._answer(response, request.limit)
        finally:
            response.release_conn()

    def _answer(self, response: BaseHTTPResponse, limit: int | None) -> Answer:
        """Read a response, an error's or one with a limit no further than that."""
        headers = {name.lower(): value for name, value in response.headers.items()}
        if response.status >= _REFUSED:
            limit = _DOCUMENT
        body = response.read() if limit is None or _fits(response, limit) else response.read(limit + 1)
        answer = Answer(response.status, headers, body)
        if limit is not None and len(body) > limit:
            response.close()
            raise no_s3(self.address, answer)
        return answer


def _has_body(request: Request) -> bool:
    return request.method in {"PUT", "POST"}


def _fits(response: BaseHTTPResponse, limit: int) -> bool:
    announced = response.length_remaining
    return announced is not None and announced <= limit


def _pieces(body: Bytes) -> Iterator[Any]:  # urllib3's types know no memoryview
    view = memoryview(body)
    return (view[i : i + _PIECE] for i in range(0, len(view), _PIECE))
