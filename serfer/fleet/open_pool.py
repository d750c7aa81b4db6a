"""Opens a pool from a user's options: `--route`, `--instances`, `--scenario` and `--max-usd-per-hour`."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import secrets
import shutil
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import aiohttp
from numpy.typing import NDArray

from drivers.driver import RequestContext
from drivers.instance.client import InstanceClient, open_http
from drivers.target import InstanceAnswer
from serfer.control.policies import DEFAULT, POLICIES, make_policy
from serfer.control.router import SERVERLESS, Router
from serfer.control.scenario import Scenario
from serfer.control.scenario_files import read_scenario
from serfer.core.errors import UsageError
from serfer.core.plan import Plan
from serfer.core.wire import MAX_BATCH
from serfer.fleet.controller import Controller
from serfer.fleet.log_events import log_event
from serfer.fleet.pool import Pool
from serfer.fleet.provisioner_url import admits, open_provisioner
from serfer.fleet.registry import PoolRegistry
from serfer.settings import Settings
from storage import schemes
from storage.store import Store

AUTO: Final = "auto"
GPU: Final = "gpu"
ROUTES: Final = (SERVERLESS, AUTO, GPU, *(name for name in POLICIES if name != SERVERLESS))
_LOCAL = "local"
_IDLE_S = 60.0  # without a request, after which an instance on this machine ends
_NOT_ITS_OWN = ("SERFER_KEYS_FILE",)  # the drivers' keys do not open their instances on this machine


@dataclass(frozen=True)
class Routing:
    """The targets of queries besides the plan's functions, and their budget.

    `route` is "auto", "gpu" (instances alone) or a policy's name, `instances` what `open_provisioner` takes. `model` is
    what instances call the network, by default the plan's name.
    """

    route: str
    instances: str
    scenario: Scenario
    max_usd_per_hour: float = math.inf
    model: str | None = None

    def router(self) -> Router:
        """Return a router with a policy of its own."""
        alone = self.route == GPU
        name = {AUTO: DEFAULT, GPU: "instances"}.get(self.route, self.route)
        policy = make_policy(name, self.scenario)
        return Router(self.scenario, policy, max_usd_per_hour=self.max_usd_per_hour, overflow=not alone)


def choose_routing(
    route: str, instances: str | None, scenario: Path | None, max_usd_per_hour: float | None
) -> Routing | None:
    """Return what was chosen, None for functions alone.

    Raises UsageError that names the options which do not go together, InputError for a scenario that cannot be read.
    """
    if route not in ROUTES:
        raise UsageError(f"--route is {', '.join(ROUTES[:-1])} or {ROUTES[-1]}, not {route[:40]!r}")
    if route == SERVERLESS:
        for option, value in (
            ("--instances", instances),
            ("--scenario", scenario),
            ("--max-usd-per-hour", max_usd_per_hour),
        ):
            if value is not None:
                raise UsageError(f"{option} is about a pool of instances: give --route auto, gpu or a policy with it")
        return None
    if instances is None:
        raise UsageError(f"--route {route} needs --instances: local, static:URL,URL or ec2:GROUP")
    if scenario is None:
        raise UsageError(f"--route {route} needs --scenario FILE.toml: prices and speeds are not assumed (serfer tune)")
    if max_usd_per_hour is not None and not 0 < max_usd_per_hour < math.inf:
        raise UsageError(f"--max-usd-per-hour is a number of dollars above 0, not {max_usd_per_hour}")
    ceiling = math.inf if max_usd_per_hour is None else max_usd_per_hour
    open_provisioner(instances, command=(sys.executable,), registry=Path())  # says what is wrong with it
    return Routing(route, instances, read_scenario(scenario), ceiling)


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
    return choose_routing(chosen, instances or settings.instances, scenario or settings.scenario_file, ceiling)


class RunningPool:
    """A pool with its controller, as a pipeline's target; `model` is what instances call the network."""

    def __init__(self, pool: Pool, controller: Controller, http: aiohttp.ClientSession, registry: Path) -> None:
        self.pool = pool
        self.controller = controller
        self._http = http
        self._registry = registry

    async def run(self, batch: NDArray[Any], deadline_s: float, context: RequestContext) -> InstanceAnswer | None:
        """Answer a query as `Pool.run` does."""
        return await self.pool.run(batch, deadline_s, context)

    async def close(self) -> None:
        """Stop the controller, and detach from the instances."""
        try:
            await self.controller.close()
        finally:
            await self._http.close()
            _remove(self._registry, self._registry.parent)


async def open_pool(
    routing: Routing, plan: Plan, directory: Path, store: Store, url: str, settings: Settings
) -> RunningPool:
    """Run a pool for a plan on the running event loop; its drivers coordinate in `store`, which is at `url`.

    Raises UsageError for `--instances` that are malformed.
    """
    for warning in routing.scenario.warnings():
        log_event(logging.WARNING, "scenario", message=warning)
    driver, name = secrets.token_hex(16), plan.digest[:16]
    registry = settings.cache_dir / "pools" / f"{name}-{_store_id(url)}"
    model = routing.model or plan.model
    if routing.instances == _LOCAL:
        await _sweep(registry.parent)
    provisioner = open_provisioner(
        routing.instances, command=_command(model, directory, routing.scenario), registry=registry
    )
    http = open_http(settings.instance_key.get_secret_value())

    def connect(instance: str) -> InstanceClient:
        return InstanceClient(instance, model, plan, http)

    pool = Pool(routing.router(), connect)
    controller = Controller(
        pool,
        PoolRegistry(store.coordination(), f"serfer:pool:{{{name}}}", driver),
        provisioner,
        connect,
        admits=partial(admits, routing.instances),
        ends_instances=routing.instances == _LOCAL,
    )
    controller.start()
    return RunningPool(pool, controller, http, registry)


async def _sweep(pools: Path) -> None:
    """Remove what pools of this machine recorded of instances that ended after their drivers."""
    for registry in _inside(pools):
        await open_provisioner(_LOCAL, command=(sys.executable,), registry=registry).members()
        _remove(registry)


def _inside(pools: Path) -> list[Path]:
    return list(pools.iterdir()) if pools.is_dir() else []


def _remove(*directories: Path) -> None:
    """Remove those directories that are empty and there."""
    for directory in directories:
        with contextlib.suppress(OSError):
            directory.rmdir()


def _store_id(url: str) -> str:
    """Return an id of the drivers that share instances on this machine: those of one store."""
    own = f" {os.getpid()} {secrets.token_hex(4)}" if "memory" in schemes(url) else ""
    return hashlib.sha256(f"{url}{own}".encode()).hexdigest()[:12]


def _command(model: str, directory: Path, scenario: Scenario) -> list[str]:
    """Return the command of an instance on this machine, whose batches are those that the router assumes."""
    env = shutil.which("env")
    without = [env, *(word for name in _NOT_ITS_OWN for word in ("-u", name))] if env else []
    called = f"{model}={directory.absolute()}" if _is_name(model) else str(directory.absolute())
    serve = ["instance", f"--plan={called}", "--host=127.0.0.1", "--port=0", "--json", "--log-format=json"]
    serve += ["--log-level=warning"]  # not a line for each request
    ends = ["--drain-s=0", f"--exit-when-idle-s={_IDLE_S:g}"]  # one that is stopped gets no more requests
    batching = [f"--max-batch={min(scenario.instance.max_batch, MAX_BATCH)}"]
    return [*without, sys.executable, "-P", "-m", "serfer", *serve, *batching, *ends]


def _is_name(model: str) -> bool:
    return all(char.isalnum() or char in "._-" for char in model) and model[:1].isalnum()
