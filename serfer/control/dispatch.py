"""Dispatch at an instance: queries to compute next, when, and queries to refuse: pure decisions about one queue.

    arrives ──▶ predicted_lateness_s, behind the queries that are due before it   above 0 ──▶ refused at once
                  │
                  ▼
                queued ──▶ choose, whenever the engine is free ──▶ a batch, by deadlines ──▶ computed
                             └──▶ queries that can no longer be answered in time are refused

MArk's batch manager waits until N queries have arrived or a window W has passed, even while the engine is idle. With a
window of 0, the default, a free engine starts at once with the queries that are queued, and those that arrive meanwhile
are the next batch: under light load no query waits for others, and under heavy load batches fill up all the same.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from serfer.control.batching import Profile
from serfer.control.scenario import InstanceType
from serfer.core.units import MS_PER_S

_LEARNS = 0.2  # the weight of each observation in the moving average
_OUTLIER = 3.0  # observations are clipped to this many times the prediction
SPARE = 1.5
"""A batch stops waiting for more queries this many times its own time before its first deadline."""


@dataclass(frozen=True)
class Batching:
    """At most `max_batch` images at once; a free engine waits for so many until `window_s` after the oldest arrival."""

    max_batch: int
    window_s: float = 0.0


@dataclass(frozen=True)
class QueuedQuery:
    """A query in the queue, in seconds on one clock; more `images` than fit into a batch are computed in several.

    A `probe` arrived at an idle engine and is computed even if it is predicted to be late: only its time shows whether
    the prediction still holds.
    """

    arrived: float
    images: int
    deadline: float
    probe: bool = False


@dataclass(frozen=True)
class Dispatch:
    """The decision of a free engine: compute `batch` now, refuse `late`, and without a batch decide again at `look_at`.

    Both are indices into the queue. With neither a batch nor a time there is nothing to do until a query arrives.
    """

    batch: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    look_at: float | None = None


class ServiceTimeEstimator:
    """Predicts the seconds that batches take: a profile, scaled by how fast the machine was lately."""

    def __init__(self, profile: Profile, max_batch: int) -> None:
        self._profile = profile
        self._max_batch = max_batch
        self._scale = 1.0

    def limit(self, max_batch: int) -> None:
        self._max_batch = max_batch

    @property
    def slowdown(self) -> float:
        """Observed over profiled batch time, a moving average: above 1 something interferes (INFaaS, section 4)."""
        return self._scale

    def profiled_s(self, images: int) -> float:
        """Return how many seconds so many images took by the profile, whatever was observed since."""
        return self.seconds(images) / self._scale

    def seconds(self, images: int) -> float:
        full, rest = divmod(images, self._max_batch)
        ms = full * self._profile.batch_ms(self._max_batch) + (self._profile.batch_ms(rest) if rest else 0.0)
        return ms * self._scale / MS_PER_S

    def learn(self, images: int, seconds: float) -> None:
        ratio = min(max(seconds / self.seconds(images), 1 / _OUTLIER), _OUTLIER)
        self._scale *= 1 + _LEARNS * (ratio - 1)

    def sustained_batch(self, seconds: float) -> int:
        """Return the largest batch of which two, one after the other, fit into so many seconds; at least 1."""
        low, high = 1, self._max_batch
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if 2 * self.seconds(middle) <= seconds else (low, middle - 1)
        return low


def predicted_lateness_s(
    query: QueuedQuery, ahead: int, free_at: float, now: float, times: ServiceTimeEstimator
) -> float:
    """Predict by how many seconds a query will be late; above 0, it should be refused at once.

    `ahead` are the images that are due before it, `free_at` is when the engine has finished its current batch. Batches
    count as large as those that can follow each other within the query's time, so that its own may fill up and it is
    still in time. Queries that are due after it may be delayed.
    """
    size = times.sustained_batch(query.deadline - now)
    before = ahead // size * times.seconds(size)
    own = max(times.seconds(size), times.seconds(query.images))
    return max(now, free_at) + before + own - query.deadline


def choose(queue: Sequence[QueuedQuery], now: float, batching: Batching, times: ServiceTimeEstimator) -> Dispatch:
    """Decide what a free engine does now: earliest deadline first."""
    late = tuple(number for number, query in enumerate(queue) if _is_late(query, now, times))
    left = sorted(set(range(len(queue))) - set(late), key=lambda number: (queue[number].deadline, number))
    if not left:
        return Dispatch(late=late)
    batch, images = _gathered(queue, left, now, batching.max_batch, times)
    if len(batch) == len(left) and images < batching.max_batch:
        oldest = min(queue[number].arrived for number in left)
        look_at = min(oldest + batching.window_s, queue[left[0]].deadline - SPARE * times.seconds(images))
        if look_at > now:
            return Dispatch(late=late, look_at=look_at)
    return Dispatch(batch, late)


def _is_late(query: QueuedQuery, now: float, times: ServiceTimeEstimator) -> bool:
    return now >= query.deadline or (not query.probe and now + times.seconds(query.images) > query.deadline)


def _gathered(
    queue: Sequence[QueuedQuery], order: Sequence[int], now: float, max_batch: int, times: ServiceTimeEstimator
) -> tuple[tuple[int, ...], int]:
    first = queue[order[0]]
    batch, images = [order[0]], first.images
    for number in order[1:]:
        together = images + queue[number].images
        if together > max_batch:
            continue  # a smaller one may still fit
        if now + times.seconds(together) > first.deadline:
            break
        batch.append(number)
        images = together
    return tuple(batch), images


WINDOW_S = 10.0
"""Seconds; INFaaS's workers report every two."""


class BusyWindow:
    """Busy times within the last `window_s` seconds; times are in seconds and never go back."""

    def __init__(self, opened: float, window_s: float = WINDOW_S) -> None:
        self._opened = opened
        self._window_s = window_s
        self._spans: deque[tuple[float, float]] = deque()  # [begin, end), one after the other

    def add(self, began: float, ended: float) -> None:
        """Note a busy time that has ended, and began after those before."""
        self._spans.append((began, ended))
        while self._spans[0][1] <= ended - self._window_s:
            self._spans.popleft()

    def share(self, now: float, running_since: float | None = None) -> float:
        """Return the share from 0 to 1, with the busy time that runs.

        Before a window has passed it is of the time until now. Another thread may call it while times are added.
        """
        begin = max(now - self._window_s, self._opened)
        if now <= begin:
            return 0.0
        spans = [*tuple(self._spans), *([(running_since, now)] if running_since is not None else [])]
        busy_s = sum(max(0.0, min(ended, now) - max(began, begin)) for began, ended in spans)
        return min(1.0, busy_s / (now - begin))


# Residency: which networks an instance unloads so that another one has room (INFaaS, section 3.3).
#
# The memory of networks is bounded. Those that compute or have queries waiting stay; of the others the least recently
# used go first, and none whose going is not needed.


@dataclass(frozen=True)
class Occupant:
    """A network in memory: its bytes, when it was last used, in seconds on any one clock, and whether it must stay."""

    name: str
    size: int
    last_used: float
    busy: bool


def victims(size: int, occupants: Iterable[Occupant], bound: int) -> tuple[str, ...] | None:
    """Return the networks to unload so that one of `size` bytes fits into `bound`, in the order of their last use.

    None where it does not fit even without all that may go: then none should.
    """
    known = sorted(occupants, key=lambda occupant: (occupant.last_used, occupant.name))
    excess = sum(occupant.size for occupant in known) + size - bound
    idle = [occupant for occupant in known if not occupant.busy]
    if sum(occupant.size for occupant in idle) < excess:
        return None
    chosen: list[Occupant] = []
    for occupant in idle:
        if excess <= 0:
            break
        chosen.append(occupant)
        excess -= occupant.size
    for occupant in reversed(chosen[:]):  # a large one may have made a smaller one's going needless
        if occupant.size <= -excess:
            chosen.remove(occupant)
            excess += occupant.size
    return tuple(occupant.name for occupant in chosen)


OWN: Final = 0
"""The batch size of an instance that nobody has set: the largest of its type, and no window."""
_AWAY: Final = 0.1  # of the SLO, for the way to the instance and back


def window_s(kind: InstanceType, batch: int, slo_ms: float) -> float:
    """Return how long an instance waits for a full batch: the SLO without the batch's time (INFless, 3.2).

    A tenth of the SLO is for the way there and back, and half of the batch's time is spared, as an engine spares it
    before each deadline. A batch of 1 waits for nothing.
    """
    return max(0.0, (1 - _AWAY) * slo_ms - SPARE * kind.batch_ms(batch)) / MS_PER_S if batch > 1 else 0.0


def assign(present: Sequence[int], wanted: Sequence[int]) -> list[int]:
    """Return the batch size of each instance, in order, so that as many sizes are wanted as there are, changing few.

    `present` are their sizes now. Instances beyond those that are wanted keep theirs.
    """
    left = Counter(wanted)
    kept: list[int | None] = []
    for size in present:
        keeps = left[size] > 0
        left[size] -= keeps
        kept.append(size if keeps else None)
    missing = sorted(left.elements())  # the largest is taken first
    return [
        chosen if chosen is not None else (missing.pop() if missing else size)
        for chosen, size in zip(kept, present, strict=True)
    ]
