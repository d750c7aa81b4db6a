"""The local Lambda service with the peers' function, as a process: what it is given as JSON is its one argument.

It serves until SIGTERM, to callers that sign as SERFER_LOCAL_ACCESS says.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

from serfer.core.errors import UsageError
from serfer.local.lambda_.function import FunctionConfig
from serfer.local.lambda_.runtime import runtime_directory
from serfer.local.lambda_.service import LambdaService
from serfer.settings import load_settings
from serfer_bench.peers.peers import APPS


async def serve(given: dict[str, Any]) -> None:
    settings, home = load_settings(), Path(given["home"])
    if (access := settings.signing_access()) is None:
        raise UsageError("set SERFER_LOCAL_ACCESS to the credentials of callers")
    (home / "layer").mkdir(exist_ok=True)
    (home / "layer" / "python").symlink_to(given["layer"], target_is_directory=True)
    function = FunctionConfig(
        "peer",
        home / "code",
        f"{APPS}.lambda_handler.handler",
        environment=given["env"],
        layers=(home / "layer",),
        image=True,
    )
    facts, runtime = settings.facts().functions, runtime_directory(settings.cache_dir / "runtime")
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    options: dict[str, Any] = {"concurrency": given["workers"], "port": given["port"], "access": access}
    async with LambdaService([function], facts=facts, runtime=runtime, **options):
        await ended.wait()


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
