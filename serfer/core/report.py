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
class DetectedObject:
    """An object in an image: its class, and its `box` in the upright image's pixels: left, top, right, bottom.

    `label` is the class's index as text where the plan has no name for it.
    """

    label: str
    index: int
    score: float
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class PredictedOutput:
    """An output of one image: its `values`, in C order, where it is a vector or a table of numbers, such as indices.

    Where it is a mask or a map of one channel, `png` is a picture in base64. `type` is numpy's name, `shape` one
    image's. `href` is where a service keeps it, an array with the images of the query on its first axis. What an output
    does not have is empty.
    """

    name: str
    type: str
    shape: tuple[int, ...]
    values: tuple[float, ...] = ()
    png: str = ""
    href: str = ""


CLASSES, BOXES, VECTOR, MAP = KINDS = ("classes", "boxes", "vector", "map")
"""What a network's answer is: scores of classes, boxes, or its outputs: numbers alone, or maps, too."""


@dataclass(frozen=True)
class PredictedImage(ImageAnswer):
    """What a network finds in an image of `height` x `width` pixels, upright: `predictions` are classes, best first.

    By the kind of the answer, `predictions`, `boxes` (best first) or `outputs` are there; the others are empty.
    """

    predictions: tuple[Prediction, ...] = ()
    height: int = 0
    width: int = 0
    boxes: tuple[DetectedObject, ...] = ()
    outputs: tuple[PredictedOutput, ...] = ()

    def as_dict(self, kind: str) -> dict[str, Any]:
        """Return plain values for JSON, of what answers of a kind have."""
        values = asdict(self)
        for name, kinds in (("predictions", (CLASSES,)), ("boxes", (BOXES,)), ("outputs", (VECTOR, MAP))):
            if kind not in kinds:
                del values[name]
        if kind in (VECTOR, MAP):
            values["outputs"] = [_without_empty(output) for output in values["outputs"]]
        return values


def _without_empty(output: dict[str, Any]) -> dict[str, Any]:
    kept = {"shape", "values"} if 0 in output["shape"] else {"shape"}
    return {name: value for name, value in output.items() if value or name in kept}


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
        return asdict(self)


@dataclass(frozen=True)
class FunctionLoad:
    """Invocations in flight, of at most `capacity`; `utilisation` is their mean share over the last seconds.

    `throttled` counts those that were refused for lack of room, since the start. With `of_account` the capacity is the
    account's, which other drivers use as well.
    """

    in_flight: int
    capacity: int
    utilisation: float
    throttled: int
    of_account: bool
