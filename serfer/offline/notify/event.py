"""The end of an offline job as those who are notified get it: one JSON object, the same for every target."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

_MOST_OUTPUTS = 100
_MOST_TEXT = 2000  # characters of an error, and of an output's name
_ID_CHARACTERS = 24


class JobStatus(StrEnum):
    """How a job ended."""

    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"
    CEILING = "ceiling"  # the dollars that might be spent are spent


@dataclass(frozen=True)
class OfflineJob:
    """A job: the command, what its results follow from, and where they go; run again, it is the same job.

    `run` tells this run of it from others.
    """

    command: str
    plan: str
    inputs: Sequence[str]
    out: str
    run: str

    @property
    def id(self) -> str:
        """The same for every run of the same job."""
        identity = json.dumps([self.command, self.plan, [*self.inputs], self.out])
        return hashlib.sha256(identity.encode()).hexdigest()[:_ID_CHARACTERS]


@dataclass(frozen=True)
class JobEvent:
    """The end of one run of a job, at `ended`; `figures` are what it did, of JSON's types."""

    job: OfflineJob
    status: JobStatus
    ended: datetime
    outputs: Sequence[str] = ()
    figures: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""

    @property
    def id(self) -> str:
        """The message's id, the same whenever and wherever it is sent: a receiver may drop what it has seen."""
        return f"msg_{self.job.id}_{self.job.run}"

    def body(self) -> bytes:
        """Return the event as JSON in UTF-8, as the Standard Webhooks specification has it: type, timestamp, data.

        At most 100 outputs are named; `outputs_left_out` counts the others.
        """
        named = [output[:_MOST_TEXT] for output in self.outputs[:_MOST_OUTPUTS]]
        data = {
            "job": self.job.id,
            "run": self.job.run,
            "command": self.job.command,
            "status": self.status.value,
            "plan": self.job.plan,
            "out": self.job.out[:_MOST_TEXT],
            "outputs": named,
            "outputs_left_out": len(self.outputs) - len(named),
            "figures": dict(self.figures),
            "error": self.error[:_MOST_TEXT],
        }
        timestamp = self.ended.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        event = {"type": f"serfer.job.{self.status.value}", "timestamp": timestamp, "data": data}
        return json.dumps(event, separators=(",", ":")).encode()
