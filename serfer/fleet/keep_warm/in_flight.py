"""How many queries a driver has in its functions at once."""

from __future__ import annotations

from collections.abc import Sequence

from drivers.driver import NO_CONTEXT, Answer, Driver, RequestContext
from serfer.core.wire import Crop


class InFlight:
    """Counts the queries in flight of the drivers that it is put around; on one event loop."""

    def __init__(self) -> None:
        self._now = self._most = 0

    def take(self) -> int:
        """Return the most at once since the last call."""
        most, self._most = self._most, self._now
        return most

    def counted(self, driver: Driver) -> Driver:
        """Return a driver whose queries are counted."""
        return _Counted(driver, self)

    def change(self, by: int) -> None:
        """Count queries that begin, or end."""
        self._now += by
        self._most = max(self._most, self._now)


class _Counted:
    def __init__(self, driver: Driver, count: InFlight) -> None:
        self._driver = driver
        self._count = count

    async def run(
        self, crops: Sequence[Crop], batch: int, deadline_s: float, context: RequestContext = NO_CONTEXT
    ) -> Answer:
        self._count.change(1)
        try:
            return await self._driver.run(crops, batch, deadline_s, context)
        finally:
            self._count.change(-1)

    async def close(self) -> None:
        await self._driver.close()
