"""All steps of a registration, from a network that was read to the variants that are recorded."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final, TypeVar

from serfer.core.costs.aws import AwsFacts
from serfer.core.costs.cold_queries import price_cold
from serfer.core.costs.cost_model import Platform, price_plan
from serfer.core.costs.pricing import cold_share_of
from serfer.core.dataclass_codec import Bounds, structure, unstructure
from serfer.core.errors import InputError, ModelError, PlanError, UnavailableError
from serfer.core.plan import Plan
from serfer.core.units import MS_PER_S
from serfer.core.variants import Accuracy, Figure, Place, Variant
from serfer.local.die_with_parent import dying_with_me
from serfer.pipeline.labelled.accuracy import BATCH, accuracy_of
from serfer.plan_directory import load_plan
from serfer.registry.registry import Registry
from serfer.settings import Settings
from serfer.system import processors
from serfer.variants.candidates import P95, Candidate, PlanRequest, choose, loss, plan_requests
from serfer.variants.child import InstanceFigures, InstanceJob
from serfer.variants.images import ImageFiles, ValidationFiles
from serfer.variants.instances import InstanceMeasurement, busy, instance_type, instance_variants, why_not
from serfer.variants.plans import BaseNetwork, Progress, make_plan, short_name
from serfer.variants.quantising import with_quantised
from serfer.variants.register_options import RegisterOptions
from serfer.variants.steps import Steps
from serfer.wiring.open_pipeline import open_pipeline

_COMMAND: Final = (sys.executable, "-P", "-m", "serfer.variants.child")
_MOST_LINE: Final = 300


def measure_instance(job: InstanceJob) -> InstanceFigures:
    """Measure a whole network in a process of its own, which ends with this one.

    Raises InputError with what it says where it fails, or says nothing (such as for want of memory).
    """
    data = json.dumps(unstructure(job)).encode()
    done = subprocess.run(dying_with_me(*_COMMAND), input=data, capture_output=True, check=False)  # noqa: S603 - our own
    if done.returncode < 0:
        raise InputError(f"measuring {job.precision} ended by signal {-done.returncode}: is there memory enough?")
    if done.returncode:
        raise _error(done.returncode, done.stderr)
    return structure(InstanceFigures, json.loads(done.stdout), "figures", error=UnavailableError)


def measure_plan(directory: Path, images: ImageFiles, settings: Settings) -> Accuracy:
    """Classify images with a plan's functions, as workers in this process: the path that queries take."""
    with open_pipeline(directory, store="memory://", workers="inprocess", settings=settings) as pipeline:
        return accuracy_of(pipeline.run, images.batches(BATCH), images.labels)


def _error(code: int, text: bytes) -> Exception:
    lines = text.decode(errors="replace").strip().splitlines() or ["it ended without a word"]
    kind = InputError if code == InputError.exit_code else UnavailableError
    return kind(f"the network cannot be measured: {lines[-1][:_MOST_LINE]}")


T = TypeVar("T")
_MOST_WORDS: Final = 300
_UNKNOWN: Final = (
    "accuracy is not known: without labelled images (--validation), variants are those that answer as the network does"
)
_NO_INSTANCES: Final = "there are no variants on instances, which answer with a score for each class: functions answer"
_FIRST: Final = 1  # a placeholder: the registry sets versions


@dataclass(frozen=True, slots=True)
class PlanFigures:
    """Predictions for queries of one image: milliseconds of a warm one, `load_ms` what a cold one waits in addition.

    `usd` are expected, with the share of cold queries that the plan was chosen for.
    `memory_mb` is the largest function's, `qps` what an account's concurrency answers, `tasks` those of a query.
    """

    latency_ms: Annotated[float, Bounds(0.0)]
    load_ms: Annotated[float, Bounds(0.0)]
    usd: Annotated[float, Bounds(0.0)]
    qps: Annotated[float, Bounds(0.0)]
    memory_mb: Annotated[int, Bounds(1)]
    tasks: Annotated[int, Bounds(1)]


def predict_figures(plan: Plan, facts: AwsFacts) -> PlanFigures:
    """Predict a plan's figures by the cost model, over the store that it was made for."""
    platform = Platform.over(facts, plan.store)
    warm, mixed = (price_plan(plan, replace(platform, cold_share=share)) for share in (0.0, cold_share_of(plan)))
    seconds = sum(stage.tasks * stage.seconds for stage in warm.stages)  # of all environments that a query holds
    return PlanFigures(
        latency_ms=warm.latency.quantile(P95) * MS_PER_S,
        load_ms=max(0.0, price_cold(plan, platform).seconds - warm.latency.mean) * MS_PER_S,
        usd=mixed.usd,
        qps=facts.functions.concurrency / seconds,
        memory_mb=max(stage.memory_mb for stage in plan.stages),
        tasks=plan.tasks,
    )


@dataclass(frozen=True, slots=True)
class PlanOutcome:
    """A plan that was made and its predicted figures, or `why` there is none; plans of one `shape` are the same."""

    why: str = ""
    name: str = ""
    shape: str = ""
    artefact: str = ""
    plan: str = ""
    figures: PlanFigures | None = None


@dataclass(frozen=True, slots=True)
class PrecisionOutcome:
    """The whole network as it was measured in a precision, or `why` not."""

    why: str = ""
    measurement: InstanceMeasurement | None = None


@dataclass(frozen=True, slots=True)
class NamedPlan:
    """A plan that was made; `base` is what its name was before it was told apart from others of that name."""

    base: str
    request: PlanRequest
    made: PlanOutcome
    figures: PlanFigures


class Making:
    """Makes and measures a network's variants, step by step, and records those that are worth having."""

    def __init__(
        self,
        base: BaseNetwork,
        files: ValidationFiles | None,
        options: RegisterOptions,
        settings: Settings,
        registry: Registry,
        steps: Steps,
        work: Path,
        progress: Progress,
    ) -> None:
        self._base = base
        self._files = files
        self._options = options
        self._settings = settings
        self._facts = settings.facts()
        self._registry = registry
        self._steps = steps
        self._work = work
        self._progress = progress
        self._remarks: list[str] = []

    def run(self) -> tuple[str, ...]:
        requests = plan_requests(self._base.plan.alternatives, self._options.most, self._options.latency_ms)
        requests = [request for request in requests if self._files or request.exact]
        self._steps.planned = len(requests) + 3
        made = [(request, self._made(request)) for request in requests]
        plans = _named(made)
        exact = next((plan.made for plan in plans if plan.request.exact), None)
        if exact is None:
            raise ModelError(f"no plan of {self._base.plan.model} in fp32 is possible: {self._remarks[0]}")
        if self._files is None:
            self._remarks.append(_UNKNOWN)
        measured = self._instances(exact)
        given = measured[0].figures.accuracy if measured else None
        plans = self._kept([_plan_candidate(plan) for plan in plans], plans)
        self._steps.planned += sum(not plan.request.exact for plan in plans)
        functions, instances = self._function_variants(plans, given), self._instance_variants(measured)
        candidates = [replace(_plan_candidate(plan), loss=_lost(variant, given)) for plan, variant in functions]
        candidates += [_instance_candidate(instance, given) for instance in instances]
        for variant in self._kept(candidates, [*(variant for _, variant in functions), *instances]):
            self._steps.variant(variant)
        return tuple(self._remarks)

    def _kept(self, candidates: Sequence[Candidate], items: Sequence[T]) -> list[T]:
        """Return the items whose candidates are worth having, in the order of `choose`, and remark on the others."""
        chosen = choose(candidates, self._options.most)
        self._remarks += [f"{name} was left out: {why}" for name, why in chosen.dropped.items()]
        items_of = dict(zip(candidates, items, strict=True))
        return [items_of[candidate] for candidate in chosen.kept]

    def _made(self, request: PlanRequest) -> PlanOutcome:
        def make() -> PlanOutcome:
            out = self._work / request.name
            try:
                images = self._files.calibration if self._files else None
                plan = make_plan(self._base, request, out, self._facts, images, self._progress)
            except (ModelError, PlanError) as error:
                return PlanOutcome(why=str(error)[:_MOST_WORDS])
            figures = predict_figures(plan, self._facts)
            artefact = self._registry.put_directory(out)
            return PlanOutcome("", short_name(plan, request), plan.digest[:16], artefact, plan.digest, figures)

        made = self._steps.done(PlanOutcome, f"plan {request.name}", f"making a plan: {request.name}", make)
        if made.why:
            self._remarks.append(f"{request.name} was not made: {made.why}")
        return made

    def _instances(self, whole: PlanOutcome) -> list[InstanceMeasurement]:
        if not self._base.plan.classifies:
            self._remarks.append(_NO_INSTANCES)
            return []
        fp32 = self._tried("fp32", whole)
        if fp32.measurement is None:
            raise InputError(f"the network cannot be measured: {fp32.why}")
        measured, figures = [fp32.measurement], fp32.measurement.figures
        self._remarks += filter(None, [busy(figures, processors())])
        if self._files is None:
            return measured
        lossy = ["int8"]
        if figures.device == "cuda":
            lossy.insert(0, "fp16")
        else:
            self._remarks.append("fp16 was not tried on instances: ONNX Runtime computes it in fp32 on processors")
        for precision in lossy:
            tried = self._tried(precision, whole)
            why = why_not(tried.measurement, figures, self._options.max_loss) if tried.measurement else tried.why
            if tried.measurement and not why:
                measured.append(tried.measurement)
            else:
                self._remarks.append(f"{precision} on instances was left out: {why}")
        return measured

    def _tried(self, precision: str, whole: PlanOutcome) -> PrecisionOutcome:
        def measure() -> PrecisionOutcome:
            directory, artefact, digest = self._fetched(whole.artefact), whole.artefact, whole.plan
            try:
                if precision == "int8":
                    directory, artefact, digest = self._quantised(directory)
                figures = measure_instance(self._job(directory, precision))
            except (ModelError, InputError) as error:
                return PrecisionOutcome(why=str(error)[:_MOST_WORDS])
            return PrecisionOutcome("", InstanceMeasurement(precision, artefact, digest, figures))

        return self._steps.done(
            PrecisionOutcome, f"instance {precision}", f"measuring the whole network in {precision}", measure
        )

    def _quantised(self, directory: Path) -> tuple[Path, str, str]:
        if self._files is None or self._files.calibration is None:
            raise InputError("there are too few validation images to calibrate with: give 100 or more")
        out = self._work / "int8"
        plan = with_quantised(load_plan(directory), directory, self._files.calibration, out)
        return out, self._registry.put_directory(out), plan.digest

    def _job(self, directory: Path, precision: str) -> InstanceJob:
        images = str(self._files.tested.folder) if self._files else ""
        return InstanceJob(str(directory), self._options.device, precision, images)

    def _fetched(self, artefact: str) -> Path:
        return self._registry.directory(artefact, self._work / "fetched")

    def _function_variants(self, plans: Sequence[NamedPlan], given: Accuracy | None) -> list[tuple[NamedPlan, Variant]]:
        variants = []
        for plan in plans:
            accuracy = given if plan.request.exact else self._accuracy(plan.made)
            lost = loss(accuracy, given) if accuracy and given else 0.0
            if lost > self._options.max_loss:
                most = f"max_loss={self._options.max_loss:g}"
                self._remarks.append(
                    f"{plan.made.name} was left out: it loses {lost:.2%} of the images, more than {most}"
                )
            else:
                variants.append((plan, _function_variant(self._base.plan.model, plan, accuracy)))
        return variants

    def _accuracy(self, made: PlanOutcome) -> Accuracy | None:
        if self._files is None:
            return None
        images = self._files.tested

        def measure() -> Accuracy:
            return measure_plan(self._fetched(made.artefact), images, self._settings)

        return self._steps.done(Accuracy, f"accuracy {made.name}", f"measuring the accuracy of {made.name}", measure)

    def _instance_variants(self, measured: list[InstanceMeasurement]) -> list[Variant]:
        device = measured[0].figures.device if measured else "cpu"
        kind = instance_type(self._options, device, self._facts.instances)
        return [each for one in measured for each in instance_variants(one, kind, _FIRST, self._base.plan.model)]


def _named(made: Sequence[tuple[PlanRequest, PlanOutcome]]) -> list[NamedPlan]:
    plans: list[NamedPlan] = []
    for request, variant in made:
        if variant.figures is None or variant.shape in {plan.made.shape for plan in plans}:
            continue
        same = sum(plan.base == variant.name for plan in plans)
        named = replace(variant, name=f"{variant.name}-no{same + 1}") if same else variant
        plans.append(NamedPlan(variant.name, request, named, variant.figures))
    return plans


def _function_variant(network: str, plan: NamedPlan, accuracy: Accuracy | None) -> Variant:
    figures, request = plan.figures, plan.request
    lossy = [*(["weights in fp16"] * (request.precision == "fp16")), *(["a pooled head"] * request.pooled)]
    known = "exact: the network's own accuracy" if accuracy else "exact"
    accurate = "accuracy measured with workers in process" if lossy else known
    tasks = "one function" if figures.tasks == 1 else f"a plan of {figures.tasks} tasks"
    return Variant(
        name=plan.made.name,
        network=network,
        version=_FIRST,
        place=Place.FUNCTIONS,
        precision=request.precision,
        artefact=plan.made.artefact,
        plan=plan.made.plan,
        accuracy=accuracy,
        latency_ms=Figure.predicted(figures.latency_ms),
        load_ms=Figure.predicted(figures.load_ms),
        peak_mb=Figure.predicted(figures.memory_mb),
        qps=Figure.predicted(figures.qps),
        usd=Figure.predicted(figures.usd),
        memory_mb=figures.memory_mb,
        tasks=figures.tasks,
        made=", ".join([tasks, *lossy, accurate]),
    )


def _plan_candidate(plan: NamedPlan) -> Candidate:
    made, figures = plan.made, plan.figures
    exact, usd = plan.request.exact, figures.usd
    return Candidate(made.name, made.shape, Place.FUNCTIONS, exact, figures.latency_ms, figures.load_ms, usd)


def _instance_candidate(variant: Variant, given: Accuracy | None) -> Candidate:
    exact, lost = variant.precision == "fp32", _lost(variant, given)
    figures = variant.latency_ms.value, variant.load_ms.value, variant.usd.value
    return Candidate(variant.name, variant.name, Place.INSTANCE, exact, *figures, lost)


def _lost(variant: Variant, given: Accuracy | None) -> float | None:
    return loss(variant.accuracy, given) if variant.accuracy and given else None
