"""A Lambda function that answers health checks for a driver function which runs its plan itself.

Such a driver has the memory of the plan, and would be billed for it while it says that it lives. This one has little
memory and no layers: its package is this module. API Gateway sends it GET and HEAD of

    /healthz    that the API and this function answer
    /readyz     whether Lambda would invoke the driver function, which is asked without starting it (DryRun)

It does not show that an environment of the driver starts; the first query does, and the alarms.
"""

from __future__ import annotations

import json
import os
from typing import Any

_HEADERS = {"content-type": "application/json"}
_RETRY = {"retry-after": "2"}
_LONGEST = 300  # characters of what is wrong
_WAIT_S = 5.0  # for Lambda to answer


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:  # noqa: ANN401, ARG001 - Lambda's context
    """Answer a request of API Gateway (REST, proxy integration)."""
    if event["httpMethod"] not in {"GET", "HEAD"}:
        return _answer(405, {"title": "Method Not Allowed", "status": 405}, {"allow": "GET, HEAD"})
    if event["path"].rstrip("/").endswith("/readyz"):
        return _ready()
    return _answer(200, {"live": True})


def _ready() -> dict[str, Any]:
    import boto3  # noqa: PLC0415 - takes longer to import than /healthz takes to answer
    from botocore.config import Config  # noqa: PLC0415 - same
    from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - same

    config = Config(connect_timeout=_WAIT_S, read_timeout=_WAIT_S, retries={"total_max_attempts": 2})
    client = boto3.client("lambda", config=config)
    try:
        client.invoke(FunctionName=os.environ["DRIVER_FUNCTION"], InvocationType="DryRun")
    except (BotoCoreError, ClientError) as error:
        wrong = {"ready": False, "store": "ok", "functions": str(error)[:_LONGEST], "draining": False}
        return _answer(503, wrong, _RETRY)
    finally:
        client.close()
    return _answer(200, {"ready": True})


def _answer(status: int, body: dict[str, Any], headers: dict[str, str] | None = None) -> dict[str, Any]:
    text = json.dumps(body, separators=(",", ":"))
    return {"statusCode": status, "headers": {**_HEADERS, **(headers or {})}, "body": text, "isBase64Encoded": False}
