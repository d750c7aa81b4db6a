"""A function of Lambda without SerFer: the event has an image in base64, as an HTTP API hands it over."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any

from serfer_bench.peers.apps.classifier import Classifier

_CLASSIFIER = Classifier.of_variables()


def handler(event: dict[str, Any], context: Any) -> dict[str, Any]:  # noqa: ANN401, ARG001 - Lambda's signature
    answer = _CLASSIFIER.answer(b64decode(event["body"]))
    return {"statusCode": 200, "headers": {"Content-Type": "application/json"}, "body": json.dumps(answer)}
