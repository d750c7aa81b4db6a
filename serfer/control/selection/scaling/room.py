"""Room at instances: what is needed there stays, anything else may go for another variant (INFaaS, 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from serfer.control.selection.scaling.fleet_records import InstanceSeen, Key


class Room:
    """Counts what is needed at each instance, and finds where there is room for more."""

    def __init__(self, instances: Sequence[InstanceSeen]) -> None:
        self._instances = instances
        self._needed: dict[str, set[Key]] = {instance.name: set() for instance in instances}

    def need(self, instance: InstanceSeen, key: Key) -> None:
        self._needed[instance.name].add(key)

    def release(self, instance: InstanceSeen, key: Key) -> None:
        self._needed[instance.name].discard(key)

    def is_needed(self, instance: InstanceSeen, key: Key) -> bool:
        return key in self._needed[instance.name]

    def needed(self, instance: InstanceSeen) -> int:
        return len(self._needed[instance.name])

    def used_mb(self, instance: InstanceSeen) -> float:
        return sum(instance.copies[key].size_mb for key in self._needed[instance.name])

    def fits(self, instance: InstanceSeen, key: Key) -> bool:
        """Whether an instance has a variant and room for it beside what is needed, and it was not in vain lately."""
        if key not in instance.copies or key in instance.blocked:
            return False
        if self.is_needed(instance, key) or instance.memory_mb is None:
            return True
        return self.used_mb(instance) + instance.copies[key].size_mb <= instance.memory_mb

    def best(self, key: Key, pool: str, allowed: Callable[[InstanceSeen], bool]) -> InstanceSeen | None:
        """Return the least used serving instance of a pool that has room, the oldest of equals; None without one."""
        free = [
            instance
            for instance in self._instances
            if instance.serves
            and instance.pool == pool
            and allowed(instance)
            and not self.is_needed(instance, key)
            and self.fits(instance, key)
        ]
        return min(free, key=lambda instance: (round(instance.utilisation, 1), self.needed(instance)), default=None)
