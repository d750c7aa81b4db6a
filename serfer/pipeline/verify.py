"""A plan against the unsplit model, through the pipeline that queries take: rule 1 on the inputs at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import ImageError
from serfer.core.exactness import Difference, check_finite, difference, finite_share
from serfer.core.plan.answers import Answer
from serfer.core.plan.window_plan import check_whole_images
from serfer.images import image_files
from serfer.pipeline.blocking import Pipeline
from serfer.pipeline.reference import Run, original, unsplit


@dataclass(frozen=True)
class AnswerComparison:
    """One input's answer beside the unsplit network's; `loss` is beside the model as given, where that is another."""

    input: str
    exact: bool
    split: Difference
    loss: Difference | None

    def as_dict(self) -> dict[str, Any]:
        split = {"error": self.split.error, "same_top": self.split.same_top, "exact": self.exact}
        loss = {"loss": self.loss.error, "same_top_as_given": self.loss.same_top} if self.loss else {}
        return {"input": self.input, **split, **loss}


@dataclass(frozen=True)
class Verification:
    """The differences of a plan's answers, input by input."""

    rows: tuple[AnswerComparison, ...]

    @property
    def exact(self) -> bool:
        return all(row.exact for row in self.rows)

    @property
    def error(self) -> float:
        return max(row.split.error for row in self.rows)

    @property
    def agreement(self) -> float:
        return sum((row.loss or row.split).same_top for row in self.rows) / len(self.rows)

    def summary(self) -> dict[str, Any]:
        losses = [row.loss.error for row in self.rows if row.loss]
        return {
            "inputs": len(self.rows),
            "exact": self.exact,
            "error": self.error,
            "agreement": self.agreement,
            "loss": max(losses) if losses else None,
        }


def verify(
    pipeline: Pipeline, directory: Path, images: Sequence[Path], random: int, progress: Callable[[str], None]
) -> Verification:
    """Compare on images (files, or folders of them) and on `random` seeded inputs, one query each.

    Raises PlanError for a map plan, what reading an image raises, and ModelError where an unsplit answer is not finite.
    """
    check_whole_images(pipeline.plan)
    for path in images:  # named before anything else that is wrong: a plan may not say how images become inputs
        if not path.exists():
            raise ImageError(f"{path} does not exist")
    computed = unsplit(pipeline.plan, directory)
    given = original(pipeline.plan, directory) if pipeline.plan.original else None
    rows: list[AnswerComparison] = []
    for name, batch in _inputs(pipeline, images, random):
        progress(f"comparing: input {len(rows) + 1}")
        taken, whole = _with_finite_answer(batch, computed)
        check_finite(whole, f"the unsplit network's answer to {name}")
        answer = pipeline.run(taken)
        delta = difference(answer, whole)
        loss = difference(answer, given(taken)) if given else None
        rows.append(AnswerComparison(name, delta.exact, delta, loss))
    return Verification(tuple(rows))


def _with_finite_answer(batch: NDArray[Any], run: Run) -> tuple[NDArray[Any], Answer]:
    """Return what a network is given, and its answer: noise without its signs where the answer to noise is not finite.

    A network may take a logarithm or a root of what is negative in noise and in no image.
    """
    answer = run(batch)
    if batch.dtype == np.uint8 or finite_share(answer) == 1:
        return batch, answer
    return np.abs(batch), run(np.abs(batch))


def _inputs(pipeline: Pipeline, images: Sequence[Path], count: int) -> Iterator[tuple[str, NDArray[Any]]]:
    for path in images:
        for file in image_files(path) if path.is_dir() else [path]:
            yield str(file), pipeline.pixels([file])
    for seed in range(count):
        shape = pipeline.plan.input
        size = (1, shape.channels, shape.height, shape.width)
        yield f"random, seed {seed}", np.random.default_rng(seed).standard_normal(size, dtype=np.float32)
