"""Two stores as one: what a plan sends to the object store is there, everything else in the main store.

serfer:QUERY:2:0       what a tile of stage 2 wrote, where that stage's path is "objects"     the object store
every other key        crops, replies, what the tiles of all other stages wrote               the main store
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from serfer.core.errors import MissingKeyError
from serfer.core.keys import stage_of
from serfer.core.plan import OBJECTS, Plan
from serfer.storage import open_store
from serfer.storage.store import Bytes, Range, Store, check_keys, check_ranges
from serfer.storage.wrapping import WrapperStore

_Item = TypeVar("_Item")
_Answer = TypeVar("_Answer")


class RoutedStore(WrapperStore):
    """Keeps what lies under the keys that `apart` chooses in `objects`, all else in `main`; closing it closes both.

    What concerns both is sent to both at once; where both fail, main's error is raised. Drivers coordinate in main,
    and the inboxes are main's: `apart` must not choose an inbox, or `delete` does not find it.
    """

    def __init__(self, main: Store, objects: Store, apart: Callable[[str], bool]) -> None:
        super().__init__(main)
        self._objects = objects
        self._apart = apart

    def put(self, key: str, value: Bytes, ttl: float) -> None:
        self._of(key).put(key, value, ttl)

    def link(self, key: str, lifetime_s: int) -> str | None:
        return self._of(key).link(key, lifetime_s)

    def get_many(self, ranges: Sequence[Range]) -> list[bytes]:
        """Get from both at once; where both lack something, the first of all that is missing is named."""
        check_ranges(ranges)
        sides = [self._apart(span.key) for span in ranges]
        try:
            return self._ask(sides, ranges, lambda store, some: store.get_many(some))
        except MissingKeyError:
            if len(set(sides)) == 1:
                raise
            return [self._of(span.key).get_many([span])[0] for span in ranges]

    def exists(self, keys: Sequence[str]) -> list[bool]:
        check_keys(keys)
        return self._ask([self._apart(key) for key in keys], keys, lambda store, some: store.exists(some))

    def delete(self, keys: Sequence[str]) -> None:
        """Delete from both at once: what one holds goes even where the other fails."""
        check_keys(keys)

        def delete(store: Store, some: Sequence[str]) -> list[None]:
            store.delete(some)
            return [None] * len(some)

        self._ask([self._apart(key) for key in keys], keys, delete)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._objects.close()

    def _of(self, key: str) -> Store:
        return self._objects if self._apart(key) else self._inner

    def _ask(
        self, sides: Sequence[bool], items: Sequence[_Item], ask: Callable[[Store, Sequence[_Item]], list[_Answer]]
    ) -> list[_Answer]:
        if len(set(sides)) <= 1:
            return ask(self._objects if any(sides) else self._inner, items)
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  workers have one store, mostly

        with ThreadPoolExecutor(1) as thread:
            far = thread.submit(ask, self._objects, [item for item, side in zip(items, sides, strict=True) if side])
            near = iter(ask(self._inner, [item for item, side in zip(items, sides, strict=True) if not side]))
            apart = iter(far.result())
        return [next(apart if side else near) for side in sides]


def routed(plan: Plan, store: Store, objects: Store | None) -> Store:
    """Return one store for a plan's queries; `store` itself where there is no other, or the plan has no use for it.

    Workers and drivers must agree on both, or they do not find what the others wrote.
    """
    apart = _stages_apart(plan)
    if objects is None or not apart:
        return store
    return RoutedStore(store, objects, lambda key: stage_of(key) in apart)


def open_routed(plan: Plan, url: str, objects: str | None) -> Store:
    """Open a plan's store, and the object store beside it where the plan has a use for one; raises as `open_store`."""
    store = open_store(url)
    try:
        return routed(plan, store, open_store(objects) if objects and _stages_apart(plan) else None)
    except BaseException:
        store.close()
        raise


def _stages_apart(plan: Plan) -> frozenset[int]:
    return frozenset(number for number, stage in enumerate(plan.stages) if stage.path == OBJECTS)
