"""Predicted parts of a cold start, by where a function has its weights.

    cold start = process and imports + fetching or reading the weights + making sessions of them

Weights in a zip are on the function's disk when its process starts. Fetched ones come from a bucket at the bandwidth of
an environment, those of a container image block by block, as they are read. The initialisation of an environment is
billed as its invocations are, so weights cost the same dollars wherever they are fetched; but Lambda stops an
initialisation after `init_limit` seconds, so that weights which take longer are fetched in the first invocation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from serfer.core.plan import CONTAINER, FETCHED, ZIP

if TYPE_CHECKING:
    from serfer.core.costs.aws import LambdaFacts

INIT_SHARE = 0.7
"""The share of Lambda's limit for an initialisation that a predicted one may take."""


@dataclass(frozen=True)
class ColdStart:
    """What a cold start adds to an invocation, in seconds, part by part.

    `process` starts the process and its imports, `fetching` has the weights from a bucket or a container image,
    `sessions` makes inference sessions of them.
    """

    process: float
    fetching: float
    sessions: float

    @property
    def seconds(self) -> float:
        """Seconds of all parts, one after another."""
        return self.process + self.fetching + self.sessions


def cold_start(weight_bytes: float, weights_in: str, facts: LambdaFacts) -> ColdStart:
    """Predict the parts of a cold start of a function with so many bytes of weights in a place (`Stage.weights_in`)."""
    fetching = {
        ZIP: 0.0,
        FETCHED: facts.fetch_latency + weight_bytes / facts.bandwidth if weight_bytes else 0.0,
        CONTAINER: weight_bytes / facts.image_rate,
    }
    return ColdStart(facts.init, fetching[weights_in], weight_bytes / facts.load_rate)


def cold_seconds(weight_bytes: float, weights_in: str, facts: LambdaFacts) -> float:
    """Predict how many seconds a cold start adds to an invocation."""
    return cold_start(weight_bytes, weights_in, facts).seconds


def fetched_at_init(weight_bytes: float, facts: LambdaFacts) -> bool:
    """Return whether an environment fetches its weights while it initialises: otherwise in its first invocation.

    At initialisation where process, fetching and sessions are predicted to take less than 0.7 of Lambda's limit (7 s of
    10). Both are billed, so they cost the same.
    """
    return cold_seconds(weight_bytes, FETCHED, facts) < INIT_SHARE * facts.init_limit
