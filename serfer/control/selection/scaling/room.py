"""Room at instances: what is needed there stays, anything else may go for another variant (INFaaS, 3.3)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from serfer.control.selection.scaling.fleet_records import InstanceSeen, Key


class Room:
    """Counts what is needed at each instance, and finds where there is room for more."""

    def __init__(self, instances: Sequence[InstanceSeen]) -> None:
        self._instances = instances
        self._needed: dict[str, set[Key]] = {instance.name: set() for instance in instances}

    def need(self, one: InstanceSeen, key: Key) -> None:
        """Count a variant as needed at an instance."""
        self._needed[one.name].add(key)

    def release(self, one: InstanceSeen, key: Key) -> None:
        """Count it as needed no more."""
        self._needed[one.name].discard(key)

    def is_needed(self, one: InstanceSeen, key: Key) -> bool:
        return key in self._needed[one.name]

    def needed(self, one: InstanceSeen) -> int:
        return len(self._needed[one.name])

    def used_mb(self, one: InstanceSeen) -> float:
        """Return the megabytes of what is needed at an instance."""
        return sum(one.copies[key].size_mb for key in self._needed[one.name])

    def fits(self, one: InstanceSeen, key: Key) -> bool:
        """Whether an instance has a variant and room for it beside what is needed, and it was not in vain lately."""
        if key not in one.copies or key in one.blocked:
            return False
        if self.is_needed(one, key) or one.memory_mb is None:
            return True
        return self.used_mb(one) + one.copies[key].size_mb <= one.memory_mb

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
        return min(free, key=lambda one: (round(one.utilisation, 1), self.needed(one)), default=None)
