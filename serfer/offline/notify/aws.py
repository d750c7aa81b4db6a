"""Notification through Amazon SQS and SNS, by boto3: its credentials and endpoints."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from serfer.extras import named_extras
from serfer.offline.notify.event import JobEvent
from serfer.offline.notify.target import Attempt

_FIFO = ".fifo"
_FINAL = {  # what no other attempt changes
    *("AccessDenied", "AccessDeniedException", "AuthorizationError", "InvalidClientTokenId", "SignatureDoesNotMatch"),
    *("AWS.SimpleQueueService.NonExistentQueue", "QueueDoesNotExist", "NotFound", "NotFoundException"),
    *("InvalidParameter", "InvalidParameterValue", "UnrecognizedClientException", "InvalidSecurity"),
}


@dataclass(frozen=True)
class AwsPlace:
    """Where a queue or topic is; region and endpoint are boto3's own where they are None."""

    region: str | None = None
    endpoint: str | None = None

    def client(self, service: str, timeout_s: float) -> Any:  # noqa: ANN401 - boto3's clients are made at run time
        """Return a client that tries once: delivery has retries of its own."""
        with named_extras():
            from boto3.session import Session  # noqa: PLC0415 - an extra has it
        from botocore.config import Config  # noqa: PLC0415 - comes with boto3

        config = Config(connect_timeout=timeout_s, read_timeout=timeout_s, retries={"total_max_attempts": 1})
        make: Any = Session().client  # targets are notified in threads, which cannot share one
        return make(service, region_name=self.region, endpoint_url=self.endpoint, config=config)


@dataclass(frozen=True)
class Queue:
    """A queue of SQS by its name, and its account where it is not the caller's own."""

    queue: str
    account: str | None = None
    place: AwsPlace = AwsPlace()

    @property
    def name(self) -> str:
        """The queue as messages name it."""
        return f"sqs://{self.queue}"

    def send(self, event: JobEvent, timeout_s: float) -> Attempt:
        """Send an event to the queue, with its id as an attribute, by which a FIFO queue drops duplicates."""
        return _attempted(lambda: self._send(event, timeout_s))

    def _send(self, event: JobEvent, timeout_s: float) -> None:
        client = self.place.client("sqs", timeout_s)
        try:
            owner = {"QueueOwnerAWSAccountId": self.account} if self.account else {}
            url = client.get_queue_url(QueueName=self.queue, **owner)["QueueUrl"]
            client.send_message(
                QueueUrl=url,
                MessageBody=event.body().decode(),
                MessageAttributes=_attributes(event),
                **_order(self.queue, event),
            )
        finally:
            client.close()


@dataclass(frozen=True)
class Topic:
    """A topic of SNS by its ARN."""

    arn: str
    place: AwsPlace = AwsPlace()

    @property
    def name(self) -> str:
        """The topic as messages name it."""
        return self.arn

    def send(self, event: JobEvent, timeout_s: float) -> Attempt:
        """Publish an event, with its id and status as attributes, which subscriptions can filter by."""
        return _attempted(lambda: self._send(event, timeout_s))

    def _send(self, event: JobEvent, timeout_s: float) -> None:
        client = self.place.client("sns", timeout_s)
        try:
            client.publish(
                TopicArn=self.arn,
                Message=event.body().decode(),
                MessageAttributes=_attributes(event),
                **_order(self.arn, event),
            )
        finally:
            client.close()


def _attributes(event: JobEvent) -> dict[str, Mapping[str, str]]:
    values = {"webhook-id": event.id, "status": event.status.value}
    return {name: {"DataType": "String", "StringValue": value} for name, value in values.items()}


def _order(place: str, event: JobEvent) -> dict[str, str]:
    """Return what FIFO queues and topics want: the job's own order, and an id that drops duplicates."""
    if not place.endswith(_FIFO):
        return {}
    return {"MessageGroupId": event.job.id, "MessageDeduplicationId": event.id}


def _attempted(send: Callable[[], None]) -> Attempt:
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError  # noqa: PLC0415

    try:
        send()
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", "unknown"))
        return Attempt(f"AWS refuses it: {code}", again=code not in _FINAL)
    except BotoCoreError as error:
        return Attempt(str(error), again=not isinstance(error, (NoCredentialsError, NoRegionError)))
    return Attempt()
