"""A plan that is ready to answer: images or arrays in, logits or classes out."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from drivers.driver import NO_CONTEXT, TTL_MARGIN_S, Answer, Driver, Overheads, RequestContext
from drivers.target import Served, Target
from serfer.core.costs.aws import LambdaFacts
from serfer.core.errors import DeadlineError, InputError, NotFiniteError, PlanError, UnavailableError, UsageError
from serfer.core.plan import Plan, Preprocess
from serfer.core.report import ImageAnswer, QueryReport, StoreCounts
from serfer.core.wire import MAX_BATCH, MAX_TTL, Crop
from serfer.images import ImageLimits, Recipe, decode_image, read_image
from serfer.pipeline.event_loop import LoopThread, result_of
from serfer.pipeline.health import Health, Probe
from serfer.pipeline.report import best_classes, cached_report, gpu_report, make_report
from serfer.pipeline.result_cache import ResultCache
from serfer.pipeline.warm import HOLD_S, Warmer, Warmth, warm
from storage.store import Store

Logits = NDArray[np.float32]
Image = bytes | str | Path
_MS_PER_S = 1000
DEADLINE_S = 120.0
MAX_DEADLINE_S = MAX_TTL - TTL_MARGIN_S


@dataclass(frozen=True)
class Result:
    """A query's end: (N, K) float32 logits, its report, and the most often that any of its workers read its weights.

    `answer` is what the driver knows of it: every attempt of every task, with times. On the same clock, in seconds, are
    when decoding and cutting into crops began and ended (`split`), and when the logits were there (`answered`).
    `served` is what an instance answered, where one did; then no stage ran, as for an answer that was kept.
    """

    logits: Logits
    report: QueryReport
    weight_loads: int
    answer: Answer
    split: tuple[float, float]
    answered: float
    served: Served | None = None


@dataclass(frozen=True)
class _Asked:
    """A query: images, as `run` takes them, with their names, and when decoding and cutting began and ended.

    `crops` are the images cut, None where a target is asked first; `key` is what the answer is kept under, if it is.
    """

    array: NDArray[Any]
    crops: list[Crop] | None
    names: Sequence[str]
    top_k: int
    split: tuple[float, float]
    deadline_s: float
    key: str | None
    context: RequestContext

    @property
    def batch(self) -> int:
        """How many images it has."""
        return len(self.array)


class Pipeline:
    """Answers queries through one plan; made by `serfer.open`, closed by `close` or a with statement.

    A `target` is asked for every query first; those that it does not take, `driver` takes through the plan's functions.
    Without a driver the target takes all.
    """

    def __init__(  # noqa: PLR0913 - its parts, by name
        self,
        plan: Plan,
        driver: Driver | None,
        loop: LoopThread,
        close: Callable[[], Awaitable[None]],
        facts: LambdaFacts,
        limits: ImageLimits,
        probe: Probe,
        *,
        warmer: Warmer | None = None,
        cache: ResultCache | None = None,
        target: Target | None = None,
    ) -> None:
        self.plan = plan
        self._last: Result | None = None
        self._driver = driver
        self._target = target
        self._loop = loop
        self._close = close
        self.facts = facts
        self._limits = limits
        self._probe = probe
        self._warmer = warmer
        self._cache = cache
        self._closed = False

    @property
    def target(self) -> Target | None:
        """What is asked for every query first, if anything is."""
        return self._target

    @property
    def store(self) -> Store:
        """Where its queries' pieces live."""
        return self._probe.store

    @property
    def last(self) -> Result:
        """The newest query's result; raises UsageError before the first one."""
        if self._last is None:
            raise UsageError("the pipeline has answered no query yet")
        return self._last

    @property
    def last_report(self) -> QueryReport:
        """The newest query's report; raises UsageError before the first one."""
        return self.last.report

    def run(self, batch: Any, *, deadline_s: float = DEADLINE_S) -> Logits:  # noqa: ANN401 - an array or tensor
        """Run one query and return (N, K) float32 logits.

        `batch` is (N, C, H, W) float32, already preprocessed, or (N, H, W, C) uint8 pixels of the input's size, which
        the workers preprocess. Raises InputError for any other array and for values that are not finite, NotFiniteError
        where the network's output has NaN or infinity.
        """
        return result_of(self.submit(batch, deadline_s=deadline_s)).logits

    def submit(
        self,
        batch: Any,  # noqa: ANN401 - as run's
        *,
        deadline_s: float = DEADLINE_S,
        context: RequestContext = NO_CONTEXT,
    ) -> Future[Result]:
        """Start a query of what `run` takes and return its result to come, so that any number may be under way.

        Raises InputError at once for any other array; a query that fails ends its future with the error. Cancelling the
        future cancels the query: stages that have not begun never do.
        """
        started = _now()
        array = np.asarray(batch)
        self._check_array(array)
        crops = self._cut_now(array)
        if crops is None and array.flags.writeable:
            array = array.copy()  # the caller's, who may write to it while the query waits
        self._check(deadline_s)
        key = None
        if self._cache is not None:
            key = self._cache.key([f"{array.dtype} {array.shape}".encode(), np.ascontiguousarray(array).data])
        found = self._found(key, len(array), (), 0, started)
        if found is not None:
            return _ready(found)
        asked = _Asked(array, crops, (), 0, (started, _now()), deadline_s, key, context)
        return self._loop.submit(self._answer(asked))

    def warm(self, queries: int = 1, hold_s: float = HOLD_S) -> list[Warmth]:
        """Get every function ready for so many queries at once; raises UsageError where workers are in process.

        Each request keeps its environment for `hold_s` seconds, so that the others find another one.
        """
        if self._warmer is None:
            raise UsageError("workers in process are always warm: warm local or deployed ones")
        return self._loop.wait(warm(self.plan, self._warmer, queries, hold_s))

    def _check_array(self, array: NDArray[Any]) -> None:
        shape, count = self.plan.input, len(array) if array.ndim else 0
        if 1 <= count <= MAX_BATCH:
            if array.dtype == np.float32 and array.shape == (count, shape.channels, shape.height, shape.width):
                _check_finite(array)
                return
            if array.dtype == np.uint8 and array.shape == (count, shape.height, shape.width, shape.channels):
                self._preprocess()
                return
        raise InputError(
            f"the batch is {array.dtype} with shape {array.shape}; this plan takes (N, {shape.channels}, "
            f"{shape.height}, {shape.width}) float32, or (N, {shape.height}, {shape.width}, {shape.channels}) uint8 "
            f"pixels, N from 1 to {MAX_BATCH}"
        )

    def _cut_now(self, array: NDArray[Any]) -> list[Crop] | None:
        """Cut a query that goes to the plan's functions at once; what a target does not take is cut then."""
        return None if self._target is not None else self._crops(array)

    def _crops(self, array: NDArray[Any]) -> list[Crop]:
        """Cut a batch into what each first-stage tile reads."""
        tiles = [tile.inputs[0].slices for tile in self.plan.stages[0].tiles]
        if array.dtype == np.uint8:
            return [Crop("uint8", array[:, *slices].tobytes()) for slices in tiles]
        return [Crop("float32", array[:, :, *slices].astype("<f4", copy=False).tobytes()) for slices in tiles]

    def _preprocess(self) -> Preprocess:
        if self.plan.preprocess is None:
            raise PlanError(
                "this plan does not say how an image becomes its input: use run() with float32, or split again with a "
                "preprocess description"
            )
        return self.plan.preprocess

    @property
    def recipe(self) -> Recipe:
        """How an image becomes the input; raises PlanError where the plan does not say."""
        return Recipe(self._preprocess(), self.plan.input, self._limits)

    def pixels(self, images: Sequence[Image], names: Sequence[str] | None = None) -> NDArray[np.uint8]:
        """Decode images (encoded bytes, or paths) to the (N, H, W, C) uint8 pixels that the network takes."""
        recipe = self.recipe
        preprocess, shape, limits = recipe.preprocess, recipe.shape, recipe.limits
        named = zip(images, names or _names(images), strict=True)
        loaded = [
            (read_image(Path(image), limits) if not isinstance(image, bytes) else image, name) for image, name in named
        ]
        return np.stack([decode_image(data, name, preprocess, shape, limits) for data, name in loaded])

    def classify(
        self,
        images: Sequence[Image],
        *,
        names: Sequence[str] | None = None,
        top_k: int = 5,
        deadline_s: float = DEADLINE_S,
    ) -> list[ImageAnswer]:
        """Classify images (encoded bytes, or paths) as one query and return each one's `top_k` best classes.

        A network with fewer classes has all of them returned. `names` are what answers and errors call the images:
        their paths, unless given.

        Raises ImageError that names the image, PlanError where the plan does not say how pixels become numbers.
        """
        future = self.ask(images, names=names, top_k=top_k, deadline_s=deadline_s)
        return list(result_of(future).report.images)

    def ask(
        self,
        images: Sequence[Image],
        *,
        names: Sequence[str] | None = None,
        top_k: int = 5,
        deadline_s: float = DEADLINE_S,
        context: RequestContext = NO_CONTEXT,
    ) -> Future[Result]:
        """Decode what `classify` takes, in this thread, and return the result to come, as `submit` does.

        What decoding takes counts towards the deadline; raises DeadlineError where that leaves no time.
        """
        started = _now()
        self.check_images(images, names, top_k)
        self._check(deadline_s)
        names = _names(images) if names is None else names
        if self._cache is not None:
            images = [image if isinstance(image, bytes) else read_image(Path(image), self._limits) for image in images]
        key = self.cache_key(images)
        kept = self.kept(key, names, top_k)
        if kept is not None:
            return _ready(kept)
        pixels = self.pixels(images, names)
        decoded_s = _now() - started
        if decoded_s >= deadline_s:
            ms = f"{deadline_s * _MS_PER_S:.0f} ms"
            raise DeadlineError(
                f"no answer by the deadline of {ms}: it passed while the images were decoded; allow more"
            )
        left_s = deadline_s - decoded_s
        return self.ask_pixels(
            pixels, names, top_k=top_k, deadline_s=left_s, decoded_s=decoded_s, context=context, key=key
        )

    @property
    def keeps_answers(self) -> bool:
        """Whether answers are kept, and looked up."""
        return self._cache is not None

    def cache_key(self, images: Sequence[Image]) -> str | None:
        """Return what a query of encoded images is kept under, None where answers are not kept."""
        if self._cache is None:
            return None
        return self._cache.key([image for image in images if isinstance(image, bytes)])

    def kept(self, key: str | None, names: Sequence[str], top_k: int) -> Result | None:
        """Return the result of a query that was answered before, if its answer is kept."""
        return self._found(key, len(names), names, top_k, _now())

    def ask_pixels(
        self,
        pixels: NDArray[np.uint8],
        names: Sequence[str],
        *,
        top_k: int,
        deadline_s: float,
        decoded_s: float,
        context: RequestContext = NO_CONTEXT,
        key: str | None = None,
    ) -> Future[Result]:
        """Classify images that are decoded, as `pixels` returns them, and return the result to come.

        `decoded_s` is how long that took, for the report; `key` is what `cache_key` returned.
        """
        self._check(deadline_s)
        started = _now() - decoded_s
        crops = self._cut_now(pixels)
        asked = _Asked(pixels, crops, names, top_k, (started, _now()), deadline_s, key, context)
        return self._loop.submit(self._answer(asked))

    def check_images(self, images: Sequence[Image], names: Sequence[str] | None, top_k: int) -> None:
        """Raise UsageError for what no query has: no class, too many images, or names that do not match."""
        if top_k < 1:
            raise UsageError(f"top-k must be 1 or more, not {top_k}")
        if not 1 <= len(images) <= MAX_BATCH:
            raise UsageError(f"a query has 1 to {MAX_BATCH} images, not {len(images)}")
        if names is not None and len(names) != len(images):
            raise UsageError(f"{len(names)} names were given for {len(images)} images")

    def health(self, *, start: bool = False) -> Future[Health]:
        """Look whether store and functions are there; with `start`, every function has to get an environment ready."""
        return self._loop.submit(self._probe.look(start=start))

    def _found(self, key: str | None, batch: int, names: Sequence[str], top_k: int, started: float) -> Result | None:
        """Return the result of a query that was answered before, if its answer is kept."""
        logits = self._cache.find(key, batch) if self._cache and key else None
        if logits is None:
            return None
        counts = StoreCounts(bytes_get=logits.nbytes, gets=1)
        now = _now()
        answer = Answer("", started, now, (), (), (), Overheads(counts=counts))
        images = self._images(names, logits, top_k)
        report = cached_report(self.plan, images, now - started, counts)
        result = self._last = Result(logits, report, 0, answer, (started, started), now)
        return result

    def _check(self, deadline_s: float) -> None:
        if self._closed:
            raise UsageError("the pipeline is closed")
        if not 0 < deadline_s <= MAX_DEADLINE_S:
            raise UsageError(f"the deadline must be more than 0 s and at most {MAX_DEADLINE_S:g} s, not {deadline_s}")

    async def _answer(self, asked: _Asked) -> Result:
        started, served = _now(), None
        if self._target is not None:
            served = await self._target.run(asked.array, asked.deadline_s, asked.context)
        if served is None:
            result = await self._by_functions(asked, started + asked.deadline_s)
        else:
            result = self._by_instance(asked, served, started)
        self._last = result
        if self._cache and asked.key:
            await asyncio.to_thread(self._cache.keep, asked.key, result.logits)
        return result

    async def _by_functions(self, asked: _Asked, deadline: float) -> Result:
        """Answer a query through the plan's functions, in what is left of its time."""
        if self._driver is None:
            raise UnavailableError("no instance took the query, and this pipeline has no functions")
        crops, left_s = asked.crops, asked.deadline_s
        if crops is None:
            crops = await asyncio.to_thread(self._crops, asked.array)
            left_s = deadline - _now()
            if left_s <= 0:
                raise DeadlineError("no answer by the deadline: it passed before the query could begin")
        answer = await self._driver.run(crops, asked.batch, left_s, asked.context)
        columns = [np.frombuffer(output, dtype="<f4").reshape(asked.batch, -1) for output in answer.outputs]
        logits = np.concatenate(columns, axis=1)
        images = self._images(asked.names, _finite(logits), asked.top_k)
        answered = _now()
        return Result(
            logits,
            make_report(self.plan, answer, images, answered - asked.split[0], self.facts),
            max((report.weight_loads for run in answer.stages for report in run.reports), default=0),
            answer,
            asked.split,
            answered,
        )

    def _by_instance(self, asked: _Asked, served: Served, started: float) -> Result:
        images = self._images(asked.names, _finite(served.logits), asked.top_k)
        answered = _now()
        report = gpu_report(self.plan, images, answered - asked.split[0], served.cost_usd)
        answer = Answer("", started, answered, (), (), (), Overheads())
        return Result(served.logits, report, 0, answer, asked.split, answered, served)

    def _images(self, names: Sequence[str], logits: Logits, top_k: int) -> list[ImageAnswer]:
        return [
            ImageAnswer(name, best_classes(self.plan, row, top_k)) for name, row in zip(names, logits, strict=False)
        ]

    def close(self) -> None:
        """Stop what the pipeline started, and delete what its queries left in the store."""
        if not self._closed:
            self._closed = True
            try:
                self._loop.wait(self._let_go())
            finally:
                self._loop.close()

    async def _let_go(self) -> None:
        try:
            if self._target is not None:
                await self._target.close()
        finally:
            await self._close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _finite(logits: Logits) -> Logits:
    """Return the logits; raises NotFiniteError where one is NaN or infinite."""
    if np.isfinite(logits).all():
        return logits
    image, index = np.argwhere(~np.isfinite(logits))[0].tolist()
    raise NotFiniteError(
        f"the network's output {index} for image {image} is {logits[image, index]}, which is not a finite number: "
        "look at the model, or at the preprocessing, with this input"
    )


def _now() -> float:
    return time.monotonic()  # as the event loop's, and so the driver's, clock


def _check_finite(batch: NDArray[Any]) -> None:
    """Raise InputError for a batch, (N, ...), in which some value is NaN or infinite: its answer would be, too."""
    finite = np.isfinite(batch).all(axis=(1, 2, 3))
    if not finite.all():
        raise InputError(
            f"image {int(finite.argmin())} of the batch has values that are NaN or infinite: its answer would be NaN; "
            "check how it was preprocessed"
        )


def _ready(result: Result) -> Future[Result]:
    future: Future[Result] = Future()
    future.set_result(result)
    return future


def _names(images: Sequence[Image]) -> list[str]:
    return [f"image {number}" if isinstance(image, bytes) else str(image) for number, image in enumerate(images)]
