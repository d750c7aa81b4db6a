"""Measures variants: instances in a process of their own, plans that lose something through the path of queries."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import InputError, UnavailableError
from serfer.core.structure import structure, unstructure
from serfer.core.variants import Accuracy
from serfer.local.die_with_parent import dying_with_me
from serfer.pipeline.labelled.accuracy import BATCH, plan_accuracy
from serfer.settings import Settings
from serfer.variants.child import InstanceFigures, InstanceJob
from serfer.variants.images import ImageFiles
from serfer.wiring.open_pipeline import open_pipeline

_COMMAND: Final = (sys.executable, "-P", "-m", "serfer.variants.child")
_MOST_LINE: Final = 300


def measure_instance(job: InstanceJob) -> InstanceFigures:
    """Measure a whole network in a process of its own, which ends with this one.

    Raises InputError with what it says where it fails, or says nothing (such as for want of memory).
    """
    data = json.dumps(unstructure(job)).encode()
    done = subprocess.run(dying_with_me(*_COMMAND), input=data, capture_output=True, check=False)  # noqa: S603 - our own
    if done.returncode < 0:
        raise InputError(f"measuring {job.precision} ended by signal {-done.returncode}: is there memory enough?")
    if done.returncode:
        raise _error(done.returncode, done.stderr)
    return structure(InstanceFigures, json.loads(done.stdout), "figures", error=UnavailableError)


def measure_plan(directory: Path, images: ImageFiles, settings: Settings) -> Accuracy:
    """Classify images with a plan's functions, as workers in this process: the path that queries take."""
    with open_pipeline(directory, store="memory://", workers="inprocess", settings=settings) as pipeline:
        return plan_accuracy(pipeline, _batches(images), images.labels)


def _batches(images: ImageFiles) -> Iterator[NDArray[np.uint8]]:
    pixels = images.pixels
    for at in range(0, images.count, BATCH):
        yield np.ascontiguousarray(pixels[at : at + BATCH])


def _error(code: int, text: bytes) -> Exception:
    lines = text.decode(errors="replace").strip().splitlines() or ["it ended without a word"]
    kind = InputError if code == InputError.exit_code else UnavailableError
    return kind(f"the network cannot be measured: {lines[-1][:_MOST_LINE]}")
