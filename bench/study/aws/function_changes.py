"""A local Lambda service whose functions can be changed: UpdateFunctionConfiguration and -Code, PublishVersion.

    PUT  /2015-03-31/functions/NAME/configuration   {"MemorySize": 1024, "SnapStart": {"ApplyOn": "PublishedVersions"}}
    PUT  /2015-03-31/functions/NAME/code            {"ZipFile": "<base64>"}
    POST /2015-03-31/functions/NAME/versions        {}

As in AWS, environments of before take no further invocation, and a version keeps what the function was. A request that
would change anything else is refused.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import lzma
import shutil
import tempfile
import zipfile
import zlib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from serfer.core.errors import InputError
from serfer.local.lambda_.function import FunctionConfig, check_function, describe
from serfer.local.lambda_.service import FUNCTIONS, LambdaService, refuse, send

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable

    from serfer.core.costs.aws import LambdaFacts
    from serfer.local.lambda_.http_server import Exchange

MOST_CODE_BYTES: Final = 70_000_000
"""Bytes of a request with code: a zip of 50 MB in base64."""
_ON_VERSIONS: Final = "PublishedVersions"
_DAMAGED: Final = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError, RuntimeError, OSError)
"""What reading a zip raises: ValueError for what is not base64, RuntimeError for what is encrypted."""
_CHANGED: Final = {"configuration": {"MemorySize", "SnapStart"}, "code": {"ZipFile"}, "versions": set[str]()}
_ACTIONS: Final = {("PUT", "configuration"), ("PUT", "code"), ("POST", "versions")}


class ChangeableLambda(LambdaService):
    """A local Lambda service that lets callers change functions as AWS does."""

    def __init__(self, functions: Iterable[FunctionConfig], *, facts: LambdaFacts, **choices: Any) -> None:  # noqa: ANN401 - the service's own
        super().__init__(functions, facts=facts, **choices)
        self._changes = FunctionChanges(facts)

    async def stop(self) -> None:
        await super().stop()
        await self._changes.stop()

    def _limit(self, exchange: Exchange) -> int:
        if exchange.method == "PUT" and exchange.target.endswith("/code"):
            # Only of a caller who names the key's id: the rest are refused before their code is read.
            return 0 if self._verifier.refusal(exchange, by_head=True) else MOST_CODE_BYTES
        return super()._limit(exchange)

    def _route(self, exchange: Exchange) -> None:
        reference, _, action = exchange.target.partition("?")[0].removeprefix(f"{FUNCTIONS}/").rpartition("/")
        if (exchange.method, action) in _ACTIONS:
            self._changes.begin(self._change(exchange, reference, action))
        else:
            super()._route(exchange)

    async def _change(self, exchange: Exchange, reference: str, action: str) -> None:
        function = self._find(exchange, reference)
        if function is None:
            return
        try:
            made, size = await asyncio.to_thread(self._changes.changed, function, action, exchange.body)
        except InputError as error:
            refuse(exchange, 400, "InvalidParameterValueException", str(error))
            return
        except Exception as error:  # noqa: BLE001 - nobody waits for this task: the caller is to have an answer
            refuse(exchange, 500, "ServiceException", f"the code cannot be read: {type(error).__name__}")
            return
        self._functions[made.reference] = made
        self._sizes[made.reference] = size
        send(exchange, describe(made, size), 201 if action == "versions" else 200)


class FunctionChanges:
    """Makes the changed functions that requests describe, one after another; `stop` removes unpacked code."""

    def __init__(self, facts: LambdaFacts) -> None:
        self._facts = facts
        self._snapshots: set[str] = set()  # functions whose versions are started from snapshots
        self._published: Counter[str] = Counter()
        self._directories: list[Path] = []
        self._one = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    def begin(self, change: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(self._alone(change))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _alone(self, change: Coroutine[Any, Any, None]) -> None:
        async with self._one:
            await change

    def changed(self, function: FunctionConfig, action: str, body: bytes) -> tuple[FunctionConfig, int]:
        """Return the function, or version, that "configuration", "code" or "versions" makes, and its package's bytes.

        It blocks while code is unpacked.
        """
        given = _members(body, _CHANGED[action])
        if action == "versions":
            self._published[function.name] += 1
            number, restored = str(self._published[function.name]), function.name in self._snapshots
            made = replace(function, version=number, restored=restored)
        elif action == "code":
            made = replace(function, directory=self._unpacked(given.get("ZipFile")))
        else:
            made = replace(function, memory_mb=_memory(given.get("MemorySize", function.memory_mb)))
            if "SnapStart" in given:
                self._apply_snapstart(function.name, given["SnapStart"])
        return made, check_function(made, self._facts)

    async def stop(self) -> None:
        if self._tasks:
            await asyncio.wait([*self._tasks])
        for directory in self._directories:
            shutil.rmtree(directory, ignore_errors=True)

    def _apply_snapstart(self, name: str, given: Any) -> None:  # noqa: ANN401 - plain JSON
        match given:
            case {"ApplyOn": "PublishedVersions"}:
                self._snapshots.add(name)
            case {"ApplyOn": "None"}:
                self._snapshots.discard(name)
            case _:
                raise InputError(f"SnapStart is {{'ApplyOn': 'None'}} or {{'ApplyOn': '{_ON_VERSIONS}'}}")

    def _unpacked(self, given: Any) -> Path:  # noqa: ANN401 - plain JSON
        if not isinstance(given, str):
            raise InputError("ZipFile is a zip in base64")
        try:
            archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(given, validate=True)))
            size = sum(entry.file_size for entry in archive.infolist())
            if size > self._facts.package_limit:
                raise InputError(
                    f"ZipFile has {size:,} bytes unzipped, Lambda's limit is {self._facts.package_limit:,}"
                )
            directory = Path(tempfile.mkdtemp(prefix="serfer-function-"))
            self._directories.append(directory)
            archive.extractall(directory)
        except _DAMAGED as error:
            raise InputError(f"ZipFile cannot be unpacked: {error}") from error
        return directory


def _members(body: bytes, known: set[str]) -> dict[str, Any]:
    try:
        given = json.loads(body or b"{}")
    except (ValueError, RecursionError) as error:
        raise InputError("the request is not JSON") from error
    if not isinstance(given, dict):
        raise InputError("the request is not a JSON object")
    if unknown := sorted(given.keys() - known):
        raise InputError(f"the local Lambda service does not change {', '.join(map(str, unknown)):.200}")
    return given


def _memory(given: Any) -> int:  # noqa: ANN401 - plain JSON
    if type(given) is not int:
        raise InputError("MemorySize is a whole number of MB")
    return given
