"""The accuracy of a plan on labelled images, through the pipeline that queries take, and of the network as given."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import PlanError
from serfer.core.plan import Plan
from serfer.core.variants import Accuracy
from serfer.pipeline.blocking import Pipeline
from serfer.pipeline.labelled.labels import LabelledImages
from serfer.pipeline.reference import original

BATCH: Final = 16
"""Images of a query: few enough for any worker's memory."""


@dataclass(frozen=True)
class Accuracies:
    """The accuracy of a plan and of the network as it was given, on the same images."""

    plan: Accuracy
    given: Accuracy

    def as_dict(self) -> dict[str, Any]:
        return {"accuracy": described(self.plan), "accuracy_as_given": described(self.given)}


def described(accuracy: Accuracy) -> dict[str, Any]:
    low, high = accuracy.interval
    return {"share": accuracy.share, "low": low, "high": high, "correct": accuracy.correct, "images": accuracy.images}


def measure_accuracy(
    pipeline: Pipeline, directory: Path, images: LabelledImages, progress: Callable[[str], None] = lambda _: None
) -> Accuracies:
    """Classify labelled images with a plan, and with the network as it was given, on one thread of this process.

    Raises PlanError for a network that does not classify, ImageError that names an image that cannot be decoded.
    """
    check_labelled(pipeline.plan)
    given = original(pipeline.plan, directory)
    labels, by_plan, by_given, seen = images.labels, 0, 0, 0
    for batch in images.pixels(pipeline.asynchronous.recipe, BATCH):
        expected = labels[seen : seen + len(batch)]
        by_plan += correct_answers(pipeline.run(batch), expected)
        by_given += correct_answers(given(batch), expected)
        seen += len(batch)
        progress(f"classifying labelled images: {seen:,} of {len(images):,}")
    return Accuracies(Accuracy(by_plan, seen), Accuracy(by_given, seen))


def accuracy_of(
    run: Callable[[NDArray[np.uint8]], Any], batches: Iterable[NDArray[np.uint8]], labels: NDArray[np.int64]
) -> Accuracy:
    correct = seen = 0
    for batch in batches:
        correct += correct_answers(run(batch), labels[seen : seen + len(batch)])
        seen += len(batch)
    return Accuracy(correct, seen)


def correct_answers(answer: Any, labels: NDArray[np.int64]) -> int:  # noqa: ANN401 - as Pipeline.run returns it
    return int((np.asarray(answer).argmax(axis=1) == labels).sum())


def check_labelled(plan: Plan) -> None:
    if not plan.classifies or plan.windows:
        raise PlanError(
            f"{plan.model} does not classify whole images: labelled images say nothing of it; register it without them"
        )
