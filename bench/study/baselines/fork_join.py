"""Gillis's execution (Yu et al., ICDCS 2021): a master function forks and joins workers, payloads carry activations.

    client ─▶ master ─┬─▶ worker: part 1 ─┬─▶ master ─▶ the next group ─▶ ... ─▶ client
                      ├─▶ worker: part 2 ─┤
                      └── part 0, here ───┘

Groups and parts are the stages and tiles of a plan of ours. Two choices are in its favour: an image's parts travel as
bytes, and its codec is the standard library's, not the 25 MB/s of its authors'.
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from serfer.core.costs.sessions import WORKER_MB
from serfer.core.errors import TaskFailedError
from serfer.core.keys import StoreCounts
from serfer.core.plan import Plan, explained
from serfer.core.sigv4 import Access
from serfer.local.lambda_.function import REGION, FunctionConfig
from serfer.settings import Settings
from serfer_bench.core.system import Logits, Pixels
from serfer_bench.study.baselines.deployment import TIMEOUT_S, Baseline, package
from serfer_bench.study.baselines.handlers.payload import from_json, to_json

_MB = 1 << 20
_WEIGHT_COPIES = 2  # of each weight in memory: as in gillis.py
_MARGIN_S = 5.0


def held_groups(plan: Plan, master_mb: int) -> list[tuple[int, int]]:
    """Return the (stage, function) of the groups whose part 0 a master of so much memory computes itself.

    A group's weights are taken, the first groups' first, while package and memory have room for them.
    """
    room = min(explained(plan.limit).room, (master_mb - WORKER_MB) * _MB // _WEIGHT_COPIES)
    held = []
    for number, stage in enumerate(plan.stages):
        part = stage.tiles[0].function
        if stage.functions[part].bytes <= room:
            room -= stage.functions[part].bytes
            held.append((number, part))
    return held


class ForkJoin(Baseline):
    """A baseline whose threads have the master answer queries; it has the memory of the plan's largest function."""

    name = "gillis"

    def __init__(self, directory: Path, settings: Settings, in_flight: int | None = None) -> None:
        self.payload_bytes, self._lock = 0, threading.Lock()
        super().__init__(directory, settings, in_flight)

    def _tasks_at_once(self) -> int:
        self._memory_mb = max(stage.memory_mb for stage in self.plan.stages)
        self.held = held_groups(self.plan, self._memory_mb)
        held = {number for number, _ in self.held}
        return 1 + max(stage.grid.tiles - (number in held) for number, stage in enumerate(self.plan.stages))

    def _start(self, directory: Path, settings: Settings) -> None:
        self._endpoint = self._stack.start_service(self._functions(directory, settings))
        self._lambda = _client(self._endpoint, self._stack.access, self.in_flight)

    def counts(self) -> StoreCounts:
        return StoreCounts()

    def close(self) -> None:
        self._queries.shutdown(wait=False, cancel_futures=True)
        self._stack.close()
        self._queries.shutdown()

    @property
    def _master(self) -> str:
        return f"gillis-master-{self.plan.digest[:12]}"

    def _run(self, pixels: Pixels) -> Logits:
        payload = json.dumps({"endpoint": self._endpoint, "pixels": to_json(pixels)}).encode()
        response = self._lambda.invoke(FunctionName=self._master, Payload=payload)
        answer = json.loads(response["Payload"].read())
        if "FunctionError" in response:
            raise TaskFailedError(f"{self._master}: {answer.get('errorMessage', 'no message')}")
        with self._lock:
            self.payload_bytes += answer["carried"]
        return from_json(answer["logits"])

    def _functions(self, directory: Path, settings: Settings) -> list[FunctionConfig]:
        access = self._stack.access
        # As AWS gives a function its role's. Workers need none, but then the two kinds share one environment.
        variables = {"AWS_ACCESS_KEY_ID": access.key_id, "AWS_SECRET_ACCESS_KEY": access.secret}

        def function(name: str, handler: str, memory_mb: int, parts: list[tuple[int, int]]) -> FunctionConfig:
            return FunctionConfig(
                name=name,
                directory=package(self.plan, directory, parts, settings.cache_dir),
                handler=f"serfer_bench.study.baselines.handlers.gillis_bootstrap.{handler}",
                memory_mb=memory_mb,
                timeout_s=TIMEOUT_S,
                environment=variables,
            )

        stages = self.plan.stages
        alone = {part for part in self.held if stages[part[0]].grid.tiles == 1}
        workers = [part for part in self.plan.functions if part not in alone]
        return [
            function(self._master, "master", self._memory_mb, self.held),
            *(function(self.plan.function(*part), "worker", stages[part[0]].memory_mb, [part]) for part in workers),
        ]


def _client(endpoint: str, access: Access, connections: int) -> Any:  # noqa: ANN401 - boto3 makes its clients' classes when asked
    return boto3.client(
        "lambda",
        endpoint_url=endpoint,
        region_name=REGION,
        aws_access_key_id=access.key_id,
        aws_secret_access_key=access.secret,
        config=Config(
            max_pool_connections=connections, read_timeout=TIMEOUT_S + _MARGIN_S, retries={"total_max_attempts": 1}
        ),
    )
