"""Constants that are put into the local Lambda service, and what `serfer study measure-aws` finds of them.

The probe of a deployment runs as it does in AWS: signed invocations, changes of memory and code and a published version
by boto3, REPORT lines. Behind them are the local Lambda service, which takes on the constants (platform_times.py), a
store of files that is slowed down, and a worker that starts fast (stand_in_worker.py).
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path

import boto3
import numpy as np
import onnx
from botocore.config import Config
from botocore.credentials import Credentials
from onnx import TensorProto, helper, numpy_helper

import serfer
from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.plan import Plan
from serfer.drivers.lambda_http import LambdaInvoker
from serfer.local.lambda_.function import REGION, FunctionConfig
from serfer.local.lambda_.runtime import runtime_directory
from serfer.local.lambda_.service import LambdaService
from serfer.pipeline.event_loop import LoopThread
from serfer.plan_directory import load_plan
from serfer.settings import Settings, load_settings
from serfer.storage import open_store
from serfer.storage.faults import wrapped_url
from serfer_bench.core.faults import Faults, Injector
from serfer_bench.core.options import MarkdownOption
from serfer_bench.core.platform_times import PlatformTimes
from serfer_bench.core.tables import Results, publish, table_of
from serfer_bench.study.aws.findings import Findings, Priced
from serfer_bench.study.aws.function_changes import ChangeableLambda
from serfer_bench.study.aws.measure import Samples
from serfer_bench.study.aws.probe import Extent, Probe
from serfer_bench.study.aws.probed_function import ProbedFunction

_SIZE, _FUNCTION, _VCPU_SPEED, _TIMEOUT_S = 34, "probed", 0.12, 120.0
_MS_PER_S = 1000
_NAMES = {
    "lambda.invoke_floor": "invoke_floor_s",
    "lambda.invoke_tail": "invoke_tail_s",
    "lambda.start_tail": "start_tail_s",
    "lambda.package_rate": "package_rate",
    "lambda.init": "init_s",
    "lambda.restore": "restore_s",
    "lambda.memory_per_vcpu": "memory_per_vcpu",
    "s3.request_latency": "request_s",
    "lambda.bandwidth": "bandwidth",
}


@dataclass(frozen=True)
class Constants:
    """Constants of a platform: seconds, bytes per second, and MB of memory for a vCPU."""

    invoke_floor_s: float
    invoke_tail_s: float
    start_tail_s: float
    package_rate: float
    init_s: float
    restore_s: float
    memory_per_vcpu: float
    request_s: float
    bandwidth: float

    @property
    def faults(self) -> Faults:
        names = {field.name for field in fields(PlatformTimes)}
        times = {name: value for name, value in asdict(self).items() if name in names}
        return Faults(latency_s=self.invoke_floor_s, times=PlatformTimes(**times, vcpu_speed=_VCPU_SPEED))


SETS = {
    "one": Constants(0.3, 0.3, 2.0, 2e6, 12.0, 3.0, 1000.0, 0.12, 8e6),
    "other": Constants(0.5, 0.4, 3.0, 1.5e6, 14.0, 3.5, 1400.0, 0.2, 5e6),
}
"""Two sets of constants, none of them SerFer's own: of a probe that finds both, no default can be what it found.

They are long beside what this machine takes itself: some 10 ms an invocation, and some 10 s to start 64 workers, which
an initialisation that takes longer hides.
"""
EXTENT = Extent(rounds=2, small=90, memories=(442, 885, 1327, 1769), packages=(12_000_000, 6_000_000, 0))
"""All groups of the kit, in fewer rounds: the draws of the local service are spread so evenly that few do."""


@dataclass(frozen=True)
class Row:
    """A constant that was put in, and what was found of it."""

    set: str
    constant: str
    put_in: float
    found: float
    samples: int

    @property
    def shown(self) -> dict[str, str]:
        return {
            "set": self.set,
            "constant": self.constant,
            "put in": f"{self.put_in:.4g}",
            "found": f"{self.found:.4g}",
            "found / put in": f"{self.found / self.put_in:.2f}",
            "samples": str(self.samples),
        }


def probed(constants: Constants, settings: Settings, extent: Extent = EXTENT, concurrency: int = 1000) -> Findings:
    with tempfile.TemporaryDirectory(prefix="serfer-constants-") as name:
        directory = Path(name)
        plan = _plan(directory)
        function, store = _function(directory, constants, plan.stages[0].memory_mb)
        with _served(function, constants.faults, settings, concurrency) as service:
            samples = asyncio.run(_samples(plan, service, function, store, extent))
        today = datetime.now(UTC).date().isoformat()
        return Findings(plan, samples, Priced(settings.facts(), "x86_64", "s3"), "local Lambda service", today)


def rows_of(name: str, constants: Constants, found: Findings) -> Iterator[Row]:
    facts = {fact.name: fact for fact in found.facts}
    for constant, key in _NAMES.items():
        fact = facts.get(constant)
        yield Row(name, constant, getattr(constants, key), fact.value if fact else 0.0, fact.samples if fact else 0)


async def _samples(plan: Plan, service: LambdaService, function: FunctionConfig, store: str, extent: Extent) -> Samples:
    access = service.access
    client = boto3.client(
        "lambda",
        endpoint_url=service.url,
        region_name=REGION,
        aws_access_key_id=access.key_id,
        aws_secret_access_key=access.secret,
        config=Config(retries={"total_max_attempts": 1}),
    )
    invoker = LambdaInvoker(service.url, REGION, Credentials(access.key_id, access.secret))
    try:
        with open_store(store) as opened:
            probed_function = ProbedFunction(client, _FUNCTION, function.directory)
            nothing = lambda *_: None  # noqa: E731 - it costs nothing here
            return await Probe(plan, invoker, opened, probed_function, service.url, nothing, nothing, extent).run()
    finally:
        client.close()
        await invoker.close()


@contextmanager
def _served(function: FunctionConfig, faults: Faults, settings: Settings, most: int) -> Iterator[LambdaService]:
    runtime = runtime_directory(settings.cache_dir / "runtime")
    facts = settings.facts().functions
    service = ChangeableLambda([function], facts=facts, runtime=runtime, conditions=Injector(faults), concurrency=most)
    loop = LoopThread()
    loop.wait(service.start())
    try:
        yield service
    finally:
        loop.wait(service.stop())
        loop.close()


def _function(directory: Path, constants: Constants, memory_mb: int) -> tuple[FunctionConfig, str]:
    code, layer = directory / "code", directory / "layer" / "python"
    code.mkdir()
    layer.mkdir(parents=True)
    worker = _origin("serfer_bench.study.aws.stand_in_worker")
    shutil.copyfile(worker, code / worker.name)
    for name in ("serfer", "msgpack"):
        (layer / name).symlink_to(_origin(name).parent)
    (directory / "store").mkdir()
    latency_ms = _MS_PER_S * constants.request_s
    inner = (directory / "store").as_uri()
    url = wrapped_url("delay", inner, put_ms=latency_ms, get_ms=latency_ms, bytes_per_s=constants.bandwidth)
    config = FunctionConfig(
        _FUNCTION,
        code,
        f"{worker.stem}.handler",
        memory_mb=memory_mb,
        timeout_s=_TIMEOUT_S,
        environment={"SERFER_STORE": url},
        layers=(layer.parent,),
    )
    return config, inner


def _origin(module: str) -> Path:
    spec = find_spec(module)
    assert spec is not None and spec.origin is not None  # noqa: S101, PT018 - our own, and what we run by
    return Path(spec.origin)


def _plan(directory: Path) -> Plan:
    weights = np.zeros((1, 3, 3, 3), np.float32)
    nodes = [
        helper.make_node("Conv", ["input", "w"], ["c"], kernel_shape=[3, 3], pads=[1] * 4),
        helper.make_node("GlobalAveragePool", ["c"], ["p"]),
        helper.make_node("Flatten", ["p"], ["logits"]),
    ]
    ends = [
        helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 3, _SIZE, _SIZE]),
        helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 1]),
    ]
    graph = helper.make_graph(nodes, "probed", ends[:1], ends[1:], [numpy_helper.from_array(weights, "w")])
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), directory / "m.onnx"
    )
    serfer.split(str(directory / "m.onnx"), out=directory / "plan", memory_mb=1327)
    return load_plan(directory / "plan")


def command(as_markdown: MarkdownOption = False, as_json: JsonOption = False) -> None:
    """Put constants into the local Lambda service, and find them by the probe of serfer study measure-aws."""
    settings, rows = load_settings(), list[Row]()
    with status_line() as progress:
        for name, constants in SETS.items():
            progress(f"probing a local Lambda service with constants of set {name}")
            rows += rows_of(name, constants, probed(constants, settings))
    publish(Results([asdict(row) for row in rows], [table_of(rows)]), as_json=as_json, as_markdown=as_markdown)
