"""One query of a pipeline: its input, checked and cut for the first stage's tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import InputError, PlanError, UsageError
from serfer.core.plan import Levels, Plan, Preprocess
from serfer.core.plan.sized_plan import sized_plan
from serfer.core.plan.window_plan import query_plan
from serfer.core.report import PredictedImage
from serfer.core.wire import MAX_BATCH, Crop
from serfer.drivers.driver import RequestContext


@dataclass(frozen=True)
class Wanted:
    """What a caller wants of each image: so many classes at most, and boxes of that score, or the plan's least one.

    With `classes` it wants scores of classes, whatever else the plan's answer would be.
    """

    top_k: int = 5
    min_score: float | None = None
    classes: bool = False


@dataclass(frozen=True)
class NamedImage:
    """An image of a query: its name, and its size, upright: rows and columns."""

    name: str
    size: tuple[int, int]

    def blank(self) -> PredictedImage:
        return PredictedImage(self.name, height=self.size[0], width=self.size[1])


@dataclass(frozen=True)
class Query:
    """A batch as `Pipeline.run` takes it, and what its answer should have.

    Where it was made from `images`, the report says what was `wanted` of each. `cut` are the times, on the event loop's
    clock, at which decoding and cutting began and ended. `key` is what the answer is kept under, if it is. The array is
    `finite` where that was checked.
    """

    array: NDArray[Any]
    images: Sequence[NamedImage]
    wanted: Wanted
    cut: tuple[float, float]
    deadline_s: float
    key: str | None
    context: RequestContext
    finite: bool = True

    @property
    def batch(self) -> int:
        return len(self.array)


def plan_for(plan: Plan, array: NDArray[Any], window: int | None = None) -> Plan:
    """Return what a query of an array computes: the plan, at the array's size or at its window.

    Raises InputError for a size that the plan does not take, and what `query_plan` raises.
    """
    return query_plan(plan, window) if plan.sizes is None else sized_plan(plan, size_of(plan, array))


def size_of(plan: Plan, array: NDArray[Any]) -> tuple[int, int] | None:
    """Return the rows and columns of a query of an array, None where the plan has one size.

    Raises InputError for an array that has none.
    """
    if plan.sizes is None:
        return None
    channels, shape = plan.input.channels, array.shape
    if array.ndim == 4:  # noqa: PLR2004 - (N, C, H, W), (N, H, W, C)
        if array.dtype == np.uint8 and shape[3] == channels:
            return shape[1], shape[2]
        if array.dtype == np.float32 and shape[1] == channels:
            return shape[2], shape[3]
    raise InputError(
        f"the batch is {array.dtype} with shape {shape}; this plan takes (N, {channels}, H, W) float32, or (N, H, W, "
        f"{channels}) uint8 pixels, N from 1 to {MAX_BATCH}, of {plan.sizes.input}"
    )


def check_batch(plan: Plan, array: NDArray[Any], *, values: bool = True) -> None:
    """Refuse what the plan does not take; with `values`, also by what is in it.

    Raises InputError for another shape or type and for values that are not finite, PlanError for pixels where the plan
    does not say how they become its input.
    """
    shape, count = plan.input, len(array) if array.ndim else 0
    if 1 <= count <= MAX_BATCH:
        if array.dtype == np.float32 and array.shape == (count, shape.channels, shape.height, shape.width):
            if values:
                check_finite(array)
            return
        if array.dtype == np.uint8 and array.shape == (count, shape.height, shape.width, shape.channels):
            preprocess_of(plan)
            return
    raise InputError(
        f"the batch is {array.dtype} with shape {array.shape}; this plan takes (N, {shape.channels}, "
        f"{shape.height}, {shape.width}) float32, or (N, {shape.height}, {shape.width}, {shape.channels}) uint8 "
        f"pixels, N from 1 to {MAX_BATCH}"
    )


def check_finite(batch: NDArray[Any]) -> None:
    """Raise InputError for values (N, C, H, W) that are not finite; pixels always are."""
    if batch.dtype == np.uint8:
        return
    finite = np.isfinite(batch).all(axis=(1, 2, 3))
    if not finite.all():
        raise InputError(
            f"image {int(finite.argmin())} of the batch has values that are NaN or infinite: its answer would be NaN; "
            "check how it was preprocessed"
        )


def preprocess_of(plan: Plan) -> Preprocess:
    if plan.preprocess is None:
        raise PlanError(
            "this plan does not say how an image becomes its input: use run() with float32, or describe it: serfer "
            "describe DIR --preprocess FILE"
        )
    return plan.preprocess


def check_images(plan: Plan, images: Sequence[object], names: Sequence[str] | None, wanted: Wanted) -> None:
    """Check what is asked about images.

    Raises UsageError for what no query has: no class, no list, too many images, or names that do not match; that or
    PlanError where a plan gives no boxes, or no classes, and these are wanted.
    """
    if isinstance(images, str | bytes) or not isinstance(images, list | tuple | Sequence):  # quickest first
        raise UsageError(f"images are a list of paths or of files' bytes, not a {type(images).__name__}")
    if wanted.top_k < 1:
        raise UsageError(f"top-k must be 1 or more, not {wanted.top_k}")
    count = len(images)
    if not 1 <= count <= MAX_BATCH:
        raise UsageError(f"a query has 1 to {MAX_BATCH} images, not {count}")
    if names is not None and len(names) != count:
        raise UsageError(f"{len(names)} names were given for {count} images")
    if wanted.min_score is not None and plan.detection is None:
        raise UsageError(f"min_score is for boxes, and {plan.model} gives none (docs/how-to/detect.md)")
    if wanted.classes and not plan.classifies:
        outputs = ", ".join(f"{tensor.name} {list(tensor.dims)}" for tensor in plan.output_tensors)
        raise PlanError(
            f"this plan's network has no score for each class: an image's outputs are {outputs}. Use predict() or "
            "run(), serfer predict or serfer run in place of classify"
        )


def cut_crops(plan: Plan, array: NDArray[Any], levels: Levels | None = None) -> list[Crop]:
    """Cut a batch that was checked into what each tile of the first stage reads; `levels` replace those of the plan.

    What lies together in the array is not copied: it must stay as it is.
    """
    tiles = [tile.inputs[0].slices for tile in plan.stages[0].tiles]
    if array.dtype == np.uint8:
        if levels is None and plan.preprocess and plan.as_split:
            levels = plan.preprocess.levels
        return [Crop("uint8", np.ascontiguousarray(array[:, *slices]).data.cast("B"), levels) for slices in tiles]
    values = array.astype("<f4", copy=False)
    return [Crop("float32", np.ascontiguousarray(values[:, :, *slices]).data.cast("B")) for slices in tiles]
