"""Free cores and GPU shares of a cluster's servers, grouped by what is free: placing asks groups, not servers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Final

from serfer_bench.study.policies.infless.options import Sizes
from serfer_bench.study.policies.infless.profiles import WHOLE_GPU

State = tuple[int, tuple[int, ...]]
"""Free cores, and free shares of each GPU in ascending order."""
_NOTHING: Final = 1e-6  # units: sums of floats return to about 0


@dataclass(frozen=True, slots=True)
class Placement:
    """Where an instance is: its server, the GPU (None: it has no share), and what it occupies."""

    server: int
    gpu: int | None
    cores: int
    share: int


class Servers:
    """What is free on each server, and which servers are in one state. No server is ever given more than it has.

    `active` servers have an instance; `active_units` are all their resources, `active_free_units` what is free there.
    """

    def __init__(self, capacities: Iterable[tuple[int, int]], sizes: Sizes) -> None:
        self._whole = list(capacities)
        self._cores = [cores for cores, _ in self._whole]
        self._gpus = [[WHOLE_GPU] * gpus for _, gpus in self._whole]
        self._instances = [0] * len(self._whole)
        self._by_state: dict[State, set[int]] = {}
        self._queues: dict[State, list[int]] = {}
        self._units: dict[State, float] = {}
        self._sizes = sizes
        self.active = 0
        self.active_units = self.active_free_units = 0.0
        for server in range(len(self._whole)):
            self._enter(server)

    def __len__(self) -> int:
        return len(self._whole)

    @property
    def states(self) -> Iterable[State]:
        return self._by_state

    def has(self, state: State) -> bool:
        return state in self._by_state

    def units(self, state: State) -> float:
        if (known := self._units.get(state)) is None:
            known = self._units[state] = self._sizes.units(state[0], sum(state[1]))
        return known

    @property
    def fragments(self) -> float:
        """The share of the active servers' resources that is not allocated (5.3)."""
        return self.active_free_units / self.active_units if self.active_units > _NOTHING else 0.0

    def free(self, server: int) -> tuple[int, tuple[int, ...]]:
        return self._cores[server], tuple(self._gpus[server])

    def place(self, state: State, cores: int, share: int) -> Placement:
        """Occupy resources of the first server in that state, a share on the fullest GPU that has room."""
        server = self._first(state)
        gpu = self._gpu(server, share)
        if cores > self._cores[server] or (share and gpu is None):
            raise ValueError(f"no room for {cores} cores and {share}% of a GPU beside what leaves {state}")
        made = Placement(server, gpu, cores, share)
        self._change(made, -1)
        return made

    def release(self, placement: Placement) -> None:
        self._change(placement, 1)

    def after(self, placement: Placement) -> State:
        return self._state(placement.server)

    def _first(self, state: State) -> int:
        queue, members = self._queues[state], self._by_state[state]
        while queue[0] not in members:
            heappop(queue)
        return queue[0]

    def _gpu(self, server: int, share: int) -> int | None:
        if not share:
            return None
        fits = [(free, gpu) for gpu, free in enumerate(self._gpus[server]) if free >= share]
        return min(fits)[1] if fits else None

    def _change(self, placement: Placement, sign: int) -> None:
        server = placement.server
        before = self._state(server)
        was_active = self._instances[server] > 0
        self._leave(server, before)
        self._cores[server] += sign * placement.cores
        if placement.gpu is not None:
            self._gpus[server][placement.gpu] += sign * placement.share
        self._instances[server] -= sign
        self._enter(server)
        self._count(server, before, was_active=was_active)

    def _count(self, server: int, before: State, *, was_active: bool) -> None:
        now = self._state(server)
        is_active = self._instances[server] > 0
        whole = self._sizes.units(self._whole[server][0], WHOLE_GPU * self._whole[server][1])
        self.active += is_active - was_active
        self.active_units += whole * (is_active - was_active)
        self.active_free_units += is_active * self.units(now) - was_active * self.units(before)

    def _state(self, server: int) -> State:
        return self._cores[server], tuple(sorted(self._gpus[server]))

    def _enter(self, server: int) -> None:
        state = self._state(server)
        self._by_state.setdefault(state, set()).add(server)
        heappush(self._queues.setdefault(state, []), server)

    def _leave(self, server: int, state: State) -> None:
        members = self._by_state[state]
        members.remove(server)
        if not members:
            del self._by_state[state]
            del self._queues[state]


def has_room(state: State, cores: int, share: int) -> bool:
    return cores <= state[0] and (not share or (bool(state[1]) and share <= state[1][-1]))
