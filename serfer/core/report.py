"""The report of a query: the object that the pipeline, the command line and the HTTP API hand out."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class StoreCounts:
    """Bytes moved and operations that succeeded: `gets` counts ranges read, `exists` keys asked for."""

    bytes_put: int = 0
    bytes_get: int = 0
    puts: int = 0
    gets: int = 0
    exists: int = 0

    def __add__(self, other: StoreCounts) -> StoreCounts:
        return StoreCounts(
            self.bytes_put + other.bytes_put,
            self.bytes_get + other.bytes_get,
            self.puts + other.puts,
            self.gets + other.gets,
            self.exists + other.exists,
        )

    def __sub__(self, other: StoreCounts) -> StoreCounts:
        return StoreCounts(
            self.bytes_put - other.bytes_put,
            self.bytes_get - other.bytes_get,
            self.puts - other.puts,
            self.gets - other.gets,
            self.exists - other.exists,
        )


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

    `bytes_in` and `bytes_out` count tensors with their checksums, whether through the store or in payloads and answers.
    """

    name: str
    grid: str
    tasks: int
    ms: float
    cold: int
    bytes_in: int
    bytes_out: int


@dataclass(frozen=True)
class QueryReport:
    """The object that `serfer classify --json` and the HTTP API answer with.

    `weights` says in words where the network's weights come from; where they are `untrained`, predictions mean nothing.
    `cost_usd` prices the measured times as Lambda would: requests, and memory times billed milliseconds.
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

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)
