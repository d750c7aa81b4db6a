"""The choice of cuts, grids, memory, data paths and gangs: every possible stage is priced, and the search is exact.

`stage_graph.py` builds the graph of stages and gangs with their prices, `search.py` finds the best chain of them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from serfer.core.costs.cold_queries import ColdPrice
from serfer.core.errors import UsageError
from serfer.core.geometry import Grid
from serfer.core.plan import CACHE, INLINE, PATHS, ZIP, Alternative, DeploymentOption, ModelChange
from serfer.splitter.network.graph import Graph
from serfer.splitter.planning.gang_prices import CandidateGang
from serfer.splitter.planning.limits import WeightStorage, memory_needed, room_in
from serfer.splitter.planning.search import Chain, Edge, Goal, Search
from serfer.splitter.planning.split_options import MAX_STAGES, Budget
from serfer.splitter.planning.stage_graph import StageGraph
from serfer.splitter.planning.stage_prices import CandidateStage
from serfer.splitter.tiling.cuts import Cut, weight_bytes
from serfer.splitter.tiling.grids import GridChoice


@dataclass(frozen=True)
class Choice:
    """A stage: nodes [start, stop) of the graph on a grid, each task with `memory_mb`; `seconds`, `usd` are predicted.

    Of a gang's stages, the first has those of the gang, the others none. `half`: its weights are stored in fp16 where
    they can be, `path` is how what it hands on travels, `weights_in` where its functions have their weights (Stage);
    `apart`: each of its tiles is a function of its own.
    """

    start: int
    stop: int
    grid: Grid
    memory_mb: int
    seconds: float
    usd: float
    half: bool = False
    path: str = CACHE
    weights_in: str = ZIP
    apart: bool = False

    @property
    def inline(self) -> bool:
        return self.path == INLINE


@dataclass(frozen=True)
class Decision:
    """The planner's result: the network as it will be computed, its stages, and the changes made for them.

    `why` writes the planner's paragraph with the figures of the written plan, as an alternative and where nothing is
    warm; `sentences` follow it. All `alternatives` have the search's figures, which are close to those.
    `gangs` are the numbers of stages that become gangs, `notes` what `split` warns of.
    """

    graph: Graph
    cuts: Sequence[Cut]
    choices: Sequence[Choice]
    changes: tuple[ModelChange, ...] = ()
    ways: tuple[DeploymentOption, ...] = ()
    why: Callable[[Alternative, ColdPrice], str] = lambda _chosen, _cold: ""
    alternatives: tuple[Alternative, ...] = ()
    gangs: tuple[range, ...] = ()
    notes: tuple[str, ...] = ()
    sentences: str = ""

    @property
    def steps(self) -> Iterator[Sequence[Choice]]:
        number = 0
        while number < len(self.choices):
            stop = next((gang.stop for gang in self.gangs if gang.start == number), number + 1)
            yield self.choices[number:stop]
            number = stop


def prepare(  # noqa: PLR0913 - what a user may choose
    graph: Graph,
    cuts: Sequence[Cut],
    grids: GridChoice,
    stages: int | None,
    budget: Budget,
    storage: WeightStorage | None = None,
    *,
    least_work: bool = False,
    most_stages: int = MAX_STAGES,
    gang: str = "never",
    goal: Goal | None = None,
) -> Search:
    """Return the search over every chain of stages that keeps the limits and loses least precision.

    With a `goal`, it is over those alone that may be the best for it, for seconds, dollars, or a weighting of the two.

    `gang` is "never", "auto" for gangs beside stages, or "always" for chains that have one; none are searched where the
    number of stages is given, or for the least work.
    """
    stages = _stage_count(grids, stages, most_stages)
    if stages is not None and stages > len(cuts) - 1:
        raise UsageError(f"the network can be cut into {len(cuts) - 1} stages at most, not {stages}")
    return StageGraph(
        graph, tuple(cuts), grids, stages, budget, storage or WeightStorage(), least_work, gang, goal
    ).search


def choices_of(chain: Chain) -> list[Choice]:
    return [choice for choices in steps_of(chain) for choice in choices]


def gangs_of(chain: Chain) -> tuple[range, ...]:
    counts = [len(choices) for choices in steps_of(chain)]
    return tuple(range(stop - count, stop) for count, stop in zip(counts, accumulate(counts), strict=True) if count > 1)


def gangs_of_runs(
    graph: Graph, choices: Sequence[Choice], budget: Budget, half: Container[str] = (), places: Sequence[str] = (ZIP,)
) -> tuple[list[Choice], tuple[range, ...]]:
    """Return every maximal run of stages that can be a gang, from the first stage on, and the stages with its memory.

    Its weights are in the first of the `places` that holds them, and it has the most memory that one of its stages was
    given, or the least that holds them.
    """
    kept, gangs, start = [*choices], list[range](), 0
    while start < len(choices):
        stop, held = start + 1, (choices[start].memory_mb, choices[start].weights_in)
        while stop < len(choices) and (longer := _gang_memory(graph, choices[start : stop + 1], budget, half, places)):
            stop, held = stop + 1, longer
        if stop - start > 1:
            gangs.append(range(start, stop))
            memory, place = held
            kept[start:stop] = [replace(choice, memory_mb=memory, weights_in=place) for choice in choices[start:stop]]
        start = stop
    return kept, tuple(gangs)


def _gang_memory(
    graph: Graph, run: Sequence[Choice], budget: Budget, half: Container[str], places: Sequence[str]
) -> tuple[int, str] | None:
    first, sizes = (
        run[0].grid,
        [weight_bytes(graph, choice.start, choice.stop, half if choice.half else ()) for choice in run],
    )
    place = next((place for place in places if sum(sizes) <= room_in(place, budget)), None)
    if first.tiles == 1 or any(choice.grid.columns for choice in run) or not place:
        return None
    if any(choice.grid != first and choice.grid.tiles >= first.tiles for choice in run):
        return None
    whole = weight_bytes(graph, run[0].start, run[-1].stop)
    least = max(memory_needed(graph, run[0].start, run[-1].stop, whole, place), *(choice.memory_mb for choice in run))
    return next(((size, place) for size in budget.memory_mb if size >= least), None)


def steps_of(chain: Chain) -> Iterator[list[Choice]]:
    grid = 0
    for edge, memory in chain.steps:
        candidate = edge.stage
        assert isinstance(candidate, CandidateStage | CandidateGang)  # noqa: S101 - what StageGraph put there
        works = candidate.works(memory, grid)
        yield [
            Choice(
                work.start,
                work.stop,
                work.grid,
                candidate.memory_mb[memory],
                seconds=0.0 if number else float(edge.seconds[memory, grid]),
                usd=0.0 if number else _warm_usd(edge, memory, grid),
                half=candidate.fit.half,
                path=PATHS[edge.after] if work is works[-1] else CACHE,
                weights_in=candidate.fit.weights_in,
                apart=candidate.fit.apart,
            )
            for number, work in enumerate(works)
        ]
        grid = edge.grid


def _warm_usd(edge: Edge, memory: int, grid: int) -> float:
    usd = float(edge.usd[memory, grid])
    return usd if edge.cold_usd is None else usd - float(edge.cold_usd[memory])


def _stage_count(grids: GridChoice, stages: int | None, most: int) -> int | None:
    if stages is not None and not 1 <= stages <= most:
        raise UsageError(f"stages must be between 1 and {most}, not {stages}")
    if not grids.per_stage:
        return stages
    if stages not in (None, len(grids.per_stage)) or len(grids.per_stage) > most:
        raise UsageError(f"{len(grids.per_stage)} grids do not fit {stages or f'at most {most}'} stages")
    return len(grids.per_stage)
