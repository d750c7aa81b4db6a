"""The report of a query: the object that the pipeline, the command line and the HTTP API hand out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from serfer.core.keys import StoreCounts


@dataclass(frozen=True)
class Prediction:
    """One class of an answer; `label` is its index as text where the plan has no labels."""

    label: str
    index: int
    score: float


@dataclass(frozen=True)
class ImageAnswer:
    """An image's best classes, best first."""

    name: str
    predictions: tuple[Prediction, ...]


@dataclass(frozen=True)
class StageReport:
    """A stage's share of a query; `cold` counts tasks that waited for a new environment, `ms` is wall time.

    `fetch_ms` is what new environments waited for weights that they fetch, all of them together.

    `bytes_in` and `bytes_out` count tensors with their checksums, whether through the store or in payloads and answers.

    Where the members of a gang ran it, `gang` is the number of that gang's first stage: `ms` is then measured by the
    members' own clocks, `bytes_exchanged`, a part of `bytes_in`, are the halos that they received from one another, and
    `wait_ms` is what they waited for those, all of them together.
    """

    name: str
    grid: str
    tasks: int
    ms: float
    cold: int
    bytes_in: int
    bytes_out: int
    gang: int | None = None
    bytes_exchanged: int = 0
    wait_ms: float = 0.0
    fetch_ms: float = 0.0


@dataclass(frozen=True)
class QueryReport:
    """The object that `serfer classify --json` and the HTTP API answer with.

    `weights` says in words where the network's weights come from; where they are `untrained`, predictions mean nothing.
    `cost_usd` prices the measured times as Lambda would: requests, and memory times billed milliseconds. Of
    those GB seconds, members of gangs waited `wait_gb_s` for one another; `disbanded` gangs ran stage by stage.
    The query has sent `warm_ups` requests to functions of later stages or of the other plan, which `cost_usd` includes.
    `plan_reason` says why it ran on this plan of two; empty where there is one.
    """

    model: str
    weights: str
    untrained: bool
    images: tuple[ImageAnswer, ...]
    latency_ms: float
    cost_usd: float
    plan: str
    target: str
    stages: tuple[StageReport, ...]
    store: StoreCounts
    retries: int
    hedges: int
    restarts: int
    wait_gb_s: float = 0.0
    disbanded: int = 0
    warm_ups: int = 0
    plan_reason: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)
