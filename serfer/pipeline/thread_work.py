"""What a query of one task has done in the thread of its task: its input before, and its result after."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from serfer.core.costs.aws import LambdaFacts
from serfer.core.plan import Plan
from serfer.core.wire import Crop
from serfer.drivers.driver import Answer
from serfer.images import DecodedImage, stacked
from serfer.pipeline.query import NamedImage, Query, check_finite, cut_crops
from serfer.pipeline.result import Result, from_functions


@dataclass(frozen=True)
class EncodedImages:
    """The named images of a query, and what decodes each to the network's input in the thread of its task."""

    names: Sequence[str]
    decode: Sequence[Callable[[], DecodedImage]]


@dataclass
class ThreadWork:
    """The work of a `query`, of `encoded` images where it has no array yet; `plan` is at its size."""

    plan: Plan
    query: Query
    facts: LambdaFacts
    reason: str = ""
    encoded: EncodedImages | None = None

    def crop(self) -> Crop:
        """Return the input of the query's task; raises ImageError that names the image, InputError."""
        query = self.query
        if self.encoded is not None:
            query = self.query = self._decoded(self.encoded)
        elif not query.finite:
            check_finite(query.array)
        [crop] = cut_crops(self.plan, query.array, query.context.levels)
        return crop

    def make(self, answer: Answer) -> Result:
        return from_functions(self.plan, self.query, answer, self.facts, time.monotonic(), self.reason)

    def _decoded(self, encoded: EncodedImages) -> Query:
        began = time.monotonic()
        images = [decode() for decode in encoded.decode]
        array = images[0].pixels[np.newaxis] if len(images) == 1 else stacked(images, encoded.names)
        named = [NamedImage(name, image.size) for name, image in zip(encoded.names, images, strict=True)]
        query, cut = self.query, (began, time.monotonic())
        return Query(array, named, query.wanted, cut, query.deadline_s, None, query.context)
