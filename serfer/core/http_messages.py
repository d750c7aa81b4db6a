"""What a SerFer service is asked for, and its responses: reports with timelines, progress, models, an instance's state.

INFaaS's section 4 reads signals such as an instance's every two seconds.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, Final, Literal

from serfer.core.dataclass_codec import Bounds
from serfer.core.report import CLASSES, PredictedImage, QueryReport

ModelStatus = Literal["unloaded", "loading", "loaded"]


@dataclass(frozen=True)
class Objectives:
    """What a query asks for; None for what it does not say.

    `latency_ms` is the longest time of an answer, `min_accuracy` a share of correct answers, `max_cost_usd` the dollars
    of the query. `variant` names a variant, and `network` a registered network whose variants alone may answer. Where
    they are `strict`, a query that no variant can satisfy is refused rather than answered by the nearest variant.
    """

    latency_ms: Annotated[float, Bounds(0.0, above=True)] | None = None
    min_accuracy: Annotated[float, Bounds(0.0, 1.0)] | None = None
    max_cost_usd: Annotated[float, Bounds(0.0)] | None = None
    variant: str | None = None
    network: str | None = None
    strict: bool = False


NO_OBJECTIVES: Final = Objectives()
OBJECTIVES: Final = ("latency_ms", "min_accuracy", "max_cost_usd", "variant", "network")
"""Names of what a query may ask for, as parameters of requests."""


@dataclass(frozen=True)
class TaskTime:
    """One try of a task, in ms since its request was admitted; None for what is not known of it.

    `fetch_ms`, a part of `init_ms`, are the milliseconds that a new environment waited for weights that it fetches.
    `outcome` is "answered", "given up" or the kind of failure; `cost_usd` is what Lambda charges for it.

    A member of a gang that answered has an entry for each of its stages, with that stage's part of its one invocation
    and of its cost: `gang` is the first stage of its gang, `wait_ms`, a part of `read_ms`, what it waited for halos.
    The parts follow one another; half of what is left of the invocation is in the first, half in the last.
    """

    stage: int
    tile: int
    attempt: int
    asked_ms: float
    started_ms: float | None
    ended_ms: float | None
    outcome: str
    cold: bool
    init_ms: float | None
    read_ms: float | None
    compute_ms: float | None
    write_ms: float | None
    environment: str | None
    cost_usd: float | None
    gang: int | None = None
    wait_ms: float | None = None
    fetch_ms: float | None = None


@dataclass(frozen=True)
class Timeline:
    """The timeline of a query, in ms since its request was admitted."""

    queue_ms: float
    decode_ms: float
    answered_ms: float
    tasks: tuple[TaskTime, ...]


@dataclass(frozen=True)
class SelectedVariant:
    """The variant that answered a query of an application, and why it was selected.

    `missed` says by how much it misses each objective that it does not meet, in the objective's unit. `release` is the
    number of the live release; where the `canary` answered, or its place was taken after it `failed`, that is said.
    """

    application: str
    variant: str
    network: str
    version: int
    place: str
    release: int
    reason: str
    missed: dict[str, float]
    canary: bool = False
    failed: str = ""


@dataclass(frozen=True)
class ServedReport(QueryReport):
    """A report as a service hands it out, with the timeline if it was asked to explain.

    `selected` says which variant answered a query that named an application.
    """

    timeline: Timeline | None = None
    selected: SelectedVariant | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: without `timeline` and `selected` where there are none, as the pipeline's."""
        empty = {name for name in ("timeline", "selected") if getattr(self, name) is None}
        return {name: value for name, value in asdict(self).items() if name not in empty}


@dataclass(frozen=True)
class ServedPrediction(ServedReport):
    """What any network finds in images, and what the query took: `kind` is "classes", "boxes", "vector" or "map"."""

    images: tuple[PredictedImage, ...]
    kind: str = CLASSES

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: of each image what answers of its kind have."""
        values = super().as_dict()
        del values["kind"], values["images"]
        return {"kind": self.kind, "images": [image.as_dict(self.kind) for image in self.images], **values}


@dataclass(frozen=True)
class StageProgress:
    """The progress of a stage: `tiles` holds 1 for each tile that is done, `done` counts them."""

    name: str
    tasks: int
    done: int
    started_ms: float | None
    ended_ms: float | None
    tiles: tuple[int, ...]


@dataclass(frozen=True)
class Problem:
    """Why there is no answer (RFC 9457)."""

    status: int
    detail: str


@dataclass(frozen=True)
class JobStatus:
    """The status of an asynchronous query: "queued", "running", "done" or "failed".

    It was submitted at `created`, in seconds since 1970.
    """

    id: str
    status: str
    model: str
    created: float
    stages: tuple[StageProgress, ...]
    result: ServedReport | None
    problem: Problem | None

    @property
    def ended(self) -> bool:
        return self.status not in ("queued", "running")


@dataclass(frozen=True)
class ModelInput:
    """The picture that a model's network takes, in pixels."""

    height: int
    width: int
    channels: int


@dataclass(frozen=True)
class ModelOutput:
    """One of a network's outputs: `shape` is one image's, -1 where a size depends on the image; `type` numpy's name."""

    name: str
    type: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ServedModel:
    """A model that a service answers for; `plan` is its plan's digest.

    `kind` is what it finds in images: "classes", "boxes", "vector" or "map". Older services leave it and `outputs` out.
    """

    name: str
    plan: str
    input: ModelInput
    default: bool
    outputs: tuple[ModelOutput, ...] = field(default=(), kw_only=True)
    kind: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class EngineSignals:
    """An engine's load: counters since its start, and how it does now.

    `waiting` are images in the queue. `utilisation` is the share, from 0 to 1, of the last 10 s in which the device
    computed for this engine. `interference` is observed over profiled batch time, a moving average. `profiled_ms` is
    what a full batch of `max_batch` images took at the start, `expected_ms` what it is predicted to take now.
    """

    batches: int
    images: int
    refused: int
    waiting: int
    utilisation: float
    interference: float
    max_batch: int
    profiled_ms: float
    expected_ms: float


@dataclass(frozen=True)
class ModelState:
    """A network of an instance: whether it is in memory, what it takes there, and its engine's signals.

    `bytes` is what it takes when loaded, `resident_bytes` what it takes now. `idle_s` is the time since it was last
    used, None where it never was; `load_s` how long its last load took. `failure` is why the last load failed, empty
    where it did not. `caution` says why its recorded accuracy may be another on this processor, empty where it is not.
    """

    status: ModelStatus
    bytes: int
    resident_bytes: int
    idle_s: float | None
    loads: int
    unloads: int
    load_s: float
    failure: str
    signals: EngineSignals
    caution: str = ""


@dataclass(frozen=True)
class InstanceState:
    """The memory and the device that the networks of an instance share; a `memory_bytes` of None is no bound.

    `utilisation` is the share of the last 10 s in which the device computed.
    """

    device: str
    memory_bytes: int | None
    resident_bytes: int
    utilisation: float
