"""What `--notify` takes: the URL of a webhook, a queue of SQS, a topic of SNS."""

from __future__ import annotations

import re
from collections.abc import Sequence
from urllib.parse import parse_qsl

from serfer.core.errors import UsageError
from serfer.extras import installed
from serfer.offline.http_exchange import checked_url
from serfer.offline.notify.aws import AwsPlace, Queue, Topic
from serfer.offline.notify.signature import signing_key
from serfer.offline.notify.target import Target
from serfer.offline.notify.webhook import Webhook

MOST_TARGETS = 16
_OPTION = "--notify"
_QUEUE = r"[A-Za-z0-9_-]{1,80}(?:\.fifo)?"
_ARN = re.compile(
    r"arn:(?P<partition>aws[a-z-]*):(?P<service>sqs|sns):(?P<region>[a-z0-9-]+):(?P<account>\d{12}):(?P<name>[\w.-]{1,256})"
)
_QUEUE_URL = re.compile(
    rf"https://(?:sqs\.(?P<region>[a-z0-9-]+)|(?P<legacy>[a-z0-9-]+)\.queue)\.amazonaws\.com(?:\.cn)?/(?P<account>\d{{12}})/(?P<name>{_QUEUE})"
)
_SHORT = re.compile(rf"sqs://(?P<name>{_QUEUE})(?:\?(?P<options>.*))?")
_ENDPOINT = re.compile(r"https?://[^/?#@\s]+/?")


def parse_targets(given: Sequence[str], secret: str) -> list[Target]:
    """Return the targets that are meant, each once; webhooks are signed with `secret`.

    Raises UsageError for what is not a target, for webhooks without a secret, and for too many; MissingExtraError for
    SQS and SNS without boto3.
    """
    if len(given) > MOST_TARGETS:
        raise UsageError(f"{_OPTION} takes at most {MOST_TARGETS} targets, not {len(given)}")
    return [_target(text, secret) for text in dict.fromkeys(given)]


def _target(text: str, secret: str) -> Target:
    aws = _of_aws(text)
    if aws is not None:
        installed("boto3")
        return aws
    if not text.startswith(("https://", "http://")):
        raise UsageError(
            f"{_OPTION} takes https://URL, sqs://QUEUE[?region=REGION][&endpoint=URL], the ARN or the URL of a queue, "
            "or the ARN of an SNS topic"
        )
    url = checked_url(text, _OPTION, plain_http=False)
    if not secret:
        raise UsageError(f"{_OPTION} for {url.host}: set SERFER_WEBHOOK_SECRET, which webhooks are signed with")
    return Webhook(url, signing_key(secret))


def _of_aws(text: str) -> Target | None:
    """Return the queue or topic that a text means, None for a text that means another target."""
    if arn := _ARN.fullmatch(text):
        place = AwsPlace(arn["region"])
        if arn["service"] == "sns":
            return Topic(text, place)
        if not re.fullmatch(_QUEUE, arn["name"]):
            raise UsageError(f"{_OPTION} {text}: this is not the name of a queue")
        return Queue(arn["name"], arn["account"], place)
    if url := _QUEUE_URL.fullmatch(text):
        return Queue(url["name"], url["account"], AwsPlace(url["region"] or url["legacy"]))
    if short := _SHORT.fullmatch(text):
        return Queue(short["name"], None, _place(text, short["options"] or ""))
    return None


def _place(text: str, options: str) -> AwsPlace:
    pairs = parse_qsl(options, keep_blank_values=True)
    values = dict(pairs)
    good = len(values) == len(pairs) and values.keys() <= {"region", "endpoint"} and all(values.values())
    if not good or not _ENDPOINT.fullmatch(values.get("endpoint", "http://host")):
        raise UsageError(
            f"{_OPTION} {text[:200]}: the options are region=REGION and endpoint=http://HOST:PORT, once each"
        )
    return AwsPlace(values.get("region"), values.get("endpoint"))
