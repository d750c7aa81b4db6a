"""A pool of addresses that are managed elsewhere: Triton, KServe, instances of one's own."""

from __future__ import annotations

from collections.abc import Sequence

from serfer.fleet.provisioners.provisioner import Member


class StaticProvisioner:
    """Servers that are always on: starting one is to use it, stopping one is to leave it alone; at first all are used.

    A member's name is its URL.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._used = dict.fromkeys(urls, True)

    async def members(self) -> list[Member]:
        """Return the servers that are used, in the order given."""
        return [Member(url, url, "serving") for url, used in self._used.items() if used]

    async def start(self, count: int) -> None:
        """Use `count` more servers, or all that there are."""
        unused = [url for url, used in self._used.items() if not used]
        self._used.update(dict.fromkeys(unused[:count], True))

    async def stop(self, name: str) -> bool:
        """Use a server no more."""
        was_used = self._used.get(name, False)
        if was_used:
            self._used[name] = False
        return was_used

    async def close(self) -> None:
        """Do nothing: the servers are managed elsewhere."""
