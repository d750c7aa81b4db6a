"""The ways to answer a network's queries within an objective, each with its least dollars: all modelled.

    one function, SnapStart   every query has an environment of its own; no store, no driver
    split, gang               and for every task, a store where tensors need one, a driver function that waits
    instance                  as many as a burst takes within the objective, always on: nothing is cold
    serverless GPU            as many, billed until they have been idle for too long, or the next burst finds them warm

Functions, stores and the driver function are priced by the cost model, instances as `serfer cost --log` predicts them.
What stands (snapshots, a store's hours, instances) is divided among the queries of an hour. Left out for all: the start
and the time of what takes the request, and transfer to it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

from serfer.control.batching import Profile
from serfer.control.scenario import S_PER_HOUR
from serfer.core.costs.cold_starts import cold_start
from serfer.core.costs.cost_model import billed_usd, start_usd
from serfer.core.dataclass_codec import Bounds
from serfer.core.plan import WEIGHT_PLACES
from serfer.core.units import MB_PER_GB, MS_PER_S
from serfer.cost.instances import gpu_batches, predicted_batches
from serfer.sam.cost.driver_runs import DRIVER_MB
from serfer.splitter.planning.cold.share import best_chain, first_answer
from serfer.splitter.planning.explanation import describe
from serfer.splitter.planning.gang_prices import CandidateGang
from serfer.splitter.planning.limits import WeightStorage
from serfer.splitter.planning.planner import choices_of, prepare, steps_of
from serfer.splitter.planning.search import COST, Chain, Edge, Search
from serfer.splitter.planning.split_options import Budget, exchanges, places_of
from serfer.splitter.planning.stage_costs import StageEnumerator
from serfer.splitter.planning.stage_prices import CandidateStage
from serfer.splitter.tiling.cuts import Cut, cut_points
from serfer.splitter.tiling.grids import ONE, GridChoice
from serfer_bench.study.planner.planner import Network

ONE_FUNCTION, SNAPSTART, SPLIT, GANG, INSTANCE, GPU = WAYS = (
    *("one function", "SnapStart", "split", "gang", "instance", "serverless GPU"),
)
MISSED = 0.01
"""The share of queries that may miss an objective: where more are cold, a cold one's time counts too."""
_NO_STORE = "s3"  # what is deployed where nothing between stages needs one: it costs nothing an hour
_ANY = 1 << 30  # tasks at once: as many as there may be
_LOADED = 0.9  # the share of what an instance computes that counts
_Positive = Annotated[float, Bounds(0.0, 1e9, above=True)]


@dataclass(frozen=True)
class ServerlessGpu:
    """A GPU by the second: the vCPUs that it is worth, seconds to start, and idle seconds that are billed."""

    name: str
    usd_per_second: _Positive
    start_s: _Positive
    idle_s: Annotated[float, Bounds(0.0, 1e6)]
    vcpus: _Positive


@dataclass(frozen=True)
class Question:
    """Queries of one image that come in bursts, `per_hour` on average, to be answered within an objective in seconds.

    A `cold_share` of them finds nothing warm. A warm query must be within the objective and, where more than 1% are
    cold, a cold one too.
    """

    burst: int
    cold_share: float
    slo_s: float
    per_hour: float

    @property
    def cold_counts(self) -> bool:
        return self.cold_share > MISSED

    def is_met(self, warm_s: float, cold_s: float) -> bool:
        return warm_s <= self.slo_s and (cold_s <= self.slo_s or not self.cold_counts)


@dataclass(frozen=True)
class Answer:
    """A way that meets an objective: expected seconds of a query, warm and cold, and dollars of a query, all told.

    In a burst on shared devices, seconds are those of the last query.
    """

    way: str
    what: str
    warm_s: float
    cold_s: float
    usd: float


@dataclass(frozen=True)
class _OneFunction:
    way: str
    what: str
    warm_s: float
    warm_usd: float
    cold_s: float
    start_usd: float
    hour_usd: float

    def answer(self, question: Question) -> Answer:
        usd = self.warm_usd + question.cold_share * self.start_usd + self.hour_usd / question.per_hour
        return Answer(self.way, self.what, self.warm_s, self.cold_s, usd)


class Contest:
    """The ways to answer a network's queries.

    A plan of several tasks has no store, S3, or the one of the network's budget, which may cost money by the hour.
    """

    def __init__(self, network: Network, gpus: Sequence[ServerlessGpu]) -> None:
        self._network, self._gpus = network, tuple(gpus)
        self._budget, self._facts = network.budget, network.budget.facts
        self._concurrency = self._facts.functions.concurrency
        self._whole = Cut(0, (network.graph.input,)), Cut(len(network.graph.nodes), network.graph.outputs)
        self._searches: dict[tuple[float, str], Search] = {}
        self._chains: dict[object, Chain | None] = {}

    def answers(self, question: Question) -> dict[str, Answer]:
        """Return the cheapest of each way that meets the objective, by way; those that cannot are not there."""
        found: dict[str, Answer] = {}
        for one in self._all(question):
            if question.is_met(one.warm_s, one.cold_s) and (one.way not in found or one.usd < found[one.way].usd):
                found[one.way] = one
        return found

    def _all(self, question: Question) -> Iterator[Answer]:
        if question.burst <= self._concurrency:
            yield from (one.answer(question) for one in self._one_function)
        yield from self._divided(question)
        yield from self._instances(question)
        yield from self._serverless_gpus(question)

    @cached_property
    def _one_function(self) -> list[_OneFunction]:
        functions, found = self._facts.functions, list[_OneFunction]()
        for memory in self._budget.memory_mb:
            within, restored = replace(self._budget, memory_mb=(memory,), store=_NO_STORE, cold_share=0.0), False
            for place in WEIGHT_PLACES:
                storage = WeightStorage(places=(place,))
                chain = prepare(self._network.graph, self._whole, GridChoice((ONE,)), None, within, storage).fastest
                if chain is None:
                    continue
                size = _candidate(chain.steps[0][0]).fit.weight_bytes
                for snapstart in (False, True)[: 2 - restored]:  # one snapshot, wherever the weights were
                    start = cold_start(size, place, functions, snapstart=snapstart)
                    found.append(
                        _OneFunction(
                            SNAPSTART if snapstart else ONE_FUNCTION,
                            describe(steps_of(chain)),
                            chain.seconds,
                            chain.usd,
                            start.seconds + chain.seconds,
                            start_usd(1, memory, start, functions, first=True),
                            snapstart * memory / MB_PER_GB * S_PER_HOUR * functions.price_snapstart_cached,
                        )
                    )
                restored = True
        return found

    def _divided(self, question: Question) -> Iterator[Answer]:
        most = self._concurrency // question.burst - 1  # beside the query's driver
        for store in dict.fromkeys((_NO_STORE, self._budget.store)):
            gangs = exchanges(store)
            chain = self._cheapest(question, store, most, gangs=gangs)
            if chain and any(isinstance(edge.stage, CandidateGang) for edge, _ in chain.steps):
                yield self._priced(question, GANG, store, chain)
                chain = self._cheapest(question, store, most, gangs=False)
            stored = chain is not None and any(not one.inline for one in choices_of(chain)[:-1])
            if chain and (stored or store == _NO_STORE):  # without one, images travel inline
                yield self._priced(question, SPLIT, store if stored else "no store", chain)

    def _priced(self, question: Question, way: str, store: str, chain: Chain) -> Answer:
        share, functions, services = question.cold_share, self._facts.functions, self._facts.services
        platform = self._within(share, _NO_STORE if store == "no store" else store).platform
        cold_s = first_answer(chain, platform)

        def waits(seconds: float) -> float:
            waited_s = seconds + services.driver_seconds
            return functions.price_request + float(billed_usd(DRIVER_MB, waited_s, functions))

        usd = chain.usd + (1 - share) * waits(chain.seconds) + share * waits(cold_s + services.driver_init)
        usd += platform.price_hour / question.per_hour
        return Answer(way, f"{describe(steps_of(chain))}, {store}", chain.seconds, cold_s, usd)

    def _cheapest(self, question: Question, store: str, most: int, *, gangs: bool) -> Chain | None:
        """Return the cheapest chain that meets the objective and has at most so many tasks at once, None for none.

        Where cold queries count, all its environments start at once. Of those that have no room, one with a narrower
        widest stage is looked for, so that not all combinations are tried.
        """
        search, width = self._search(question.cold_share, store), _ANY
        while chain := self._best(question, store, width, gangs=gangs):
            tiles = [step[0].grid.tiles for step in steps_of(chain)]
            if max(tiles) <= most and (sum(tiles) <= most or not question.cold_counts):
                return chain
            below = min(max(tiles), most + 1)
            width = max((each for each in map(_width, search.edges) if each < below), default=0)
        return None

    def _best(self, question: Question, store: str, width: int, *, gangs: bool) -> Chain | None:
        share, slo_s, nodes = question.cold_share, question.slo_s, len(self._network.graph.nodes)
        key = store, share, slo_s, width, gangs

        def allowed(edge: Edge) -> bool:
            whole = (edge.start[1], edge.stop[1]) == (0, nodes) and _width(edge) == 1
            return _width(edge) <= width and not whole and (gangs or not isinstance(edge.stage, CandidateGang))

        if key not in self._chains:
            goal = replace(COST, most_seconds=slo_s, most_cold_seconds=slo_s if question.cold_counts else math.inf)
            search = self._search(share, store).only(allowed)
            self._chains[key] = (
                best_chain(search, goal, self._within(share, store).platform) if search.fastest else None
            )
        return self._chains[key]

    def _search(self, share: float, store: str) -> Search:
        if (share, store) not in self._searches:
            graph, budget = self._network.graph, self._within(share, store)
            storage = WeightStorage(spread=True, places=places_of("auto"))
            cuts, gang = cut_points(graph, budget.limit.room), "auto" if exchanges(store) else "never"
            self._searches[share, store] = prepare(graph, cuts, GridChoice(), None, budget, storage, gang=gang)
        return self._searches[share, store]

    def _within(self, share: float, store: str) -> Budget:
        return replace(self._budget, store=store, cold_share=share)

    @cached_property
    def _compute(self) -> tuple[float, float]:
        """Seconds of an image on one vCPU: what more of them do not speed up, and what they do."""
        work = StageEnumerator(self._network.graph, self._whole, self._budget.profiles).whole(*self._whole)
        return float(work.serial_s.sum()), float(work.parallel_s.sum())

    def _instances(self, question: Question) -> Iterator[Answer]:
        facts = self._facts
        for name, price in facts.instances.items():
            if name in facts.vcpus or name in facts.gpu_vcpus:
                times = Profile(predicted_batches(*self._compute, name, facts))
                if (found := fleet(times, question)) is not None:
                    count, seconds = found
                    yield Answer(INSTANCE, f"{count:,} {name}", seconds, seconds, count * price / question.per_hour)

    def _serverless_gpus(self, question: Question) -> Iterator[Answer]:
        between_s = question.burst / question.per_hour * S_PER_HOUR
        for gpu in self._gpus:
            if (found := fleet(Profile(gpu_batches(sum(self._compute), gpu.vcpus)), question)) is not None:
                (count, seconds), share = found, question.cold_share
                kept_s = max(between_s, seconds)  # until the next burst: what finds a GPU warm has paid for it
                billed_s = share * (gpu.start_s + min(seconds + gpu.idle_s, kept_s)) + (1 - share) * kept_s
                usd = count * billed_s * gpu.usd_per_second / question.burst
                yield Answer(GPU, f"{count:,} {gpu.name}", seconds, seconds + gpu.start_s, usd)


def fleet(times: Profile, question: Question) -> tuple[int, float] | None:
    """Return how many devices answer a burst in time and keep up with the load, and the seconds of its last query.

    None where one image takes longer.
    """
    within_ms, counts = MS_PER_S * question.slo_s, range(question.burst + 1)
    most = bisect_right(counts, within_ms, key=lambda images: burst_ms(times, images)) - 1
    if not most:
        return None
    busy_s = question.per_hour / S_PER_HOUR * burst_ms(times, most) / MS_PER_S / most
    count = max(math.ceil(question.burst / most), math.ceil(busy_s / _LOADED))
    return count, burst_ms(times, math.ceil(question.burst / count)) / MS_PER_S


def burst_ms(times: Profile, images: int) -> float:
    """Return when the last of some images is answered that one device computes in its largest batches."""
    batches, left = divmod(images, times.max_batch)
    return batches * times.batch_ms(times.max_batch) + (times.batch_ms(left) if left else 0.0)


def _candidate(edge: Edge) -> CandidateStage | CandidateGang:
    assert isinstance(edge.stage, CandidateStage | CandidateGang)  # noqa: S101 - what StageGraph put there
    return edge.stage


def _width(edge: Edge) -> int:
    return max(_candidate(edge).tasks)


def _has_gang(chain: Chain) -> bool:
    return any(isinstance(edge.stage, CandidateGang) for edge, _ in chain.steps)
