"""The one cost model: how long a task takes and what it costs; planner, reports and `serfer cost` all call it.

Compute time is a roofline: whichever is slower, the arithmetic or moving weights and activations through memory. Its
two ceilings were measured with ONNX Runtime on one thread of the development machine (AlexNet, VGG16, ResNet50 and
EfficientNet-Lite0 within about 30%); that one Lambda vCPU is as fast is an assumption.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from serfer.core.aws import LambdaFacts

FLOAT_BYTES = 4
DISPATCH_SECONDS = 2.8e-4
"""A driver's processor time to sign and send one invocation, as measured on the development machine."""
_MB_PER_GB = 1024
_MS_PER_S = 1000


@dataclass(frozen=True)
class Roofline:
    """What one vCPU reaches: multiply-accumulates per second and bytes of memory per second."""

    macs_per_s: float = 1e11
    bytes_per_s: float = 3e10


def operator_seconds(macs: int, touched_bytes: int, roofline: Roofline) -> float:
    """Predict an operator's time on one vCPU: whichever is slower, its arithmetic or the memory it touches."""
    return max(macs / roofline.macs_per_s, touched_bytes / roofline.bytes_per_s)


def task_seconds(compute_s: float, moved_bytes: int, memory_mb: int, facts: LambdaFacts) -> float:
    """Predict a warm task's time: invoke, transfers at the function's bandwidth, compute.

    `compute_s` is the time on one vCPU. A function with less memory than one vCPU's gets that share of it; one with
    more gains nothing here, because a tile runs on one thread.
    """
    share = min(1.0, memory_mb / facts.memory_per_vcpu)
    return facts.invoke_latency + moved_bytes / facts.bandwidth + compute_s / share


def stage_seconds(slowest_task_s: float, tasks: int) -> float:
    """Predict a stage's time: the driver sends its tasks one after the other, then waits for the slowest."""
    return tasks * DISPATCH_SECONDS + slowest_task_s


def invocation_usd(memory_mb: int, milliseconds: float, facts: LambdaFacts) -> float:
    """Price one invocation in dollars: the request plus memory times duration, rounded up to the millisecond."""
    gb_seconds = memory_mb / _MB_PER_GB * math.ceil(milliseconds) / _MS_PER_S
    return facts.price_request + gb_seconds * facts.price_gb_second
