"""Directory buckets (S3 Express One Zone): requests are signed with the credentials of a session of five minutes.

The request for a session is signed with the caller's own credentials.
"""

import time
from collections.abc import Callable
from datetime import datetime
from threading import Lock
from typing import Any

from botocore.auth import S3ExpressAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from storage.s3.errors import no_s3, refusal
from storage.s3.http import Request, S3Http, body_hash

_AHEAD_S = 60.0  # a session is renewed so long before its end
_OK = 200
_NO_CACHE: Any = None  # botocore's signer keeps it and never looks at it


class _Signature(S3ExpressAuth):
    def payload(self, request: AWSRequest) -> str:
        return body_hash(request)


class SessionSigner:
    """Signs with a session's credentials; `plain` sends to the same bucket, signing with the caller's own."""

    def __init__(self, plain: S3Http, clock: Callable[[], float] = time.time) -> None:
        self._plain = plain
        self._clock = clock
        self._lock = Lock()
        self._renew_at = 0.0
        self._credentials = ReadOnlyCredentials("", "", "")

    def sign(self, request: AWSRequest) -> None:
        """Add the signature's headers and the session's token; opens a session where there is none."""
        with self._lock:
            if self._clock() >= self._renew_at:
                self._credentials, self._renew_at = self._session()
            credentials = self._credentials
        where = self._plain.address
        _Signature(credentials, where.service, where.region, identity_cache=_NO_CACHE).add_auth(request)

    def _session(self) -> tuple[ReadOnlyCredentials, float]:
        """CreateSession: return its credentials and when to renew them."""
        request = Request("GET", query="session=", headers={"x-amz-create-session-mode": "ReadWrite"})
        answer = self._plain.ask(request)
        self._plain.close()  # the next is minutes away
        if answer.status != _OK:
            raise refusal(self._plain.address, answer, "to open a session")
        keys = [answer.field(name) for name in ("AccessKeyId", "SecretAccessKey", "SessionToken")]
        try:
            until = datetime.fromisoformat(answer.field("Expiration")).timestamp()
        except ValueError:
            raise no_s3(self._plain.address, answer) from None
        if not all(keys):
            raise no_s3(self._plain.address, answer)
        return ReadOnlyCredentials(*keys), until - _AHEAD_S
