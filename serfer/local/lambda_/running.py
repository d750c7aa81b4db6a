"""A Lambda service that another process has started: the one that SERFER_LOCAL_URL names."""

from __future__ import annotations

import http.client
import json
from urllib.parse import urlsplit

from serfer.core.errors import UnavailableError
from serfer.core.plan import Plan
from serfer.core.sigv4 import Access
from serfer.local.lambda_.access import fetch

_LOOK_S = 10.0
_MOST_BYTES = 1 << 24


def check_functions(url: str, access: Access, plan: Plan) -> None:
    """Check that the Lambda service at `url` has a plan's functions; raises UnavailableError if not."""
    wanted = {plan.function(*part) for part in plan.functions}
    try:
        http.client.HTTPConnection(urlsplit(url).hostname or "", urlsplit(url).port)
    except (ValueError, http.client.HTTPException) as error:
        raise UnavailableError(f"SERFER_LOCAL_URL: {url} is not an address such as http://127.0.0.1:9001") from error
    try:
        answer = json.loads(fetch(url, "/2015-03-31/functions/", access, _LOOK_S, _MOST_BYTES))
        names = {function["FunctionName"] for function in answer["Functions"]}
    except PermissionError as error:
        raise UnavailableError(
            f"SERFER_LOCAL_ACCESS: the Lambda service at {url} refuses these credentials: give those that it runs with"
        ) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise UnavailableError(f"SERFER_LOCAL_URL: no Lambda service answers at {url}: {reason}") from error
    except (http.client.HTTPException, ValueError, KeyError, TypeError) as error:
        raise UnavailableError(f"SERFER_LOCAL_URL: what answers at {url} is not a local Lambda service") from error
    if missing := wanted - names:
        raise UnavailableError(
            f"SERFER_LOCAL_URL: the Lambda service at {url} has no function {min(missing)}: start it with this plan"
        )
