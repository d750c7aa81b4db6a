"""What a template has for the GPU pools: what they share, and one pool for each plan, which is called by its digest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sam.names import digest12, pool_name, weights_id
from sam.options import GpuPool, Options
from sam.template import fragments
from sam.template.fragments import Part
from serfer.core.plan import Plan

SCENARIO = "scenario.toml"
"""What drivers read of a plan's pool, beside its plan.json (sam/cost/scenario.py)."""


def pools(options: Options, plans: Iterable[Plan]) -> list[Part]:
    """Return the parts of a template for the pools of these plans; none where the deployment has no pool."""
    if options.gpu is None:
        return []
    shared = fragments.load(
        "gpu", {"gpu_most": options.gpu.most, "architecture": options.architecture, "runtime": options.runtime}
    )
    return [shared, *(part for plan in plans for part in _pool(plan, options, options.gpu))]


def routing(digest: str, *, pooled: bool) -> Part:
    """Return the variables that tell a driver of a plan's pool, or that it has none."""
    return {
        "SERFER_ROUTE": "auto" if pooled else "serverless",
        "SERFER_INSTANCES": {"Fn::Sub": f"ec2:{pool_name(digest)}"} if pooled else "",
        "SERFER_SCENARIO_FILE": f"plans/{digest}/{SCENARIO}" if pooled else "",
    }


def _pool(plan: Plan, options: Options, pool: GpuPool) -> list[Part]:
    digest = digest12(plan)
    layers = [{"Ref": weights_id(digest, *part)} for part in plan.functions]
    words: dict[str, Any] = {
        "digest": digest,
        "gpu_group": pool_name(digest),
        "gpu_type": pool.instance_type,
        "gpu_warm": pool.warm,
        "runtime": options.runtime,
        "weights": {"Fn::Join": [" ", layers]},
        "weights_layers": layers,
    }
    words["gpu_user_data"] = fragments.script("user-data-gpu.sh", words)
    return [fragments.load(name, words) for name in ("gpu-pool", *(["gpu-warm-pool"] if pool.warm else []))]
