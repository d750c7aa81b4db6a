"""A Lambda service whose functions do nothing: every task is answered at once with a report of the right shape.

`python -m serfer_bench.core.null_service PLAN_DIRECTORY` prints its URL and serves until its standard input ends. It is
a process of its own, so that only the driver's and the client's time is measured.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serfer.core.plan import Plan
from serfer.core.wire import Task, decode_task, encode_report
from serfer.local.lambda_.http1 import Exchange, HttpServer
from serfer.plan_directory import load_plan
from serfer_bench.core.null_workers import last_stage, null_report

_MOST_BYTES = 6 << 20


class NullService:
    """Answers invocations of a plan's tasks; outputs that ride along are zeros."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._answers: dict[tuple[int, int, int, int, bool], bytes] = {}

    def handle(self, exchange: Exchange) -> None:
        task = decode_task(json.loads(exchange.body))
        if last_stage(task) == len(self._plan.stages) - 1:  # its checksum is the query's own
            exchange.reply(200, self._answer(task))
            return
        key = (task.stage, last_stage(task), task.tile, task.batch, task.inline)
        if key not in self._answers:
            self._answers[key] = self._answer(task)
        exchange.reply(200, self._answers[key])

    def _answer(self, task: Task) -> bytes:
        return json.dumps(encode_report(null_report(self._plan, task, [0.0] * len(self._plan.stages)))).encode()


@contextmanager
def null_service(directory: Path) -> Iterator[str]:
    command = [sys.executable, "-m", "serfer_bench.core.null_service", str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        if process.stdin is None or process.stdout is None:
            raise AssertionError("both are pipes")
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


async def _serve(directory: Path) -> None:
    server = HttpServer(NullService(load_plan(directory)).handle, lambda _: _MOST_BYTES)
    port = server.listen("127.0.0.1")
    sys.stdout.write(f"http://127.0.0.1:{port}\n")
    sys.stdout.flush()
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
