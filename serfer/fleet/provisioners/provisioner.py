"""The contract of a provisioner: who can say which instances there are, start more of them, and stop one."""

from __future__ import annotations

from collections.abc import Sequence
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


class StaticProvisioner:
    """Servers that are managed elsewhere and always on: Triton, KServe, instances of one's own.

    Starting one is to use it, stopping one is to leave it alone; at first all are used. A member's name is its URL.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._used = dict.fromkeys(urls, True)

    async def members(self) -> list[Member]:
        return [Member(url, url, "serving") for url, used in self._used.items() if used]

    async def start(self, count: int) -> None:
        unused = [url for url, used in self._used.items() if not used]
        self._used.update(dict.fromkeys(unused[:count], True))

    async def stop(self, name: str) -> bool:
        was_used = self._used.get(name, False)
        if was_used:
            self._used[name] = False
        return was_used

    async def close(self) -> None:
        """Do nothing: the servers are managed elsewhere."""
