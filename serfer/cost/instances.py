"""A scenario with an instance type whose speed is predicted."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from serfer.control.scenario import InstanceType, LambdaTarget, Scenario
from serfer.core.costs.aws import AwsFacts
from serfer.core.costs.cost_model import TASK_SECONDS, plan_load
from serfer.core.costs.vcpus import compute_seconds
from serfer.core.errors import UsageError
from serfer.core.plan import Plan
from serfer.core.units import MS_PER_S

_LAUNCH_MS: Final = 5.0  # of a batch on a GPU besides its images, assumed
_BATCHES: Final = (1, 4, 16)
_LOADED: Final = 0.9  # the share of what an instance sustains that counts
_SLO_MS: Final = 1000.0
_SLO_TIMES: Final = 4.0


def predicted_instance(whole: Plan, name: str, facts: AwsFacts, slo_ms: float | None = None) -> Scenario:
    """Return a scenario with an instance type that computes a network whole, as fast as is predicted.

    On vCPUs that is image by image, by the operator profiles; a GPU takes batches, and is so many vCPUs. `slo_ms` is
    by default a second, or four times what an image takes. Raises UsageError for a type whose speed or price is not
    known, and for an SLO that one image after another misses.
    """
    if name not in facts.instances or name not in (*facts.vcpus, *facts.gpu_vcpus):
        known = ", ".join((*facts.vcpus, *facts.gpu_vcpus))
        raise UsageError(
            f"the speed of {name} is not predicted, only that of {known}: measure it there with serfer study tune, and "
            "give --scenario FILE.toml"
        )
    load = plan_load(whole, 0)
    batches = predicted_batches(float(load.serial_s[0]), float(load.parallel_s[0]), name, facts)
    image_ms = batches[0][1]
    slo_ms = max(_SLO_MS, _SLO_TIMES * image_ms) if slo_ms is None else slo_ms
    if 2 * image_ms > slo_ms:
        raise UsageError(f"--slo-ms {slo_ms:g} has no room for two images, {image_ms:.0f} ms each on {name}: give more")
    services = facts.services
    kind = InstanceType(
        name=name,
        usd_per_hour=facts.instances[name],
        spot_usd_per_hour=0.0,
        boot_s=services.instance_boot,
        min_billing_s=services.instance_least,
        qps=1.0,
        batches=batches,
    )
    kind = replace(kind, qps=_LOADED * kind.sustained_qps(slo_ms))
    return Scenario(slo_ms, LambdaTarget(1.0, 1.0, 0.0, 1, 1.0, 0.0), (kind,))  # Lambda is what functions say


def predicted_batches(serial_s: float, parallel_s: float, name: str, facts: AwsFacts) -> tuple[tuple[int, float], ...]:
    """Return (images, milliseconds) by size of a batch on an instance type whose vCPUs are known, or its GPU's worth.

    Seconds are those of an image on one vCPU, what more of them do not speed up and what they do.
    """
    if name in facts.vcpus:
        return ((1, MS_PER_S * (TASK_SECONDS + float(compute_seconds(serial_s, parallel_s, facts.vcpus[name])))),)
    return gpu_batches(serial_s + parallel_s, facts.gpu_vcpus[name])


def gpu_batches(image_s: float, vcpus: float) -> tuple[tuple[int, float], ...]:
    """Return the same of a GPU that is worth so many vCPUs, for an image that takes one of them `image_s` seconds."""
    return tuple((images, _LAUNCH_MS + images * MS_PER_S * image_s / vcpus) for images in _BATCHES)
