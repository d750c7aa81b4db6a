"""GET /v1/models: which models are served, how each is split, where its tiles lie on the picture, what was predicted.

GET /v1/models/APPLICATION:VARIANT describes an open variant of an application in the same way.

Rectangles are fractions of the part of the picture that the network sees (`fit` says which part that is), so that they
can be drawn over a picture of any size. Whatever is a prediction of the planner's is called predicted.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, Final

from fastapi import APIRouter, Request

from serfer.api.auth.keys import may_use
from serfer.api.http.problems import Problem
from serfer.api.requests import check_parameters
from serfer.api.routes.openapi import problems
from serfer.api.service import Service
from serfer.applications.applications import Applications
from serfer.applications.pipelines import served_name
from serfer.control.alternatives import Choice, choices
from serfer.core.http_messages import InstanceState, ModelInput, ModelOutput, ModelState, ServedModel
from serfer.core.plan import Operator, OutputTensor, Plan
from serfer.pictures.anatomy import Area, halo, scaled, spread, view
from serfer.pipeline.prediction import kind_of

_MOST_DESCRIBED: Final = 256  # plans that are not worked out again, however many variants come and go
_UNEXPLAINED = "Nothing is predicted of this plan: its explanation.json is missing."


@dataclass(frozen=True)
class Box:
    """A rectangle on what the network sees of the picture, as fractions of its width and height."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True)
class TilePlace:
    """Where a tile lies: its own share of the stage's output, and what it reads of the input, the halo with it.

    `pixels` is what that depends on through all stages before, where the plan has it.
    """

    own: Box
    reads: Box
    pixels: Box | None


@dataclass(frozen=True)
class Operators:
    """A stage's operators: how many, the first and the last."""

    count: int
    first: Operator
    last: Operator


@dataclass(frozen=True)
class StageAnatomy:
    """A stage: `spread` is "map" (tiles of the activation map), "columns" (of a vector) or "none" (one task).

    `reads` are the stages whose output it reads, -1 for the picture; `output` says how its own travels: "inline",
    "cache" or "objects". `work` is the work of all its tasks relative to the unsplit stage, `halo` how much more they
    read together than there is. `tiles` are empty unless it is spread over the map. `gang` is the first stage of the
    gang that it belongs to; predictions and `functions` are then for running it by itself, in the gang's function.
    """

    name: str
    grid: str
    rows: int
    cols: int
    spread: str
    tasks: int
    functions: int
    memory_mb: int
    weights_bytes: int
    operators: Operators
    reads: tuple[int, ...]
    output: str
    work: float
    halo: float
    predicted_ms: float
    predicted_cost_usd: float
    tiles: tuple[TilePlace, ...]
    gang: int | None


@dataclass(frozen=True)
class Fit:
    """How a picture becomes the input: its shorter side is resized to `resize` pixels and the middle is cut out.

    Where `resize` is null, the whole picture is stretched to the input's size, or resized and padded to it where `pad`
    says at which place: "centre", "corner", "square" or "height".
    """

    resize: int | None
    interpolation: str
    pad: str | None


@dataclass(frozen=True)
class Competitor:
    """What a plan competed with, or itself: `verdict` is "chosen", "best", "beaten" or "does not fit".

    The verdict weighs cold queries in their share, as the planner did.
    """

    stages: str
    tasks: int
    verdict: str
    predicted_ms: float
    predicted_cost_usd: float


@dataclass(frozen=True)
class ListedModel(ServedModel):
    """A model and its plan in short; `weights` says in words where its numbers come from.

    Where these are `untrained`, answers mean nothing. `state` is that of its network on an instance, null elsewhere.
    """

    weights: str
    untrained: bool
    grids: tuple[str, ...]
    tasks: int
    state: ModelState | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class Models:
    """The models that are served; `instance` is what they share on one, null elsewhere."""

    models: tuple[ListedModel, ...]
    instance: InstanceState | None = None


@dataclass(frozen=True)
class ModelAnatomy(ListedModel):
    """A model and its plan in full; predictions are of a warm query, with a store of the kind `predicted_for`.

    `unsplit` are whole networks in one function, the fastest first; `competitors` all that the planner had to choose
    from. Both are empty where the plan does not say; where nothing is predicted, `why` says so and predictions are 0.
    `classes` is 0 where the network does not classify.
    """

    classes: int
    fit: Fit | None
    predicted_for: str
    predicted_ms: float
    predicted_cost_usd: float
    why: str
    stages: tuple[StageAnatomy, ...]
    unsplit: tuple[Competitor, ...]
    competitors: tuple[Competitor, ...]


def models_router(service: Service) -> APIRouter:
    router = APIRouter(prefix="/v1", tags=["models"])

    @lru_cache(_MOST_DESCRIBED)
    def described(name: str, _digest: str) -> ModelAnatomy:
        return _anatomy(name, service.pipelines[name].plan, default=name == service.default)

    @router.get("/models", responses=problems(401, 403, 422, 429))
    async def list_models(request: Request) -> Models:
        """List the models that are served; the default one is meant where a request names none."""
        check_parameters(request, ())
        repository = service.repository
        states = repository.states() if repository else {}
        listed = (
            ListedModel(
                **_describe(name, service.pipelines[name].plan, default=name == service.default), state=states.get(name)
            )
            for name in service.models
            if may_use(request, None)
        )
        return Models(tuple(listed), repository.state() if repository else None)

    @router.get("/models/{name}", responses=problems(401, 403, 404, 422, 429))
    async def one_model(request: Request, name: str) -> ModelAnatomy:
        """Return how a model is split, where its tiles lie on the picture, and what was predicted of it.

        APPLICATION:VARIANT names a variant that this driver has opened, which is not listed.
        """
        check_parameters(request, ())
        found = _open_name(service, name)
        anatomy = described(found, service.pipelines[found].plan.digest)
        states = service.repository.states() if service.repository else {}
        return replace(anatomy, state=states.get(found))

    return router


def _open_name(service: Service, name: str) -> str:
    application, _, variant = name.partition(":")
    applications = service.applications
    if name in service.models or applications is None or application not in applications.names:
        return service.name(name)
    _check_open(applications, application, variant)
    return name


def _check_open(applications: Applications, application: str, variant: str) -> None:
    name = served_name(application, variant)
    if applications.pipelines.is_open(name):
        return
    if variant in applications.releases.find(application).variants:
        raise Problem(404, f"variant {name} is not open in this driver: a query that it answers opens it")
    raise Problem(
        404, f"application {application} has no variant {variant[:80]!r}: GET /v1/applications/{application} lists them"
    )


def _describe(name: str, plan: Plan, *, default: bool) -> dict[str, Any]:
    return {
        "name": name,
        "plan": plan.digest,
        "input": ModelInput(plan.input.height, plan.input.width, plan.input.channels),
        "default": default,
        "outputs": tuple(map(_output, plan.output_tensors)),
        "kind": kind_of(plan),
        "weights": plan.weights,
        "untrained": plan.untrained,
        "grids": tuple(str(stage.grid) for stage in plan.stages),
        "tasks": plan.tasks,
    }


def _output(tensor: OutputTensor) -> ModelOutput:
    varies = tensor.axis if tensor.sized_by else None
    shape = tuple(-1 if axis == varies else size for axis, size in enumerate(tensor.dims))
    return ModelOutput(tensor.name, tensor.dtype, shape)


def _anatomy(name: str, plan: Plan, *, default: bool) -> ModelAnatomy:
    how, known = plan.preprocess, choices(plan) if plan.alternatives else ()
    unsplit = [_competitor(choice) for choice in known if choice.plan.tasks == 1]
    return ModelAnatomy(
        **_describe(name, plan, default=default),
        classes=plan.output.elements if plan.classifies else 0,
        fit=Fit(how.resize, how.interpolation, how.pad.place if how.pad else None) if how else None,
        predicted_for=plan.store,
        predicted_ms=round(sum(plan.predicted_ms), 3),
        predicted_cost_usd=plan.predicted_usd or 0.0,
        why=plan.why if plan.explained else _UNEXPLAINED,
        stages=tuple(_stage(plan, number) for number in range(len(plan.stages))),
        unsplit=tuple(sorted(unsplit, key=lambda one: one.predicted_ms)),
        competitors=tuple(_competitor(choice) for choice in known),
    )


def _stage(plan: Plan, number: int) -> StageAnatomy:
    stage = plan.stages[number]
    tiled = spread(stage)
    return StageAnatomy(
        name=f"stage-{number}",
        grid=str(stage.grid),
        rows=stage.grid.rows,
        cols=stage.grid.cols,
        spread="none" if stage.grid.tiles == 1 else "map" if tiled else "columns",
        tasks=stage.grid.tiles,
        functions=len(stage.functions),
        memory_mb=stage.memory_mb,
        weights_bytes=sum(function.weights.bytes for function in stage.functions),
        operators=Operators(len(stage.operators), stage.operators[0], stage.operators[-1]),
        reads=tuple(dict.fromkeys(source.stage for source in stage.inputs)),
        output=stage.path,
        work=round(stage.inflation, 4),
        halo=round(halo(stage), 4) if tiled else 0.0,
        predicted_ms=stage.predicted_ms or 0.0,
        predicted_cost_usd=stage.predicted_usd or 0.0,
        tiles=tuple(_place(plan, number, tile) for tile in range(stage.grid.tiles)) if tiled else (),
        gang=gang.start if (gang := plan.gang_of(number)) else None,
    )


def _place(plan: Plan, stage: int, tile: int) -> TilePlace:
    seen = view(plan, stage, tile)
    whole = scaled(plan.input.whole, plan.input, plan.input)
    return TilePlace(_box(seen.own, whole), _box(seen.reads, whole), _box(seen.pixels, whole) if seen.pixels else None)


def _box(area: Area, whole: Area) -> Box:
    return Box(
        round(area.left / whole.width, 5),
        round(area.top / whole.height, 5),
        round(area.width / whole.width, 5),
        round(area.height / whole.height, 5),
    )


def _competitor(choice: Choice) -> Competitor:
    plan = choice.plan
    ms = plan.ms if plan.warm_ms is None else plan.warm_ms
    usd = plan.usd if plan.warm_usd is None else plan.warm_usd
    return Competitor(plan.stages, plan.tasks, choice.verdict, ms, usd)
