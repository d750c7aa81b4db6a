"""Errors of S3 servers, in one line that names the setting to change; a missing key is an answer (objects.py)."""

import re
from collections.abc import Container
from dataclasses import dataclass

from serfer.core.errors import SerferError, StoreError, StoreUnavailableError
from serfer.storage.s3.address import Address

CONNECT_S, READ_S = 2.0, 5.0

_FIELD = r"<{0}>([^<]{{1,500}})</{0}>"
_SERVER = 500


@dataclass(frozen=True)
class _Meaning:
    error: type[SerferError]
    text: str
    codes: frozenset[str]
    statuses: Container[int] = ()  # where it gives no code that we know


_MEANINGS = (
    _Meaning(
        StoreUnavailableError, "the bucket does not exist: create it, or change --store", frozenset({"NoSuchBucket"})
    ),
    _Meaning(
        StoreUnavailableError,
        "it does not take the credentials ({code}): check --store, AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
        "AWS_SESSION_TOKEN and AWS_PROFILE",
        frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken"}),
    ),
    _Meaning(
        StoreUnavailableError,
        "the bucket is in {region}, not in {here}: add ?region=REGION to --store",
        frozenset({"PermanentRedirect", "TemporaryRedirect", "AuthorizationHeaderMalformed"}),
        range(300, 400),
    ),
    _Meaning(
        StoreUnavailableError,
        "it throttles ({code}): send it fewer requests at once, or give --store another kind of store",
        frozenset({"SlowDown", "ServiceUnavailable", "Throttling", "TooManyRequests", "ServerBusy"}),
        {429, 503},
    ),
    _Meaning(StoreUnavailableError, "the clock of this machine is wrong: set it", frozenset({"RequestTimeTooSkewed"})),
    _Meaning(
        StoreError,
        "{message}: grant {grants}, or change --store; without s3:ListBucket S3 says this of a missing key too",
        frozenset({"AccessDenied"}),
        {403},
    ),
)


@dataclass(frozen=True)
class Answer:
    """An HTTP response that refuses."""

    status: int
    body: bytes

    def field(self, name: str) -> str:
        match = re.search(_FIELD.format(name).encode(), self.body)
        return " ".join(match[1].decode(errors="replace").split()) if match else ""


def unreachable(where: Address, text: str, *, silence_passes: bool) -> tuple[StoreUnavailableError, bool]:
    """Build the error for a server that gave no HTTP response, from obstore's text; say whether it may pass."""
    reason = next((reason for sign, reason in _REASONS if sign in text), None)
    error = StoreUnavailableError(
        f"S3 at {where.url} does not answer: {reason or 'it closed the connection'}; check --store, "
        "AWS_ENDPOINT_URL_S3 and the network"
    )
    return error, reason in {None, _NOT_HTTP, *([_SILENT] if silence_passes else ())}


def no_s3(where: Address, answer: Answer) -> StoreUnavailableError:
    return StoreUnavailableError(
        f"what answers at {where.url} is not an S3 server (HTTP {answer.status} without what S3 says): "
        "check the endpoint in --store or AWS_ENDPOINT_URL_S3"
    )


def refusal(where: Address, answer: Answer, doing: str) -> SerferError:
    """Build the error for an answer that refuses; `doing` is what was requested, such as "to put 'KEY'"."""
    code, message = answer.field("Code"), answer.field("Message")
    meanings = [meaning for meaning in _MEANINGS if code in meaning.codes] or [
        meaning for meaning in _MEANINGS if answer.status in meaning.statuses
    ]
    if meanings:
        text = meanings[0].text.format(
            code=code or f"HTTP {answer.status}",
            message=message or "access denied",
            region=answer.field("Region") or "another region",
            here=where.region,
            grants="s3express:CreateSession" if where.sessions else "s3:GetObject, PutObject, DeleteObject, ListBucket",
        )
        return meanings[0].error(f"S3 at {where.url} refused {doing}: {text}")
    if answer.status >= _SERVER:
        return StoreUnavailableError(
            f"S3 at {where.url} failed {doing}: HTTP {answer.status} {code} {message}".rstrip()
        )
    if not code:
        return no_s3(where, answer)
    return StoreError(f"S3 at {where.url} refused {doing}: {code}: {message}")


_NOT_HTTP = "it is not an HTTP server"
_SILENT = f"no connection within {CONNECT_S:g} s, or no response within {READ_S:g} s"
_REASONS = (
    ("dns error", "its host name is unknown"),
    ("ConnectionRefused", "it takes no connections (Connection refused)"),
    ("TimedOut", _SILENT),
    ("InvalidMessage", "TLS failed"),
    ("CertificateError", "TLS failed"),
    ("InvalidCertificate", "TLS failed"),
    ("Parse(", _NOT_HTTP),
)
