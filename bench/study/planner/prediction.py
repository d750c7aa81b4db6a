"""Predicted against measured time of stages, on networks that the operator profiles were not filled from.

Every stage of a network's plans (one with tiles, one unsplit) is predicted as the planner does it, and its tiles are
run as a worker runs them, one after the other on one thread; the slowest tile is the stage's time. A repetition lasts
until the machine was undisturbed a few times; the shortest counts, and the spread is reported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import Annotated

import numpy as np
import typer

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.operator_costs import Profiles
from serfer.core.errors import SerferError, UnavailableError
from serfer.core.plan import PackageLimit
from serfer.settings import load_settings
from serfer.splitter.network.graph import Graph
from serfer.splitter.network.source import load
from serfer.splitter.network.zoo import find
from serfer.splitter.planning.planner import Choice, choices_of, prepare
from serfer.splitter.planning.split_options import Budget
from serfer.splitter.tiling.cuts import Cut, cut_points
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.tiling.global_pooling import with_tile_pools
from serfer.splitter.tiling.grids import ONE, parse_grids
from serfer_bench.core.options import ProfilesOption
from serfer_bench.core.tables import Results, Table, publish
from serfer_bench.study.profiling.profile import Meter, Repetitions, Task, given_to, stage_tasks, timed, worker_session

HELD_OUT = (
    *("alexnet", "efficientnet-lite0", "efficientnet-lite2", "googlenet", "inception-v3"),
    *("mobilenet-v3-large", "resnet50", "resnet152", "vgg16"),
)
_GRIDS = "2x2,2x2,1"
_MS_PER_S = 1000.0


@dataclass(frozen=True)
class StagePrediction:
    """A stage's compute on one vCPU: predicted, and measured as the best of `runs`; milliseconds of its slowest tile.

    `spread` is how far the median run lies above the best, as a share; `quiet` counts undisturbed runs.
    """

    model: str
    stage: str
    grid: str
    predicted_ms: float
    measured_ms: float
    spread: float
    runs: int
    quiet: int

    @property
    def error(self) -> float:
        """The relative error of the prediction; negative where it is too low."""
        return self.predicted_ms / self.measured_ms - 1


@dataclass(frozen=True)
class Prediction:
    """All stages, and where the profiles come from.

    A stage of which no run was undisturbed says nothing about the prediction, so it is listed but counts in no mean.
    """

    stages: tuple[StagePrediction, ...]
    profiled_on: str

    @property
    def counted(self) -> tuple[StagePrediction, ...]:
        counted = tuple(stage for stage in self.stages if stage.quiet)
        if not counted:
            raise UnavailableError("other programs disturbed every measurement; measure again on a quiet machine")
        return counted

    @property
    def mean_error(self) -> float:
        return mean(abs(stage.error) for stage in self.counted)

    @property
    def errors(self) -> dict[str, float]:
        names = dict.fromkeys(stage.model for stage in self.counted)
        return {name: mean(abs(stage.error) for stage in self.counted if stage.model == name) for name in names}


def measure(
    profiles: Profiles,
    networks: Sequence[str] = HELD_OUT,
    progress: Callable[[str], None] = lambda _: None,
    max_s: float = 20.0,
) -> Prediction:
    meter = Meter()
    stages = []
    for name in networks:
        progress(f"reading {name}")
        graph = _graph(name)
        for stage, grid, tasks in _stages(graph, name):
            progress(f"running {name}, {stage} on {grid}")
            stages.append(_predicted(profiles, meter, (name, stage, grid), tasks, max_s))
    return Prediction(tuple(stages), f"{profiles.machine}; {profiles.runtime}; {profiles.date}")


def _graph(name: str) -> Graph:
    size = find(name).size
    source, _ = load(name, np.zeros((1, 3, size, size), dtype=np.float32))
    return with_tile_pools(from_onnx(source.onnx, size, size))


def _stages(graph: Graph, name: str) -> Iterator[tuple[str, str, list[Task]]]:
    cuts = cut_points(graph)
    yield "whole", "1", stage_tasks(graph, cuts[0], cuts[-1], ONE)
    for choice in _choices(graph, cuts, name):
        ends = {cut.position: cut for cut in cuts}
        tasks = stage_tasks(graph, ends[choice.start], ends[choice.stop], choice.grid)
        yield f"nodes {choice.start}-{choice.stop}", str(choice.grid), tasks


def _choices(graph: Graph, cuts: Sequence[Cut], name: str) -> list[Choice]:
    facts = shipped_aws()
    budget = Budget(PackageLimit(sys.maxsize, 0), facts, (facts.functions.memory_per_vcpu,))
    fastest = prepare(graph, cuts, parse_grids(find(name).grids or _GRIDS), None, budget).fastest
    return choices_of(fastest) if fastest else []


def _predicted(
    profiles: Profiles, meter: Meter, what: tuple[str, str, str], tasks: Sequence[Task], max_s: float
) -> StagePrediction:
    predicted = max(profiles.run_s + sum(profiles.seconds(work) for work in task.works) for task in tasks)
    ran = [_run(task, meter, max_s / len(tasks)) for task in tasks]
    slowest = max(ran, key=lambda one: one.best)
    return StagePrediction(
        *what,
        predicted_ms=predicted * _MS_PER_S,
        measured_ms=slowest.best * _MS_PER_S,
        spread=median(slowest.times) / slowest.best - 1,
        runs=len(slowest.times),
        quiet=slowest.quiet,
    )


def _run(task: Task, meter: Meter, max_s: float) -> Repetitions:
    session = worker_session(task.model())
    given = given_to(session)
    return meter.repeat(lambda: timed(session, given), max_s)


def results(prediction: Prediction) -> Results:
    head = ("network", "stage", "grid", "predicted ms", "measured ms", "error", "spread", "quiet/runs", "")
    stages = [
        (
            one.model,
            one.stage,
            one.grid,
            f"{one.predicted_ms:.2f}",
            f"{one.measured_ms:.2f}",
            f"{one.error:+.1%}",
            f"{one.spread:.0%}",
            f"{one.quiet}/{one.runs}",
            "" if one.quiet else "disturbed",
        )
        for one in prediction.stages
    ]
    counted = len(prediction.counted)
    disturbed = len(prediction.stages) - counted
    return Results(
        ({**asdict(one), "error": one.error, "profiles": prediction.profiled_on} for one in prediction.stages),
        [
            Table(head, stages),
            Table(("network", "mean error"), [(name, f"{error:.1%}") for name, error in prediction.errors.items()]),
        ],
        [
            f"mean error {prediction.mean_error:.1%} of {counted} stages; {disturbed} disturbed, not counted",
            f"profiles: {prediction.profiled_on}",
        ],
    )


ErrorOption = Annotated[float | None, typer.Option(help="Exit with 1 if the mean error is higher than this.")]


def command(
    model: Annotated[
        list[str] | None,
        typer.Option(help="A model of the zoo; may be repeated. By default those that no profile was filled from."),
    ] = None,
    profiles: ProfilesOption = None,
    at_most: ErrorOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compare the stage latencies that the planner predicts with those measured on this machine."""
    predicted_by = load_settings().profiles(profiles)
    with status_line() as progress:
        prediction = measure(predicted_by, model or HELD_OUT, progress)
    publish(results(prediction), as_json=as_json)
    check_error(prediction.mean_error, at_most)


def check_error(error: float, at_most: float | None) -> None:
    if at_most is not None and error > at_most:
        raise SerferError(f"predictions miss by {error:.1%} on average, more than {at_most:.1%}")
