"""The contract of a provisioner: who can say which instances there are, start more of them, and stop one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

State = Literal["booting", "serving", "draining"]


@dataclass(frozen=True)
class Member:
    """An instance that exists, no matter what started it; `name` is never given to another one.

    `url` is where it serves, None while that isn't known. "serving" says that it was started, not that it answers:
    its clients check that over HTTP.
    """

    name: str
    url: str | None
    state: State


class Provisioner(Protocol):
    """Starts and stops the instances of a pool.

    What it knows lies outside of it, with the instances: another one that is opened later, by another process, goes on
    with what it finds. Its methods raise UnavailableError where that place does not respond.
    """

    async def members(self) -> list[Member]:
        """Return every instance that costs something, those that are on their way or end included, by name."""
        ...

    async def start(self, count: int) -> None:
        """Ask for `count` more instances: counted by `members` at once, there later; fewer where no more may be."""
        ...

    async def stop(self, name: str) -> bool:
        """End an instance that gets no queries any more; return whether its end was requested by this call.

        False: it does not exist, ends already, or has to stay. None of these is an error.
        """
        ...

    async def close(self) -> None:
        """Detach from the pool; its instances go on serving."""
        ...
