"""Opens what runs the instances of applications, from `--variant-instances`."""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from serfer.applications.applications import Applications
from serfer.applications.instances import VariantInstances
from serfer.applications.scaling.controller import InstanceProbes, VariantFleet, VariantPools
from serfer.applications.scaling.copies import VariantCopies
from serfer.applications.scaling.spec import InstancePool
from serfer.fleet.open_pool import local_instance, store_id
from serfer.fleet.provisioner_url import LOCAL, admits, open_provisioner
from serfer.fleet.provisioners.provisioner import Provisioner
from serfer.fleet.purchase import Purchase
from serfer.fleet.registry import PoolRegistry
from serfer.settings import Settings
from serfer.storage.coordination import Coordination


def open_fleet(  # noqa: PLR0913 - its parts, most of them by name
    pools: Sequence[InstancePool],
    applications: Applications,
    instances: VariantInstances,
    coordination: Coordination,
    *,
    registry: str,
    store_url: str,
    driver: str,
    max_usd_per_hour: float | None,
    settings: Settings,
) -> VariantFleet:
    """Return what runs pools of instances for a driver's applications; nothing is started yet.

    Drivers of the same applications of a `registry` coordinate in the store at `store_url`.
    """
    names = tuple(sorted(applications.names))
    where = _absolute(registry)
    identity = hashlib.sha256("\n".join([where, *names]).encode()).hexdigest()[:16]
    command = local_instance(f"--registry={where}", *(f"--app={name}" for name in names))
    directory = settings.cache_dir / "pools" / f"variants-{identity}-{store_id(store_url)}"
    started = {Purchase(pool.kind): pool for pool in pools if not pool.urls}
    specs = {bought: pool.spec for bought, pool in started.items()}
    most = sum(pool.most for pool in started.values() if pool.spec == LOCAL)
    key = settings.instance_key.get_secret_value()
    return VariantFleet(
        VariantPools(
            {pool.kind: pool.terms for pool in pools},
            {bought: _provisioner(pool, command, directory, most) for bought, pool in started.items()},
            {pool.kind: pool.urls for pool in pools if pool.urls},
            tuple(bought for bought, spec in specs.items() if spec == LOCAL),
            directory if most else None,
            math.inf if max_usd_per_hour is None else max_usd_per_hour,
        ),
        PoolRegistry(coordination, f"serfer:variants:instances:{{{identity}}}", driver),
        applications.releases.served,
        instances,
        applications.pipelines,
        VariantCopies(key, time.monotonic, instances.look_soon),
        connect=InstanceProbes(key),
        admits=partial(admits, specs),
    )


def _provisioner(pool: InstancePool, command: Sequence[str], directory: Path, most: int) -> Provisioner:
    if pool.spec != LOCAL:
        return open_provisioner(pool.spec)
    from serfer.fleet.provisioners.local import LocalProvisioner  # noqa: PLC0415 - Linux only, and only this one needs it

    if pool.kind:
        command = [*command, f"--set=instance_type={pool.kind}"]
    label = hashlib.sha256(pool.kind.encode()).hexdigest()[:8] if pool.kind else LOCAL
    return LocalProvisioner(command, directory, label=label, most=most)


def _absolute(registry: str) -> str:
    return registry if "://" in registry else str(Path(registry).expanduser().absolute())
