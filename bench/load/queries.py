"""A workload of queries to a system, whose answers are verified."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from serfer.core.errors import WrongAnswerError
from serfer.core.exactness import difference
from serfer_bench.core.system import Logits, Pixels
from serfer_bench.core.workload import Clock, Progress, Sent, run

WRONG = WrongAnswerError.__name__


@dataclass(frozen=True)
class Example:
    """A query's (N, H, W, C) uint8 pixels, and the expected (N, K) logits; None where they are not known."""

    pixels: Pixels
    logits: Logits | None = None


def run_queries(
    submit: Callable[[Pixels], Future[Logits]],
    examples: Sequence[Example],
    arrivals: Sequence[float],
    *,
    patience_s: float = 600.0,
    clock: Clock | None = None,
    progress: Progress = lambda _: None,
) -> list[Sent[None]]:
    def send(number: int) -> Future[Logits]:
        return submit(examples[number % len(examples)].pixels)

    def verify(number: int, logits: Logits) -> None:
        expected = examples[number % len(examples)].logits
        if expected is not None:
            _verify(logits, expected)

    return asyncio.run(run(send, arrivals, verify, patience_s=patience_s, clock=clock, progress=progress))


def _verify(logits: Logits, expected: Logits) -> None:
    if logits.shape != expected.shape:
        raise WrongAnswerError(f"answered with shape {logits.shape}, not {expected.shape}")
    distance = difference(logits, expected)
    if not distance.exact:
        raise WrongAnswerError(f"{distance.error:.1e} of the logits' range off")
