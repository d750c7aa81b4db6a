"""Which variants of a network are worth making, and which of those made are worth having: pure decisions.

A variant beats another of its place where it is as accurate for sure, and neither slower, dearer nor later to load, all
within SLACK: what differs by less than predictions and measurements do is not worth a variant of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from serfer.core.plan import Alternative
from serfer.core.variants import Accuracy, Place

T = TypeVar("T")
SLACK: Final = 0.02
"""The share by which figures of two variants may differ and still count as the same."""
GAIN: Final = 0.05
"""The share of its time that another precision, or a larger batch an image, has to save to be worth having."""
P95: Final = 0.95
"""The share of queries that a latency holds for."""
BATCHES: Final = (1, 4, 8, 16, 32, 64)
"""The largest batches that are measured on instances."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant that could be registered; two with one `identity` are the same one.

    `exact` says that it answers as the network does; `loss` is what it was measured to lose else, None where it was not
    measured. `latency_ms`, `load_ms` and `usd` are as in a Variant.
    """

    name: str
    identity: str
    place: Place
    exact: bool
    latency_ms: float
    load_ms: float
    usd: float
    loss: float | None = None

    def beats(self, other: Candidate) -> bool:
        mine, others = (self.latency_ms, self.load_ms, self.usd), (other.latency_ms, other.load_ms, other.usd)
        return (
            self.place is other.place
            and self._as_accurate(other)
            and all(one <= (1 + SLACK) * another for one, another in zip(mine, others, strict=True))
        )

    def _as_accurate(self, other: Candidate) -> bool:
        if self.exact or other.exact:
            return self.exact
        return self.loss is not None and other.loss is not None and self.loss <= other.loss


@dataclass(frozen=True, slots=True)
class CandidateChoice:
    """The candidates that are kept, in order of place, dollars and latency, and by name what made the others go."""

    kept: tuple[Candidate, ...]
    dropped: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A plan to be made: `whole` is one function; else the fastest within `most_usd`, or the cheapest in `slo_ms`.

    `precision` is that of the weights' storage, `pooled` says that global average pooling takes the head's place.
    """

    name: str
    whole: bool = False
    most_usd: float | None = None
    slo_ms: float | None = None
    precision: str = "fp32"
    pooled: bool = False

    @property
    def exact(self) -> bool:
        return self.precision == "fp32" and not self.pooled


def choose(candidates: Iterable[Candidate], most: int) -> CandidateChoice:
    """Drop candidates that are the same as others or beaten, then those in between until at most `most` are left.

    Half of the room is for each place; what one leaves is the other's. Of a place, the cheapest and the fastest stay.
    """
    dropped: dict[str, str] = {}
    kept: list[Candidate] = []
    for new in sorted(candidates, key=lambda one: (not one.exact, one.usd, one.latency_ms, one.load_ms, one.name)):
        same = next((other for other in kept if other.identity == new.identity), None)
        better = next((other for other in kept if other.beats(new)), None)
        if same:
            dropped[new.name] = f"it is {same.name}"
        elif better:
            dropped[new.name] = f"{better.name} is as good in everything"
        else:
            kept.append(new)
    thinned: list[Candidate] = []
    rooms = _rooms({place: sum(candidate.place is place for candidate in kept) for place in Place}, most)
    for place in Place:
        mine = sorted(
            (each for each in kept if each.place is place), key=lambda one: (one.usd, one.latency_ms, one.name)
        )
        some = spread(mine, rooms[place])
        dropped |= {each.name: f"there is room for {most} variants" for each in mine if each not in some}
        thinned += some
    return CandidateChoice(tuple(thinned), dropped)


def spread(items: Sequence[T], most: int) -> list[T]:
    """Return at most `most` items, evenly spaced: the first and the last among them where there is room for two."""
    if len(items) <= most:
        return [*items]
    if most <= 1:
        return [*items[:most]]
    return [items[round(number * (len(items) - 1) / (most - 1))] for number in range(most)]


def plan_requests(alternatives: Sequence[Alternative], most: int, latency_ms: float | None = None) -> list[PlanRequest]:
    """Return the plans to make, from the predicted alternatives of one plan of the network.

    The whole network, the frontier of latency and dollars (each at least SLACK faster than the cheaper one before), the
    cheapest within `latency_ms`, and weights in fp16 for the whole and the fastest.
    """
    frontier: list[Alternative] = []
    for plan in sorted((one for one in alternatives if one.fits), key=lambda one: (one.usd, one.ms)):
        if not frontier or plan.ms < (1 - SLACK) * frontier[-1].ms:
            frontier.append(plan)
    chosen = spread(frontier, most)
    requests = [PlanRequest("whole", whole=True)]
    requests += [PlanRequest(f"frontier-{number}", most_usd=plan.usd) for number, plan in enumerate(chosen, 1)]
    if latency_ms is not None:
        requests.append(PlanRequest("within-latency", slo_ms=latency_ms))
    requests.append(PlanRequest("whole-fp16", whole=True, precision="fp16"))
    if chosen and chosen[-1].tasks > 1:
        requests.append(PlanRequest("fastest-fp16", most_usd=chosen[-1].usd, precision="fp16"))
    requests.append(PlanRequest("whole-pooled", whole=True, pooled=True))
    return requests


def worthwhile_batches(ms_of: Mapping[int, float]) -> list[int]:
    """Return the largest batches worth a variant, by the milliseconds of each batch that was measured.

    The smallest is; a larger batch is where an image takes at least GAIN less time than in the one before.
    """
    kept: list[int] = []
    for size in sorted(size for size in ms_of):
        if not kept or ms_of[size] / size <= (1 - GAIN) * ms_of[kept[-1]] / kept[-1]:
            kept.append(size)
    return kept


def gains(ms_of: Mapping[int, float], others: Mapping[int, float]) -> bool:
    return any(ms_of[size] <= (1 - GAIN) * others[size] for size in ms_of.keys() & others.keys())


def loss(accuracy: Accuracy, given: Accuracy) -> float:
    """Return how much less of the same images is classified correctly than by the network as given; never below 0."""
    return max(0, given.correct - accuracy.correct) / given.images


def _rooms(counts: Mapping[Place, int], most: int) -> dict[Place, int]:
    functions, instances = counts[Place.FUNCTIONS], counts[Place.INSTANCE]
    for_functions = min(functions, max(most - most // 2, most - instances))
    return {Place.FUNCTIONS: for_functions, Place.INSTANCE: min(instances, most - for_functions)}
