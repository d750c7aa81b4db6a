"""All steps of a registration, from a network that was read to the variants that are recorded."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from serfer.core.costs.aws import AwsFacts
from serfer.core.errors import InputError, ModelError, PlanError
from serfer.core.variants import Accuracy, Figure, Place, Variant
from serfer.plan_directory import load_plan
from serfer.registry.registry import Registry
from serfer.settings import Settings
from serfer.variants.candidates import Candidate, PlanRequest, choose, loss, plan_requests
from serfer.variants.child import InstanceFigures, InstanceJob
from serfer.variants.figures import PlanFigures, predicted
from serfer.variants.images import ValidationFiles
from serfer.variants.instances import InstanceType, Measured, instance_type, instance_variants, why_not
from serfer.variants.measuring import measure_instance, measure_plan
from serfer.variants.plans import BaseNetwork, Progress, make_plan, short_name
from serfer.variants.quantising import with_quantised
from serfer.variants.steps import Steps

_LARGEST_BATCH: Final = {"cpu": 16, "cuda": 64}
_MOST_WORDS: Final = 300
_FIRST: Final = 1  # a placeholder: the registry sets versions


@dataclass(frozen=True, slots=True)
class MakingOptions:
    """What decides which variants there are; `settings` has prices and places."""

    most: int
    max_loss: float
    latency_ms: float | None
    device: str
    instance: str | None
    usd_per_hour: float | None
    settings: Settings

    @property
    def facts(self) -> AwsFacts:
        """AWS's prices and quotas."""
        return self.settings.facts()

    @property
    def text(self) -> str:
        """What decides the result, as text."""
        values = asdict(replace(self, settings=Settings.model_construct()))
        del values["settings"]
        return json.dumps(values, sort_keys=True)

    def priced(self, device: str) -> InstanceType:
        """Return the type that instances on a device are priced as; raises UsageError for one without a price."""
        return instance_type(self.instance, self.usd_per_hour, device, self.facts.instances)


@dataclass(frozen=True, slots=True)
class Made:
    """A plan that was made and its predicted figures, or `why` there is none."""

    why: str = ""
    name: str = ""
    artefact: str = ""
    plan: str = ""
    figures: PlanFigures | None = None


@dataclass(frozen=True, slots=True)
class Tried:
    """A precision of the whole network that was measured, or `why` not."""

    why: str = ""
    artefact: str = ""
    plan: str = ""
    figures: InstanceFigures | None = None


class Making:
    """Makes and measures a network's variants, step by step, and records those that are worth having."""

    def __init__(
        self,
        base: BaseNetwork,
        files: ValidationFiles,
        options: MakingOptions,
        registry: Registry,
        steps: Steps,
        work: Path,
        progress: Progress,
    ) -> None:
        self._base = base
        self._files = files
        self._options = options
        self._registry = registry
        self._steps = steps
        self._work = work
        self._progress = progress
        self._remarks: list[str] = []

    def run(self) -> tuple[str, ...]:
        """Record the variants and return remarks on what was left out, and why."""
        requests = plan_requests(self._base.plan.alternatives, self._options.most, self._options.latency_ms)
        self._steps.planned = len(requests) + 3
        made = [(request, self._made(request)) for request in requests]
        plans = {made.name: (request, made) for request, made in _named(made)}
        whole = next((each for _, each in plans.values() if each.artefact), None)
        if whole is None:
            raise ModelError(f"no plan of {self._base.plan.model} is possible: {self._remarks[0]}")
        measured = self._instances(whole)
        given = measured[0].figures.accuracy
        self._steps.planned += sum(not request.exact for request, _ in plans.values())
        variants = [*self._function_variants(plans, given), *self._instance_variants(measured)]
        lossy = {name for name, (request, _) in plans.items() if not request.exact}
        chosen = choose([_candidate(each, lossy) for each in variants], self._options.most)
        self._remarks += [f"{name} was left out: {why}" for name, why in chosen.dropped.items()]
        names = {each.name for each in chosen.kept}
        for variant in variants:
            if variant.name in names:
                self._steps.variant(variant)
        return tuple(self._remarks)

    def _made(self, request: PlanRequest) -> Made:
        def make() -> Made:
            out = self._work / request.name
            try:
                plan = make_plan(self._base, request, out, self._options.facts, self._files.calibration, self._progress)
            except (ModelError, PlanError) as error:
                return Made(why=str(error)[:_MOST_WORDS])
            figures = predicted(plan, self._options.facts)
            return Made("", short_name(plan, request), self._registry.put_directory(out), plan.digest, figures)

        made = self._steps.done(Made, f"plan {request.name}", f"making a plan: {request.name}", make)
        if made.why:
            self._remarks.append(f"{request.name} was not made: {made.why}")
        return made

    def _instances(self, whole: Made) -> list[Measured]:
        """Measure the whole network in each precision, and return those worth variants, fp32 first."""
        fp32 = self._tried("fp32", whole)
        if fp32.figures is None:
            raise InputError(f"the network cannot be measured: {fp32.why}")
        measured = [Measured("fp32", whole.artefact, whole.plan, fp32.figures)]
        lossy = ["int8"]
        if fp32.figures.device == "cuda":
            lossy.insert(0, "fp16")
        else:
            self._remarks.append("fp16 was not tried on instances: ONNX Runtime computes it in fp32 on processors")
        for precision in lossy:
            tried = self._tried(precision, whole)
            one = tried.figures and Measured(precision, tried.artefact, tried.plan, tried.figures)
            why = why_not(one, fp32.figures, self._options.max_loss) if one else tried.why
            if one and not why:
                measured.append(one)
            else:
                self._remarks.append(f"{precision} on instances was left out: {why}")
        return measured

    def _tried(self, precision: str, whole: Made) -> Tried:
        def measure() -> Tried:
            directory, artefact, digest = self._fetched(whole.artefact), whole.artefact, whole.plan
            try:
                if precision == "int8":
                    directory, artefact, digest = self._quantised(directory)
                figures = measure_instance(self._job(directory, precision))
            except (ModelError, InputError) as error:
                return Tried(why=str(error)[:_MOST_WORDS])
            return Tried("", artefact, digest, figures)

        return self._steps.done(Tried, f"instance {precision}", f"measuring the whole network in {precision}", measure)

    def _quantised(self, directory: Path) -> tuple[Path, str, str]:
        """Make the network in 8 bits and return its directory, artefact and plan digest."""
        if self._files.calibration is None:
            raise InputError("there are too few validation images to calibrate with: give 100 or more")
        out = self._work / "int8"
        plan = with_quantised(load_plan(directory), directory, self._files.calibration, out)
        return out, self._registry.put_directory(out), plan.digest

    def _job(self, directory: Path, precision: str) -> InstanceJob:
        device = self._options.device
        most = _LARGEST_BATCH["cpu" if device == "cpu" else "cuda"]
        return InstanceJob(str(directory), device, precision, most, str(self._files.tested.folder))

    def _fetched(self, artefact: str) -> Path:
        return self._registry.directory(artefact, self._work / "fetched")

    def _function_variants(self, plans: dict[str, tuple[PlanRequest, Made]], given: Accuracy) -> list[Variant]:
        variants = []
        for name, (request, made) in plans.items():
            accuracy = given if request.exact else self._accuracy(name, made)
            lost = loss(accuracy, given)
            if lost > self._options.max_loss:
                most = f"--max-loss {self._options.max_loss:g}"
                self._remarks.append(f"{name} was left out: it loses {lost:.2%} of the images, more than {most}")
            else:
                variants.append(_function_variant(self._base.plan.model, request, made, accuracy))
        return variants

    def _accuracy(self, name: str, made: Made) -> Accuracy:
        def measure() -> Accuracy:
            return measure_plan(self._fetched(made.artefact), self._files.tested, self._options.settings)

        return self._steps.done(Accuracy, f"accuracy {name}", f"measuring the accuracy of {name}", measure)

    def _instance_variants(self, measured: list[Measured]) -> list[Variant]:
        kind = self._options.priced(measured[0].figures.device)
        return [each for one in measured for each in instance_variants(one, kind, _FIRST, self._base.plan.model)]


def _named(made: list[tuple[PlanRequest, Made]]) -> list[tuple[PlanRequest, Made]]:
    """Return the plans that there are, each once, with names that no two of them share."""
    named: dict[str, tuple[PlanRequest, Made]] = {}
    digests: set[str] = set()
    for request, each in made:
        if each.why or each.plan in digests:
            continue
        digests.add(each.plan)
        same = sum(name == each.name or name.startswith(f"{each.name}-no") for name in named)
        name = f"{each.name}-no{same + 1}" if same else each.name
        named[name] = (request, replace(each, name=name))
    return [*named.values()]


def _function_variant(network: str, request: PlanRequest, made: Made, accuracy: Accuracy) -> Variant:
    if made.figures is None:
        raise AssertionError("a plan that was made has figures")
    figures = made.figures
    lossy = [*(["weights in fp16"] * (request.precision == "fp16")), *(["a pooled head"] * request.pooled)]
    accurate = "accuracy measured with workers in process" if lossy else "exact: the network's own accuracy"
    return Variant(
        name=made.name,
        network=network,
        version=_FIRST,
        place=Place.FUNCTIONS,
        precision=request.precision,
        artefact=made.artefact,
        plan=made.plan,
        accuracy=accuracy,
        latency_ms=Figure.predicted(figures.latency_ms),
        load_ms=Figure.predicted(figures.load_ms),
        peak_mb=Figure.predicted(figures.memory_mb),
        qps=Figure.predicted(figures.qps),
        usd=Figure.predicted(figures.usd),
        memory_mb=figures.memory_mb,
        tasks=figures.tasks,
        made=", ".join([f"a plan of {figures.tasks} tasks", *lossy, accurate]),
    )


def _candidate(variant: Variant, lossy: Collection[str]) -> Candidate:
    return Candidate(
        name=variant.name,
        identity=f"{variant.plan} {variant.place} {variant.precision} {variant.batch}",
        place=variant.place,
        exact=variant.precision == "fp32" and variant.name not in lossy,
        latency_ms=variant.latency_ms.value,
        load_ms=variant.load_ms.value,
        usd=variant.usd.value,
    )
