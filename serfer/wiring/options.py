"""A user's choices for a pipeline, and their valid combinations."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from serfer.control.windows import window_policies
from serfer.core.errors import UsageError
from serfer.core.wire import MAX_TTL
from serfer.plan_directory import COLD_DIRECTORY, load_plan
from serfer.settings import Settings
from serfer.storage import check_known, schemes

WORKERS = ("inprocess", "local", "aws")
TASK_TIMEOUT_S = 60.0
"""The time limit of a stage's function for a task."""
DRIVERS = ("push", "poll", "stepfunctions", "stepfunctions-express")


def check_keep_warm(windows: str | None, workers: str) -> None:
    """Refuse windows that there are not, and those for workers that are always warm; raises UsageError."""
    if windows is None:
        return
    if workers == "inprocess":
        raise UsageError("keep_warm pings functions; workers in this process are always warm")
    window_policies(windows)


@dataclass(frozen=True)
class Choices:
    """A store's URL (None for one that is started), workers, a driver, and how it behaves.

    `objects` is the URL of a second store, for the stages that the plan sends there; `results` that of the store of
    results, None where none are kept. `inline` says which stages' output
    rides along: those that the plan says, as many as payloads can carry, or none; `gangs`, whether the plan's run as
    such; `prewarm`, whether functions of later stages are warmed, and `cold_plan`, whether a cold plan is used, None as
    the settings say. `stack` is a deployment's. `keep_warm` are the windows by which functions are pinged, if any.
    """

    store: str | None
    workers: str
    driver: str
    objects: str | None = None
    inline: str = "planned"
    gangs: str = "planned"
    share: bool = True
    hedge: bool = True
    prewarm: str | None = None
    cold_plan: str | None = None
    cache_s: float = 0.0
    stack: str | None = None
    results: str | None = None
    keep_warm: str | None = None

    def check(self) -> None:
        """Refuse what does not exist or does not go together; raises UsageError that names both halves."""
        for name, chosen, known in (
            ("workers are", self.workers, WORKERS),
            ("the driver is", self.driver, DRIVERS),
            ("inline is", self.inline, ("planned", "always", "never")),
            ("gangs is", self.gangs, ("planned", "never")),
            ("prewarm is", self.prewarm or "auto", ("auto", "never")),
            ("cold_plan is", self.cold_plan or "auto", ("auto", "never")),
        ):
            if chosen not in known:
                raise UsageError(f"{name} {_either(known)}, not {chosen!r}")
        if not 0 <= self.cache_s <= MAX_TTL:
            raise UsageError(f"answers are kept for 0 to {MAX_TTL:.0f} seconds, not {self.cache_s:g}")
        check_keep_warm(self.keep_warm, self.workers)
        urls = {"--store": self.store, "object_store": self.objects, "--results": self.results}
        for option, url in urls.items():
            if url is not None:
                check_known(option, url)
        for option, url in urls.items():
            self._check_store(option, url)
        self._check_workers()

    def _check_workers(self) -> None:
        if self.workers == "local" and sys.platform != "linux":
            raise UsageError("--workers local, one process for each execution environment, needs Linux: use inprocess")
        if self.stack is not None and self.workers != "aws":
            raise UsageError(f"--stack names functions in AWS: use it with --workers aws, not {self.workers}")
        if self.workers == "aws" and self.store is None and self.stack is None:
            raise UsageError(
                "--workers aws needs --store, the URL of the store that the functions were deployed with, or --stack"
            )
        if self.driver.startswith("stepfunctions") and self.workers == "inprocess":
            raise UsageError(
                f"engine={self.driver} invokes functions, not workers in this process: use --workers local or aws"
            )

    def _check_store(self, option: str, url: str | None) -> None:
        own = schemes(url or "") & {"memory", "file"}  # of this process, and of this machine
        if self.workers == "local" and "memory" in own:
            raise UsageError(
                f"{option} memory:// cannot be shared with local workers (--workers local), which are processes: use "
                "redis:// or file://"
            )
        if self.workers == "aws" and own:
            raise UsageError(
                f"{option} {min(own)}:// cannot be reached by functions in AWS (--workers aws, or --stack): use s3:// "
                "or rediss://"
            )


def workers_of(workers: str | None, stack: str | None, default: str = "inprocess") -> str:
    """Return the workers that are meant where none were chosen: those of the stack, if there is one.

    Where there can be no local ones, "inprocess" takes their place.
    """
    if workers is not None:
        return workers
    here = "inprocess" if default == "local" and sys.platform != "linux" else default
    return here if stack is None else "aws"


def default_workers(directories: Iterable[Path], engine: str, settings: Settings) -> str:
    """Return the workers of plans where none were chosen: this process if all are one task and none needs others."""
    functions = engine.startswith("stepfunctions") or settings.keep_warm or settings.local_url
    cold = settings.cold_plan != "never"
    several = (load_plan(at).tasks > 1 or (cold and (at / COLD_DIRECTORY).exists()) for at in directories)
    return "local" if functions or any(several) else "inprocess"


def _either(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
