"""Which waiting queries an instance computes next, when, and which it refuses: pure decisions about one queue.

    arrives ──▶ promise: answered in time behind those that are due before it?   no ──▶ refused at once
                  │ yes
                  ▼
                waits ──▶ choose, whenever the engine is free ──▶ a batch, by deadlines ──▶ computed
                            └──▶ who can no longer be answered in time is refused before it costs anything

MArk's batch manager waits until N queries are there or a window W has passed, even where the engine has nothing to do.
With a window of 0, the default, a free engine starts at once with what there is, and those that come meanwhile are the
next batch: where load is light nobody waits for company, and where it is heavy batches fill up all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serfer.control.batching import MS_PER_S, Profile

_LEARNS = 0.2  # how much of what was thought of the speed gives way to each observation
_OUTLIER = 3.0  # a batch that took that many times what was predicted counts as one that took so many times
_SPARE = 1.5  # times a batch's time is left to its first deadline, at least, when it stops waiting for more


@dataclass(frozen=True)
class Batching:
    """At most `most` images at once; a free engine waits `window_s` for that many, counted from the oldest query."""

    most: int
    window_s: float = 0.0


@dataclass(frozen=True)
class Waiting:
    """A query in the queue, in seconds on one clock; more `images` than fit into a batch are computed in several.

    `trial`: it came when nothing else was there, and is computed even if it is predicted to be late. Only trying shows
    whether a prediction still holds.
    """

    arrived: float
    images: int
    deadline: float
    trial: bool = False


@dataclass(frozen=True)
class Step:
    """What a free engine does: compute `batch` now, refuse `late`, and with no batch look again at `look_at`.

    Both are indices into the queue. With neither a batch nor a time there is nothing to do until a query comes.
    """

    batch: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    look_at: float | None = None


class Pace:
    """Predicts what batches take: as in a profile, times how much slower or faster the machine was lately."""

    def __init__(self, profile: Profile, most: int) -> None:
        self._profile = profile
        self._most = most
        self._scale = 1.0

    def seconds(self, images: int) -> float:
        """Return how long so many images take: in full batches, and one more for those that are left over."""
        full, rest = divmod(images, self._most)
        ms = full * self._profile.batch_ms(self._most) + (self._profile.batch_ms(rest) if rest else 0.0)
        return ms * self._scale / MS_PER_S

    def learn(self, images: int, seconds: float) -> None:
        """Take note of how long a batch took."""
        ratio = min(max(seconds / self.seconds(images), 1 / _OUTLIER), _OUTLIER)
        self._scale *= 1 + _LEARNS * (ratio - 1)

    def steady(self, seconds: float) -> int:
        """Return the largest batch of which two, one after the other, fit into so many seconds; at least 1."""
        low, high = 1, self._most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if 2 * self.seconds(middle) <= seconds else (low, middle - 1)
        return low


def promise(query: Waiting, ahead: int, free_at: float, now: float, pace: Pace) -> float:
    """Predict by how many seconds a query will be late: more than 0, and it should be refused at once.

    `ahead` are the images that are due before it, `free_at` is when the engine is done with what it computes. Batches
    count as large as those that can follow each other within the query's time: so its own may fill up, and it is still
    in time. Those that are due after it may be pushed back.
    """
    size = pace.steady(query.deadline - now)
    before = ahead // size * pace.seconds(size)
    own = max(pace.seconds(size), pace.seconds(query.images))
    return max(now, free_at) + before + own - query.deadline


def choose(queue: Sequence[Waiting], now: float, batching: Batching, pace: Pace) -> Step:
    """Decide what an engine that is free does now: those whose deadlines come first go first."""
    late = tuple(number for number, query in enumerate(queue) if _is_late(query, now, pace))
    left = sorted(set(range(len(queue))) - set(late), key=lambda number: (queue[number].deadline, number))
    if not left:
        return Step(late=late)
    batch, images = _gathered(queue, left, now, batching.most, pace)
    if len(batch) == len(left) and images < batching.most:
        oldest = min(queue[number].arrived for number in left)
        look_at = min(oldest + batching.window_s, queue[left[0]].deadline - _SPARE * pace.seconds(images))
        if look_at > now:
            return Step(late=late, look_at=look_at)
    return Step(batch, late)


def _is_late(query: Waiting, now: float, pace: Pace) -> bool:
    return now >= query.deadline or (not query.trial and now + pace.seconds(query.images) > query.deadline)


def _gathered(
    queue: Sequence[Waiting], order: Sequence[int], now: float, most: int, pace: Pace
) -> tuple[tuple[int, ...], int]:
    """Return the queries that run together, and their images: never so many that the first one would be late."""
    first = queue[order[0]]
    batch, images = [order[0]], first.images
    for number in order[1:]:
        together = images + queue[number].images
        if together > most:
            continue  # a smaller one may still fit
        if now + pace.seconds(together) > first.deadline:
            break
        batch.append(number)
        images = together
    return tuple(batch), images
