"""Access to the local Lambda service: calls are signed with its credentials, as in AWS.

Loopback is open to every user of the machine, and a function runs with the rights of the one who started the service.
"""

from __future__ import annotations

import functools
import hmac
import http.client
import json
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from serfer.core.errors import UnavailableError
from serfer.core.plan import Plan
from serfer.core.sigv4 import ALGORITHM, TIME, Access, sign, signature
from serfer.local.lambda_.added_functions import PLANS
from serfer.local.lambda_.function import REGION

if TYPE_CHECKING:
    from collections.abc import Callable

    from serfer.local.lambda_.http_server import Exchange

_CLOCK_SKEW_S = 300.0
_AUTHORIZATION = re.compile(
    ALGORITHM + r" +Credential=([\w-]{1,128})/((\d{8})/[a-z0-9-]{1,32}/lambda/aws4_request), *"
    r"SignedHeaders=([a-z0-9;-]{1,4096}), *Signature=([0-9a-f]{64})",
    re.ASCII,
)
_DATE = re.compile(r"\d{8}T\d{6}Z", re.ASCII)
_parsed = functools.lru_cache(maxsize=16)(datetime.fromisoformat)
Refusal = tuple[str, str]
"""An error's name as AWS has it, and its message."""


def random_access() -> Access:
    return Access(f"LOCAL{secrets.token_hex(8).upper()}", secrets.token_hex(20))


class Verifier:
    """Verifies that requests are signed with `access`; `now` is in seconds since the epoch."""

    def __init__(self, access: Access, now: Callable[[], float]) -> None:
        self._access = access
        self._now = now

    def refusal(self, exchange: Exchange, *, by_head: bool = False) -> Refusal | None:
        """Return why a request is refused, None for one that is signed.

        `by_head` needs no body, and so cannot know whether the signature, which covers it, is right.
        """
        headers = exchange.headers
        parsed = _AUTHORIZATION.fullmatch(headers.get("authorization", ""))
        if parsed is None:
            return "MissingAuthenticationTokenException", "Requests must have an AWS signature, version 4"
        key_id, scope, day, signed, given = parsed.groups()
        if not hmac.compare_digest(key_id, self._access.key_id):
            return "UnrecognizedClientException", "The access key is not that of this local Lambda service"
        names, time = signed.split(";"), headers.get("x-amz-date", "")
        if not {"host", "x-amz-date"} <= {*names} <= {*headers} or not _DATE.fullmatch(time) or time[:8] != day:
            return "IncompleteSignatureException", "Host and X-Amz-Date must be signed, and all that is signed be there"
        if not self._is_recent(time):
            return "InvalidSignatureException", f"Signature expired: {time} is more than 5 minutes from now"
        request = (exchange.method, exchange.target, headers)
        if by_head or hmac.compare_digest(
            given, signature(self._access.secret, scope, time, *request, names, exchange.body)
        ):
            return None
        return "InvalidSignatureException", "The signature is not that of this request with this access key"

    def _is_recent(self, time: str) -> bool:
        try:
            return abs(_parsed(time).timestamp() - self._now()) <= _CLOCK_SKEW_S
        except ValueError:
            return False


def fetch(url: str, target: str, access: Access, timeout_s: float, most_bytes: int) -> bytes:
    """GET `target` of the local Lambda service at `url`; raises OSError, ValueError or HTTPException.

    A status other than 200 raises PermissionError or HTTPException.
    """
    status, body = send("GET", url, target, access, timeout_s, most_bytes)
    if status != http.client.OK:
        raise http.client.HTTPException(f"status {status}")
    return body


def send(
    method: str, url: str, target: str, access: Access, timeout_s: float, most_bytes: int, body: bytes = b""
) -> tuple[int, bytes]:
    """Send a signed request to the local Lambda service at `url` and return status and body; raises as `fetch`."""
    address, now = urlsplit(url), datetime.now(UTC).strftime(TIME)
    headers = sign(access, REGION, now, method, target, {"host": address.netloc}, body)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=timeout_s)
    try:
        connection.request(method, target, body, headers)
        response = connection.getresponse()
        answer = response.read(most_bytes)
    finally:
        connection.close()
    if response.status == http.client.FORBIDDEN:
        raise PermissionError(f"{url} refuses these credentials")
    return response.status, answer


_LOOK_S = 10.0
_ADD_S = 120.0  # packages are put together, one plan after another
_MOST_BYTES = 1 << 24


def ensure_functions(url: str, access: Access, plan: Plan, directory: Path) -> None:
    """See that the Lambda service at `url` has the functions of a plan, whose directory it is told of if it has not.

    Raises UnavailableError for a service that has not and takes none, or cannot make them.
    """
    wanted = {plan.function(*part) for part in plan.functions}
    with _asked(url):
        answer = json.loads(fetch(url, "/2015-03-31/functions/", access, _LOOK_S, _MOST_BYTES))
        missing = wanted - {function["FunctionName"] for function in answer["Functions"]}
        if not missing:
            return
        body = json.dumps({"directory": str(directory.absolute())}).encode()
        status, reply = send("POST", url, PLANS, access, _ADD_S, _MOST_BYTES, body)
        if status == http.client.OK:
            return
        reason = _message(reply) if status == http.client.BAD_REQUEST else "start it with this plan"
    raise UnavailableError(f"SERFER_LOCAL_URL: the Lambda service at {url} has no function {min(missing)}: {reason}")


def concurrency_at(url: str, access: Access) -> int:
    """Return how many invocations the Lambda service at `url` runs at once; raises UnavailableError."""
    with _asked(url):
        answer = json.loads(fetch(url, "/2016-08-19/account-settings/", access, _LOOK_S, _MOST_BYTES))
        return int(answer["AccountLimit"]["ConcurrentExecutions"])


@contextmanager
def _asked(url: str) -> Iterator[None]:
    try:
        http.client.HTTPConnection(urlsplit(url).hostname or "", urlsplit(url).port)
    except (ValueError, http.client.HTTPException) as error:
        raise UnavailableError(f"SERFER_LOCAL_URL: {url} is not an address such as http://127.0.0.1:9001") from error
    try:
        yield
    except PermissionError as error:
        raise UnavailableError(
            f"SERFER_LOCAL_ACCESS: the Lambda service at {url} refuses these credentials: give those that it runs with"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnavailableError(f"SERFER_LOCAL_URL: no Lambda service answers at {url}: {reason}") from error
    except (http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise UnavailableError(f"SERFER_LOCAL_URL: what answers at {url} is not a local Lambda service") from error


def _message(reply: bytes) -> str:
    answer: Any = json.loads(reply)
    return str(answer["Message"])[:1000]
