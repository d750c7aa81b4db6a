"""A process that registers a network which was uploaded: a job in JSON in, events as JSON lines out.

    {"event": "registration", "text": ID}      the registration's record in the registry, which has the steps
    {"event": "progress", "text": "step 3 of 9: ..."}
    {"event": "done", "text": "resnet18", "version": 2, "live": false}
    {"event": "failed", "text": why}           what was uploaded cannot be registered, or the registry is away
    {"event": "bug", "text": traceback}        for the log of who waits

SIGTERM interrupts it: what was done is in the registry, and the next one goes on from there.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from serfer.core.dataclass_codec import structure
from serfer.core.errors import InputError, SerferError
from serfer.settings import load_settings
from serfer.system import end_first
from serfer.variants.register import register
from serfer.variants.trial import example_of, try_network
from serfer.variants.unpacking import SET

_MAX_JOB_BYTES: Final = 65_536
_MOST_TEXT: Final = 4000
_NICENESS: Final = 10  # what answers queries on this machine comes first


@dataclass(frozen=True, slots=True)
class SubmittedNetwork:
    """What is to be registered: `network` is a zoo name or the path of an ONNX file, `validation` a directory or None.

    `preprocess` and `labels` are paths, None where none were given; `size` is the input's (channels, height, width).
    Images of the validation set have at most so many bytes and pixels.
    """

    application: str
    network: str
    name: str
    validation: str | None
    registry: str
    by: str
    most: int
    max_loss: float
    max_image_bytes: int
    max_image_pixels: int
    latency_ms: float | None = None
    instance: str | None = None
    usd_per_hour: float | None = None
    output: str | None = None
    size: tuple[int, int, int] | None = None
    preprocess: str | None = None
    labels: str | None = None


def register_submitted(job: SubmittedNetwork) -> None:
    """Register a network, and say how it goes and ends."""
    from serfer.splitter.network.description import read_labels, read_preprocess  # noqa: PLC0415 - a process imports it late

    bounds = {"max_image_bytes": job.max_image_bytes, "max_image_pixels": job.max_image_pixels}
    if job.network.endswith(".onnx"):
        try_network(Path(job.network), job.size)
    registered = register(
        job.network,
        job.application,
        job.validation,
        name=job.name,
        registry=job.registry,
        by=job.by,
        most=job.most,
        max_loss=job.max_loss,
        latency_ms=job.latency_ms,
        instance=job.instance,
        usd_per_hour=job.usd_per_hour,
        example=example_of(job.size),
        preprocess=read_preprocess(Path(job.preprocess)) if job.preprocess else None,
        labels=read_labels(Path(job.labels)) if job.labels else (),
        activation=job.output,
        settings=load_settings().model_copy(update=bounds),
        progress=lambda text: _tell("progress", text),
        begun=lambda registration: _tell("registration", registration),
    )
    version = registered.version
    _tell("done", version.network, version=version.version, live=registered.live)


def _without_places(text: str, job: SubmittedNetwork) -> str:
    """Return a message with the names of what was uploaded, and not of where that lies here."""
    folder = f"{Path(job.validation or job.network).parent}/"
    text = text.replace(job.validation, SET) if job.validation else text
    return text.replace(folder, "") if len(folder) > len("./") else text


def _tell(event: str, text: str, **more: int | bool) -> None:
    line = {"event": event, "text": text[:_MOST_TEXT], **more}
    print(json.dumps(line), flush=True)  # noqa: T201 - the process that waits reads it


def _yield_to_others() -> None:
    """Let others have the processor first, and be the first to go where memory runs out."""
    os.nice(_NICENESS)
    end_first()


def main() -> None:
    """Register, or say what was wrong; messages name what was uploaded, not where it lies here."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is for who waits
    job = structure(SubmittedNetwork, json.loads(sys.stdin.buffer.read(_MAX_JOB_BYTES)), "job", error=InputError)
    _yield_to_others()
    try:
        register_submitted(job)
    except SerferError as error:
        _tell("failed", _without_places(str(error), job))
        raise SystemExit(error.exit_code) from error
    except KeyboardInterrupt:
        raise SystemExit(1) from None
    except Exception as error:
        _tell("bug", traceback.format_exc()[-_MOST_TEXT:])
        raise SystemExit(1) from error


if __name__ == "__main__":
    main()
