"""Open applications from a user's options: the registry, the names of applications, the selector of variants."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from serfer.applications.applications import MAX_APPLICATIONS, Applications
from serfer.applications.exchange import Exchange
from serfer.applications.instances import VariantInstances
from serfer.applications.pipelines import AT, VariantPipelines, served_name
from serfer.applications.scaling.controller import VariantFleet, VariantPools
from serfer.applications.scaling.copies import VariantCopies
from serfer.applications.scaling.spec import InstancePool
from serfer.applications.served import FunctionsPlace
from serfer.control.selection import DEFAULT, make_selector
from serfer.core.errors import PlanError, UsageError
from serfer.core.plan import Plan
from serfer.core.variants import Place, Variant
from serfer.drivers.target import Target
from serfer.fleet.log_events import log_event
from serfer.fleet.open_pool import local_instance, store_id
from serfer.fleet.provisioner_url import LOCAL, admits, open_provisioner
from serfer.fleet.provisioners.provisioner import Provisioner
from serfer.fleet.purchase import Purchase
from serfer.fleet.registry import PoolRegistry
from serfer.pipeline.event_loop import LoopThread
from serfer.pipeline.health import Probe
from serfer.pipeline.pipeline import AsyncPipeline
from serfer.plan_directory import check_artefacts, load_plan
from serfer.registry import Registry, check_apart, open_registry
from serfer.settings import Settings
from serfer.storage import open_store
from serfer.storage.coordination import Coordination
from serfer.storage.store import Store

VARIANTS: Final = "variants"
"""The folder of the cache for plan directories that were fetched from a registry."""


@dataclass(frozen=True)
class ApplicationOptions:
    """The applications to serve, of the registry at a URL, and where variants for instances run (`InstancePool`).

    Without names, all that the registry has. Those instances may cost `max_usd_per_hour`. `plans` are the plan
    directories of variants whose functions are deployed, by the first twelve digits of their digests; None: they are
    fetched from the registry. `selector` chooses the variant that answers a query (`make_selector`).
    """

    registry: str
    names: tuple[str, ...] = ()
    instances: tuple[InstancePool, ...] = ()
    max_usd_per_hour: float | None = None
    plans: Mapping[str, Path] | None = None
    selector: str = DEFAULT


def open_applications(  # noqa: PLR0913 - what a driver has, by name
    options: ApplicationOptions,
    served: MutableMapping[str, AsyncPipeline],
    open_functions: Callable[[Path], Awaitable[AsyncPipeline]],
    settings: Settings,
    store: Store,
    store_url: str,
    place: FunctionsPlace,
    runs_there: Callable[[Variant], bool] = lambda _: True,
    *,
    alone: bool = False,
    make_loop: Callable[[], LoopThread] = LoopThread,
) -> Applications:
    """Return the applications of a driver, whose variants' pipelines come and go in `served`; nothing is read yet.

    `open_functions` opens a plan directory for queries; `runs_there` says of a variant for functions whether they have
    it. Drivers of one application tell one another of it in `store`, which is at `store_url`; one that is `alone`, as a
    driver function is, does not, and has no part in canaries. `make_loop` returns the event loop of a pipeline that
    sends its queries to an instance. Raises UsageError for options that cannot be, or where
    there is nothing to serve.
    """
    selector = make_selector(options.selector)
    registry, names = find_applications(options, store_url)
    driver, coordination = secrets.token_hex(16), (open_store("memory://") if alone else store).coordination()

    urls = [url for pool in options.instances for url in pool.urls]
    instances = VariantInstances(urls, settings.instance_key.get_secret_value(), time.monotonic)

    def runs_here(variant: Variant) -> bool:
        return runs_there(variant) if variant.place is Place.FUNCTIONS else bool(options.instances)

    async def opened(name: str, variant: Variant, place: str) -> AsyncPipeline:
        if variant.place is Place.FUNCTIONS and options.plans is not None:
            return await open_functions(options.plans[variant.plan[:12]])
        open_in = partial(opened_in, name, variant, place)
        return await _from_cache(registry, variant, settings.cache_dir / VARIANTS, open_in)

    async def opened_in(name: str, variant: Variant, place: str, directory: Path) -> AsyncPipeline:
        if variant.place is Place.FUNCTIONS:
            return await open_functions(directory)
        plan = await asyncio.to_thread(load_plan, directory)
        return _on_instance(instances.target(place, name.partition(AT)[0], plan), plan, settings, make_loop())

    def exchange(name: str) -> Exchange:
        return Exchange(coordination, name, driver)

    applications = Applications(
        registry,
        VariantPipelines(opened, served),
        selector,
        instances,
        {name: exchange(name) for name in names},
        place=place,
        runs_here=runs_here,
        driver=driver,
        join=None
        if options.names or alone or options.instances
        else exchange,  # instances are started for those there are
        canaries=not alone,
    )
    if options.instances:
        applications.fleet = _open_fleet(
            options.instances,
            applications,
            instances,
            coordination,
            registry=options.registry,
            store_url=store_url,
            driver=driver,
            max_usd_per_hour=options.max_usd_per_hour,
            settings=settings,
        )
    return applications


async def _from_cache(
    registry: Registry, variant: Variant, cache: Path, open_in: Callable[[Path], Awaitable[AsyncPipeline]]
) -> AsyncPipeline:
    directory = await asyncio.to_thread(registry.directory, variant.artefact, cache)
    try:
        return await open_in(directory)
    except PlanError:
        try:
            await asyncio.to_thread(lambda: check_artefacts(load_plan(directory), directory))
        except PlanError:
            return await open_in(await asyncio.to_thread(registry.directory, variant.artefact, cache, again=True))
        raise


def find_applications(options: ApplicationOptions, store_url: str) -> tuple[Registry, tuple[str, ...]]:
    """Return the registry, and the names of the applications to serve, which it may not all have.

    Raises UsageError for a registry inside the store, or where there is nothing to serve.
    """
    check_apart(options.registry, store_url)
    registry = open_registry(options.registry, create=bool(options.names))  # which may be registered later
    names = options.names or tuple(registry.applications())
    if not names:
        raise UsageError(f"the registry {options.registry} has no applications yet: serfer app register")
    if len(names) > MAX_APPLICATIONS:
        raise UsageError(
            f"the registry {options.registry} has {len(names)} applications: name those to serve, --app NAME"
        )
    return registry, names


def variants_for_instances(
    options: ApplicationOptions, settings: Settings, kind: str | None = None
) -> dict[str, tuple[Variant, Path]]:
    """Return the variants for instances of applications' live releases and canaries, fetched, by their served names.

    With `kind` they are those for that instance type alone. One whose plan cannot be read, as it has another format, is
    left out, and named in the log. Raises UsageError where there is none, PlanError where none can be read.
    """
    registry = open_registry(options.registry, create=False)
    found = {}
    for name in options.names or registry.applications():
        record = registry.known(name)
        live, canary = record.live_release, record.canary
        for networks in [release.networks for release in (live, canary) if release]:
            for variant in record.variants(networks):
                if variant.place is Place.INSTANCE and kind in {None, variant.kind}:
                    found[served_name(name, variant.name)] = variant
    if not found:
        which = f"instances of the type {kind[:80]!r}" if kind else "instances"
        raise UsageError(f"the registry {options.registry} has no variants for {which} of these applications")
    cache, fetched, refusals = settings.cache_dir / VARIANTS, dict[str, tuple[Variant, Path]](), list[PlanError]()
    for name, variant in found.items():
        try:
            directory = registry.directory(variant.artefact, cache)
            load_plan(directory)
        except PlanError as error:
            refusals.append(error)
            log_event(logging.ERROR, "variant not opened", variant=name, message=str(error))
        else:
            fetched[name] = variant, directory
    if not fetched:
        raise refusals[0]
    return fetched


def _on_instance(target: Target, plan: Plan, settings: Settings, loop: LoopThread) -> AsyncPipeline:
    store = open_store("memory://")  # nothing is in it: instances take no pieces

    async def close() -> None:
        store.close()

    facts, limits = settings.facts().functions, settings.image_limits()
    return AsyncPipeline(plan, None, loop, close, facts, limits, Probe(plan, store, None), target=target)


def _open_fleet(  # noqa: PLR0913 - its parts, most of them by name
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
    """Drivers of the same applications of a `registry` coordinate in the store at `store_url`; nothing starts yet."""
    names = tuple(sorted(applications.names))
    where = _absolute(registry)
    identity = hashlib.sha256("\n".join([where, *names]).encode()).hexdigest()[:16]
    command = local_instance(f"--registry={where}", *(f"--app={name}" for name in names))
    directory = settings.cache_dir / "pools" / f"variants-{identity}-{store_id(store_url)}"
    started = {Purchase(pool.kind): pool for pool in pools if not pool.urls}
    specs = {bought: pool.spec for bought, pool in started.items()}
    most = sum(pool.most for pool in started.values() if pool.spec == LOCAL)
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
        VariantCopies(settings.instance_key.get_secret_value(), time.monotonic, instances.look_soon),
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
