"""What a user chooses for a pipeline, and which of it goes together."""

from __future__ import annotations

from dataclasses import dataclass

from serfer.core.errors import UsageError
from serfer.core.wire import MAX_TTL

WORKERS = ("inprocess", "local", "aws")
DRIVERS = ("push", "poll", "stepfunctions", "stepfunctions-express")


@dataclass(frozen=True)
class Choices:
    """A store's URL (None for one that is started), workers, a driver, and how it behaves."""

    store: str | None
    workers: str
    driver: str
    share: bool = True
    hedge: bool = True
    cache_s: float = 0.0

    def check(self) -> None:
        """Refuse what does not exist or does not go together; raises UsageError that names both halves."""
        if self.workers not in WORKERS:
            raise UsageError(f"workers are {_either(WORKERS)}, not {self.workers!r}")
        if self.driver not in DRIVERS:
            raise UsageError(f"the driver is {_either(DRIVERS)}, not {self.driver!r}")
        if not 0 <= self.cache_s <= MAX_TTL:
            raise UsageError(f"answers are kept for 0 to {MAX_TTL:.0f} seconds, not {self.cache_s:g}")
        self._check_store()
        if self.driver.startswith("stepfunctions") and self.workers == "inprocess":
            raise UsageError(
                f"--driver {self.driver} invokes functions, not workers in this process: use --workers local or aws"
            )

    def _check_store(self) -> None:
        scheme = (self.store or "").partition(":")[0]
        if self.workers == "local" and scheme == "memory":
            raise UsageError(
                "memory:// cannot be shared with local workers, which are processes: use redis:// or file://"
            )
        if self.workers == "aws" and scheme in {"memory", "file"}:
            raise UsageError(f"{scheme}:// cannot be reached by functions in AWS: use s3:// or rediss://")
        if self.workers == "aws" and self.store is None:
            raise UsageError("--workers aws needs --store: the URL of the store that the functions were deployed with")


def _either(names: tuple[str, ...]) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"
