"""Options of commands that are offline jobs: what they yield to, and who is notified of their end."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from serfer.cli.shared.terminal import complain
from serfer.offline.notify.delivery import BRIEF, PATIENT, deliver
from serfer.offline.notify.event import JobEvent, JobStatus, OfflineJob
from serfer.offline.notify.target import Target

YieldToOption = Annotated[
    list[str] | None,
    typer.Option(
        "--yield-to",
        metavar="URL",
        help="A running service, such as http://localhost:8000: while it has more online load than the next two "
        "options say, nothing new starts; may be repeated. Its API key is SERFER_YIELD_KEY.",
    ),
]
YieldUtilisationOption = Annotated[
    float, typer.Option(help="With --yield-to: the share in use of what answers its queries, above which to pause.")
]
YieldLatencyOption = Annotated[
    float, typer.Option(help="With --yield-to: latency of its queries over their profile, above which to pause.")
]
NotifyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--notify",
        metavar="TARGET",
        help="Who is notified of the end, however it ends: https://URL (a webhook, signed with SERFER_WEBHOOK_SECRET), "
        "sqs://QUEUE, the ARN of an SQS queue or of an SNS topic; may be repeated.",
    ),
]


@dataclass
class Ending:
    """What a job has done so far, as its command fills it in; `at_ceiling` where its dollars ended it."""

    outputs: Sequence[str] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    at_ceiling: bool = False
    error: str = ""


def new_run() -> str:
    """Return what tells this run of a job from others."""
    return secrets.token_hex(8)


@contextmanager
def notifying(job: OfflineJob, targets: Sequence[Target]) -> Iterator[Ending]:
    """Notify all targets of how the block ended.

    What cannot be delivered is a warning: the exit code says whether results are there, not who was notified.
    """
    ending, started = Ending(), time.monotonic()
    try:
        yield ending
    except BaseException as error:
        _notify(job, targets, ending, started, error)
        raise
    _notify(job, targets, ending, started, None)


def _notify(
    job: OfflineJob, targets: Sequence[Target], ending: Ending, started: float, error: BaseException | None
) -> None:
    if not targets:
        return
    status = _status(ending, error)
    figures = {**ending.figures, "seconds": round(time.monotonic() - started, 3)}
    event = JobEvent(job, status, datetime.now(UTC), ending.outputs, figures, ending.error or _words(error))
    interrupted = status is JobStatus.INTERRUPTED  # the user waits
    for delivery in deliver(event, targets, BRIEF if interrupted else PATIENT):
        if delivery.error:
            complain(f"--notify {delivery.target}: not notified after {delivery.attempts} attempts: {delivery.error}")


def _status(ending: Ending, error: BaseException | None) -> JobStatus:
    if error is None:
        return JobStatus.DONE
    if not isinstance(error, Exception):  # Ctrl-C, SIGTERM
        return JobStatus.INTERRUPTED
    return JobStatus.CEILING if ending.at_ceiling else JobStatus.FAILED


def _words(error: BaseException | None) -> str:
    return "" if error is None else str(error) or type(error).__name__
