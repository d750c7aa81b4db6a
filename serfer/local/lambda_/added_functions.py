"""Functions that are added while the service runs: POST /serfer/plans names a plan directory of this machine.

    {"directory": "/path/of/a/plan"}     200 {"functions": [...]} once they can be invoked; 400 with the reason

A caller that may invoke functions may add some: both run code with the rights of the one who started the service.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from serfer.core.errors import SerferError
from serfer.local.lambda_.function import FunctionConfig, check_function

if TYPE_CHECKING:
    from serfer.core.costs.aws import LambdaFacts
    from serfer.local.lambda_.http_server import Exchange

PLANS: Final = "/serfer/plans"
_MOST_BYTES: Final = 8192
_JSON: Final = {"Content-Type": "application/json"}
Provide = Callable[[Path], Sequence[FunctionConfig]]
"""Makes the functions of a plan directory; blocks, and raises SerferError."""


class Additions:
    """Makes functions in threads, one plan at a time, and gives each with its size to `take`, on the running loop."""

    def __init__(self, provide: Provide, facts: LambdaFacts, take: Callable[[FunctionConfig, int], None]) -> None:
        self._provide = provide
        self._facts = facts
        self._take = take
        self._one = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, exchange: Exchange) -> None:
        """Add the functions of the plan directory that a request names, and answer when they are there."""
        task = asyncio.create_task(self._answer(exchange))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks])

    async def _answer(self, exchange: Exchange) -> None:
        try:
            directory = _directory(exchange.body)
            async with self._one:
                made = await asyncio.to_thread(self._made, directory)
        except (SerferError, ValueError, OSError) as error:
            exchange.reply(400, json.dumps({"Message": str(error)[:1000]}).encode(), _JSON)
            return
        for function, size in made:
            self._take(function, size)
        exchange.reply(200, json.dumps({"functions": [function.name for function, _ in made]}).encode(), _JSON)

    def _made(self, directory: Path) -> list[tuple[FunctionConfig, int]]:
        return [(function, check_function(function, self._facts)) for function in self._provide(directory)]


def _directory(body: bytes) -> Path:
    if len(body) > _MOST_BYTES:
        raise ValueError(f"more than {_MOST_BYTES:,} bytes to name a directory")
    try:
        named = json.loads(body)
    except RecursionError:
        named = None
    directory = named.get("directory") if isinstance(named, dict) else None
    if not isinstance(directory, str) or "\0" in directory or not Path(directory).is_absolute():
        raise ValueError('give {"directory": "/the/absolute/path/of/a/plan"}')
    return Path(directory)
