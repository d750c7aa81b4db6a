"""A Lambda service that another process has started: the one that SERFER_LOCAL_URL names."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from serfer.core.errors import UnavailableError
from serfer.core.plan import Plan
from serfer.core.sigv4 import Access
from serfer.local.lambda_.access import fetch, send
from serfer.local.lambda_.added_functions import PLANS

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
    """Turn what asking a service raises into UnavailableError."""
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
