"""SerFer as published, and repaired, as a running system: poll drivers, Redis, functions invoked as events.

A process takes one query at a time, as its authors' driver does. Drivers are processes and not threads because a poll
driver never waits: threads would take the interpreter from each other, and from the Lambda service in this process.
They are started beforehand, which the authors' are not: no query pays for that.
"""

from __future__ import annotations

from pathlib import Path
from queue import SimpleQueue

from serfer.core.keys import StoreCounts
from serfer.core.plan import Plan
from serfer.local.lambda_.function import FunctionConfig
from serfer.settings import Settings
from serfer_bench.core.part_times import PartTimes, Times
from serfer_bench.core.system import Logits, Pixels
from serfer_bench.study.baselines.deployment import TIMEOUT_S, Baseline, package
from serfer_bench.study.papers.serfer.driver_process import Configuration, DriverProcess
from serfer_bench.study.papers.serfer.poll_driver import Mechanics


class SerFerPaper(Baseline):
    """A baseline with one driver process for each of `in_flight` queries."""

    def __init__(self, directory: Path, settings: Settings, mechanics: Mechanics, in_flight: int | None = None) -> None:
        self.name, self._mechanics = mechanics.name, mechanics
        self._drivers: list[DriverProcess] = []
        self._idle: SimpleQueue[DriverProcess] = SimpleQueue()
        super().__init__(directory, settings, in_flight)

    def _tasks_at_once(self) -> int:
        return max(stage.grid.tiles for stage in self.plan.stages)

    def _start(self, directory: Path, settings: Settings) -> None:
        self.store_url = self._stack.start_redis()
        functions = _functions(self.plan, directory, self._mechanics, self.store_url, settings)
        endpoint, access = self._stack.start_service(functions), self._stack.access
        where = (str(directory), self.store_url, endpoint, access.key_id, access.secret)
        configuration = Configuration(*where, self._mechanics.contiguous)
        for _ in range(self.in_flight):
            self._drivers.append(self._stack.run(DriverProcess))
        for driver in self._drivers:
            driver.configure(configuration)
            self._idle.put(driver)

    def counts(self) -> StoreCounts:
        return sum((driver.counts for driver in self._drivers), StoreCounts())

    def take_times(self) -> Times:
        times = PartTimes()
        for driver in self._drivers:
            for part, values in driver.take_times().items():
                times.add(part, values)
        return times.take()

    def close(self) -> None:
        self._queries.shutdown(wait=False, cancel_futures=True)
        for driver in self._drivers:
            driver.kill()
        self._queries.shutdown()
        for driver in self._drivers:
            driver.close()
        self._stack.close()

    def _run(self, pixels: Pixels) -> Logits:
        driver = self._idle.get()
        try:
            return driver.ask(pixels)
        finally:
            self._idle.put(driver)


def _functions(
    plan: Plan, directory: Path, mechanics: Mechanics, store_url: str, settings: Settings
) -> list[FunctionConfig]:
    environment = {"SERFER_STORE": store_url}
    return [
        FunctionConfig(
            name=plan.function(*part),
            directory=package(plan, directory, [part], settings.cache_dir),
            handler=f"serfer_bench.study.baselines.handlers.serfer_bootstrap.{mechanics.handler}",
            memory_mb=plan.stages[part[0]].memory_mb,
            timeout_s=TIMEOUT_S,
            environment=environment,
        )
        for part in plan.functions
    ]
