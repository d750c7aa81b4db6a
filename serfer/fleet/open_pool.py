"""Opens a pool from a user's options: `--route`, `--instances`, `scenario`, and what goes with them."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import re
import secrets
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from serfer.control.policies import AUTO, DEFAULT, GPU, POLICIES, ROUTES, find_policy, make_policy, serves_alone
from serfer.control.router import SERVERLESS, Router
from serfer.control.scenario import Market, Scenario, read_scenario
from serfer.core.errors import UsageError
from serfer.core.plan import Plan
from serfer.core.wire import MAX_BATCH
from serfer.drivers.driver import RequestContext
from serfer.drivers.instance.client import InstanceClient, open_http
from serfer.drivers.instance.open_inference import check_classifies
from serfer.drivers.target import InstanceAnswer
from serfer.fleet.controller import Controller
from serfer.fleet.log_events import log_event
from serfer.fleet.pool import Pool
from serfer.fleet.provisioner_url import LOCAL, admits, check_instances, open_provisioner, specs_by_purchase
from serfer.fleet.provisioners.provisioner import Provisioner
from serfer.fleet.purchase import Purchase
from serfer.fleet.registry import PoolRegistry
from serfer.settings import NONE, Settings
from serfer.storage import schemes
from serfer.storage.store import Store

if TYPE_CHECKING:
    import aiohttp

_IDLE_S = 60.0  # without a request, after which an instance on this machine ends
_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9._]")


@dataclass(frozen=True)
class Routing:
    """The targets of queries besides the plan's functions, and their budget.

    `route` is "auto", "gpu" (instances alone) or a policy as `make_policy` takes it, `instances` what
    `specs_by_purchase` takes. `model` is what instances call the network, by default the plan's name. Instances on this
    machine are started `boot_delay_s` seconds late, as those that have a machine to boot.
    """

    route: str
    instances: str
    scenario: Scenario
    max_usd_per_hour: float = math.inf
    model: str | None = None
    boot_delay_s: float = 0.0

    def router(self) -> Router:
        policy = make_policy(self.policy, self.scenario)
        alone = self.route == GPU or serves_alone(policy)
        return Router(self.scenario, policy, max_usd_per_hour=self.max_usd_per_hour, overflow=not alone)

    @property
    def policy(self) -> str:
        return {AUTO: DEFAULT, GPU: "instances"}.get(self.route, self.route)

    @property
    def specs(self) -> dict[Purchase, str]:
        return specs_by_purchase(self.instances, self.scenario)

    def check(self) -> None:
        """Raise UsageError for a policy that there is not, or which buys what has no provisioner."""
        policy, specs = self.router().policy, self.specs
        if (purchases := getattr(policy, "purchases", None)) is not None:
            buys = purchases()
        elif self.policy in POLICIES:
            buys = [(self.scenario.instance.name, Market.ON_DEMAND)]
        else:
            return  # what a policy of the user's own buys is known when it decides
        missing = [str(bought) for key in buys if (bought := Purchase(*key)) not in specs]
        if missing:
            raise UsageError(
                f"--route {self.route:.40} buys {', '.join(missing):.300}, which --instances does not name: give each "
                "its own, as in TYPE=ec2:GROUP,TYPE/spot=ec2:GROUP"
            )


def choose_routing(
    route: str, instances: str | None, scenario: Path | None, max_usd_per_hour: float | None
) -> Routing | None:
    """Return what was chosen, None for functions alone.

    Raises UsageError that names the options which do not go together or what is not a policy, InputError for a scenario
    that cannot be read.
    """
    if route not in ROUTES:
        find_policy(route, f"{AUTO}, {GPU}, ")
    if route == SERVERLESS:
        values = {"--instances": instances, "scenario": scenario, "max_usd_per_hour": max_usd_per_hour}
        for option in [option for option, value in values.items() if value is not None]:
            raise UsageError(f"{option} is about a pool of instances: give --route auto, gpu or a policy with it")
        return None
    if instances is None:
        raise UsageError(f"--route {route} needs --instances: local, static:URL,URL, ec2:GROUP or TYPE=ec2:GROUP,...")
    if scenario is None:
        raise UsageError(
            f"--route {route} needs --set scenario=FILE.toml: prices and speeds are not assumed (serfer study tune)"
        )
    if max_usd_per_hour is not None and not 0 < max_usd_per_hour < math.inf:
        raise UsageError(f"max_usd_per_hour is a number of dollars above 0, not {max_usd_per_hour}")
    ceiling = math.inf if max_usd_per_hour is None else max_usd_per_hour
    check_instances(instances)
    routing = Routing(route, instances, read_scenario(scenario), ceiling)
    routing.check()
    return routing


def routing_of(
    settings: Settings,
    *,
    route: str | None = None,
    instances: str | None = None,
    scenario: Path | None = None,
    max_usd_per_hour: float | None = None,
) -> Routing | None:
    """Return what options say, and the settings where these say nothing; raises as `choose_routing`."""
    chosen = settings.route if route is None else route
    if chosen == SERVERLESS:
        return choose_routing(chosen, instances, scenario, max_usd_per_hour)
    ceiling = settings.max_usd_per_hour if max_usd_per_hour is None else max_usd_per_hour
    instances, scenario = instances or settings.instances, scenario or settings.scenario_file
    return choose_routing(chosen, instances, scenario, ceiling)


class RunningPool:
    """A pool with its controller, as a pipeline's target; `model` is what instances call the network."""

    def __init__(self, pool: Pool, controller: Controller, http: aiohttp.ClientSession, registry: Path) -> None:
        self.pool = pool
        self.controller = controller
        self._http = http
        self._registry = registry

    async def run(self, batch: NDArray[Any], deadline_s: float, context: RequestContext) -> InstanceAnswer | None:
        return await self.pool.run(batch, deadline_s, context)

    async def close(self) -> None:
        try:
            await self.controller.close()
        finally:
            await self._http.close()
            remove_empty(self._registry, self._registry.parent)


async def open_pool(
    routing: Routing,
    plan: Plan,
    directory: Path,
    store: Store,
    url: str,
    settings: Settings,
    ping: Callable[[int], Awaitable[None]] | None = None,
) -> RunningPool:
    """Run a pool for a plan on the running event loop; its drivers coordinate in `store`, which is at `url`.

    `ping` warms the plan's functions up for so many queries at once, None where they are always warm.

    Raises UsageError for `--instances` that are malformed, and PlanError for a plan that instances cannot answer.
    """
    check_classifies(plan)
    for warning in routing.scenario.warnings():
        log_event(logging.WARNING, "scenario", message=warning)
    driver, name = secrets.token_hex(16), plan.digest[:16]
    registry = settings.cache_dir / "pools" / f"{name}-{store_id(url)}"
    model, specs = routing.model or plan.model, routing.specs
    if LOCAL in specs.values():
        await sweep(registry.parent)
    provisioners = _provisioners(specs, routing, model, directory, registry)
    router = routing.router()
    # Last of what is opened: nothing below raises, so nothing has to close it.
    http = open_http(settings.instance_key.get_secret_value())

    def connect(instance: str) -> InstanceClient:
        return InstanceClient(instance, model, plan, http)

    pool = Pool(router, connect)
    controller = Controller(
        pool,
        PoolRegistry(store.coordination(), f"serfer:pool:{{{name}}}", driver),
        provisioners,
        connect,
        admits=partial(admits, specs),
        ends=[bought for bought, spec in specs.items() if spec == LOCAL],
        ping=ping,
    )
    controller.start()
    return RunningPool(pool, controller, http, registry)


def _provisioners(
    specs: Mapping[Purchase, str], routing: Routing, model: str, directory: Path, registry: Path
) -> dict[Purchase, Provisioner]:
    opened = {}
    for bought, spec in specs.items():
        command = instance_command(model, directory, routing.scenario.kind(bought.kind).max_batch)
        delay_s = routing.boot_delay_s
        opened[bought] = open_provisioner(
            spec, command=command, registry=registry, label=_label(bought), boot_delay_s=delay_s
        )
    return opened


def _label(bought: Purchase) -> str:
    word = _NOT_IN_LABELS.sub("_", bought.kind)
    if word != bought.kind:  # another type may look the same
        word += f"_{hashlib.sha256(bought.kind.encode()).hexdigest()[:6]}"
    return f"{LOCAL}-{word}" if bought.market is Market.ON_DEMAND else f"{LOCAL}-{word}-{bought.market}"


async def sweep(pools: Path) -> None:
    """Remove what pools of this machine recorded of instances that ended after their drivers."""
    for registry in _inside(pools):
        await open_provisioner(LOCAL, command=(sys.executable,), registry=registry).members()
        remove_empty(registry)


def _inside(pools: Path) -> list[Path]:
    return list(pools.iterdir()) if pools.is_dir() else []


def remove_empty(*directories: Path) -> None:
    for directory in directories:
        with contextlib.suppress(OSError):
            directory.rmdir()


def store_id(url: str) -> str:
    """Return an id of the drivers that share instances on this machine: those of one store."""
    own = f" {os.getpid()} {secrets.token_hex(4)}" if "memory" in schemes(url) else ""
    return hashlib.sha256(f"{url}{own}".encode()).hexdigest()[:12]


def instance_command(model: str, directory: Path, max_batch: int) -> list[str]:
    """Return the command of an instance on this machine, whose batches are those that the router assumes."""
    called = f"{model}={directory.absolute()}" if _is_name(model) else str(directory.absolute())
    return local_instance(f"--plan={called}", f"--max-batch={min(max_batch, MAX_BATCH)}")


def local_instance(*options: str) -> list[str]:
    """Return the command of an instance on this machine, which ends by itself when no driver asks it for anything."""
    serve = ["instance", *options, "--host=127.0.0.1", "--port=0", "--json", "--set=log_format=json"]
    serve += [f"--keys={NONE}", "--set=log_level=warning"]  # drivers' keys do not open it, nor is each request logged
    ends = ["--set=drain_s=0", f"--set=exit_when_idle_s={_IDLE_S:g}"]  # one that is stopped gets no more requests
    return [sys.executable, "-P", "-m", "serfer.cli.started_process", *serve, *ends]


def _is_name(model: str) -> bool:
    return all(char.isalnum() or char in "._-" for char in model) and model[:1].isalnum()
