"""The blocking face of a pipeline: what `serfer.open` returns."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import numpy as np

from serfer.core.errors import DeadlineError, UsageError
from serfer.core.plan.answers import Answer, as_answer
from serfer.core.report import ImageAnswer, PredictedImage, QueryReport
from serfer.core.units import MS_PER_S
from serfer.drivers.driver import NO_CONTEXT, RequestContext
from serfer.pipeline.event_loop import result_of
from serfer.pipeline.pipeline import DEADLINE_S, AsyncPipeline, Image, names_of
from serfer.pipeline.query import NamedImage, Wanted, check_images
from serfer.pipeline.result import Result
from serfer.results import StoredResult

P = ParamSpec("P")
T = TypeVar("T")


def _blocking(
    method: Callable[Concatenate[AsyncPipeline, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Pipeline, P], T]:
    def wait(self: Pipeline, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.asynchronous.loop.wait(method(self.asynchronous, *args, **kwargs))

    return update_wrapper(wait, method)


def _same(method: Callable[Concatenate[AsyncPipeline, P], T]) -> Callable[Concatenate[Pipeline, P], T]:
    def call(self: Pipeline, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(self.asynchronous, *args, **kwargs)

    return update_wrapper(call, method)


class Pipeline:
    """Answers queries through one plan; made by `serfer.open`, closed by `close` or a with statement.

    Its methods block a thread, or return what is to come; `asynchronous` has the same for coroutines. On the thread of
    the pipeline's own event loop, methods that block raise UsageError.
    """

    def __init__(self, asynchronous: AsyncPipeline) -> None:
        self.asynchronous = asynchronous
        self.plan = asynchronous.plan
        self.facts = asynchronous.facts
        self.store = asynchronous.store
        self.target = asynchronous.target
        self._thread = threading.local()  # that waited for its query: its `report`

    warm = _blocking(AsyncPipeline.warm)
    health = _blocking(AsyncPipeline.health)
    pixels = _same(AsyncPipeline.pixels)
    new_result = _same(AsyncPipeline.new_result)
    stored = _same(AsyncPipeline.stored)
    function_load = _same(AsyncPipeline.function_load)

    @property
    def last(self) -> Result:
        """The newest query's result, whichever thread asked; raises UsageError before the first one."""
        return self.asynchronous.last

    @property
    def last_report(self) -> QueryReport:
        """The report of this thread's newest query (`run`, `classify`), whatever other threads have asked meanwhile.

        A thread whose newest query was only submitted, and one that has asked none, gets the newest of all. Raises
        UsageError before the first one.
        """
        report: QueryReport | None = getattr(self._thread, "report", None)
        return report or self.last.report

    def run(self, batch: Any, *, deadline_s: float = DEADLINE_S) -> Answer:  # noqa: ANN401 - an array or tensor
        """Run one query and return the network's output, an array (N, ...), or all by name where there are several.

        A network that classifies returns (N, K) float32 logits; `plan.output_tensors` describes what others return.

        `batch` is (N, C, H, W) float32, already preprocessed, or (N, H, W, C) uint8 pixels of the input's size, which
        the workers preprocess. Raises InputError for any other array and for values that are not finite, NotFiniteError
        where the network's output has NaN or infinity.
        """
        return as_answer(self._waited(self.submit(batch, deadline_s=deadline_s)).outputs)

    def run_to_result(
        self,
        batch: Any,  # noqa: ANN401 - as run's
        *,
        deadline_s: float = DEADLINE_S,
        ttl_s: float | None = None,
    ) -> StoredResult:
        """Run one query of what `run` takes, keep its outputs in the store of results, and return where they lie.

        The last stage's tiles write them there, and nothing of them passes through this process. They are kept for
        `ttl_s` seconds, SERFER_RESULTS_TTL_S unless given, also after the pipeline (docs/how-to/dense-outputs.md).

        Raises what `run` does, and UsageError where there is no store of results, or what runs the query cannot write
        there; a query that fails leaves nothing.
        """
        place = self.new_result(ttl_s=ttl_s)
        result = self._waited(self.submit(batch, deadline_s=deadline_s, context=RequestContext(result=place)))
        if result.kept is None:
            raise UsageError("the query's outputs were not kept")
        return StoredResult(self.asynchronous.results, result.kept)

    def submit(
        self,
        batch: Any,  # noqa: ANN401 - as run's
        *,
        deadline_s: float = DEADLINE_S,
        context: RequestContext = NO_CONTEXT,
    ) -> Future[Result]:
        """Start a query of what `run` takes and return its result to come, so that any number may be in flight.

        Of a map plan, `context` names the window, and `batch` has its size. Where it names a result, the outputs are
        kept, and `Result.kept` describes them in place of `Result.outputs`. Raises InputError at once for any other
        array, PlanError for a map plan without a window; a query that fails ends its future with the error. Cancelling
        the future cancels the query: stages that have not begun never do.
        """
        self._thread.report = None
        return self.asynchronous.begin(batch, deadline_s, context)

    def classify(
        self,
        images: Sequence[Image],
        *,
        names: Sequence[str] | None = None,
        top_k: int = 5,
        deadline_s: float = DEADLINE_S,
    ) -> list[ImageAnswer]:
        """Return the `top_k` best classes of each of some images (encoded bytes, or paths): `predict` of classes alone.

        A network with fewer classes has all of them returned. `names` are what answers and errors call the images:
        their paths, unless given.

        Raises ImageError that names the image, PlanError where the plan does not say how pixels become numbers.
        """
        return self._predict(images, names, Wanted(top_k, classes=True), deadline_s)

    def predict(
        self,
        images: Sequence[Image],
        *,
        names: Sequence[str] | None = None,
        top_k: int = 5,
        min_score: float | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> list[PredictedImage]:
        """Return what the network finds in images (encoded bytes, or paths), of which it makes one query.

        A plan of many sizes makes a query of those of each size, of which `last_report` is one.
        By its plan that is the `top_k` best classes of each image, the boxes of a detector (in the image's own pixels,
        of at least `min_score` where that is given in place of the plan's), or its outputs: vectors as values, masks
        and maps of one channel as PNG. `names` are as for `classify`.

        Raises ImageError that names the image, PlanError where the plan does not say how pixels become numbers,
        DeadlineError.
        """
        found = self._predict(images, names, Wanted(top_k, min_score), deadline_s)
        return [image for image in found if isinstance(image, PredictedImage)]

    def _predict(
        self, images: Sequence[Image], names: Sequence[str] | None, wanted: Wanted, deadline_s: float
    ) -> list[ImageAnswer]:
        started = time.monotonic()
        check_images(self.plan, images, names, wanted)
        self.asynchronous.loop.check_caller()
        self.asynchronous.check(deadline_s)
        self._thread.report = None
        names = names_of(images) if names is None else names
        decoded = self.asynchronous.decode(images, names)
        decoded_s = time.monotonic() - started
        left_s = deadline_s - decoded_s
        if left_s <= 0:
            ms = f"{deadline_s * MS_PER_S:.0f} ms"
            raise DeadlineError(
                f"no answer by the deadline of {ms}: it passed while the images were decoded; allow more"
            )
        queries, of_one_size = [], defaultdict(list)
        for place, image in enumerate(decoded):
            of_one_size[image.pixels.shape].append(place)
        for places in of_one_size.values():
            batch = np.stack([decoded[place].pixels for place in places])
            named = [NamedImage(names[place], decoded[place].size) for place in places]
            query = self.asynchronous.answer(batch, deadline_s=left_s, decoded_s=decoded_s, images=named, wanted=wanted)
            queries.append((places, self.asynchronous.loop.submit(query)))
        found: dict[int, ImageAnswer] = {}
        for places, future in queries:
            found |= zip(places, self._waited(future).report.images, strict=True)
        return [found[place] for place in range(len(decoded))]

    def _waited(self, future: Future[Result]) -> Result:
        self.asynchronous.loop.check_caller()
        result = result_of(future)
        self._thread.report = result.report
        return result

    def close(self) -> None:
        """Stop what the pipeline started, and delete what its queries left in the store; in a fork, do nothing."""
        pipeline = self.asynchronous
        if not (pipeline.closed or pipeline.loop.forked):
            pipeline.closed = True
            try:
                pipeline.loop.wait(pipeline.stop())
            finally:
                pipeline.loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
