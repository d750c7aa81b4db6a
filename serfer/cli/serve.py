"""`serfer serve`: networks over HTTP, by one driver in this process, or by several behind a load balancer."""

# ruff: noqa: ARG001 - options that stand for a setting are read from settings_of(context)

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from serfer.api.entrypoints.process import collect_rarely
from serfer.api.entrypoints.serving import Address, Opening, serve_models
from serfer.api.observability.logs import configure_logs
from serfer.cli.balanced import check_balanced, found_applications, serve_balanced
from serfer.cli.registry.options import RegistryOption
from serfer.cli.shared.display import plain
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
    DemoOption,
    EngineOption,
    JsonOption,
    ObjectStoreOption,
    StackOption,
    StoreOption,
    WorkersOption,
    check_named,
    demo_model,
    print_json,
    status_line,
)
from serfer.cli.shared.service_options import (
    LOOPBACK,
    AllowHostOption,
    AppsOption,
    CeilingOption,
    DrainOption,
    HostOption,
    InstancesOption,
    KeepWarmOption,
    KeysOption,
    LogFormatOption,
    LogLevelOption,
    ModelsOption,
    NetworksArgument,
    OpenRegistryOption,
    PlansOption,
    PortOption,
    ResultsOption,
    RouteOption,
    ScenarioOption,
    SelectorOption,
    VariantInstancesOption,
    applications_of,
    ask_line,
    ceiling_of_route,
    check_logs,
    least_concurrency,
    print_config,
    served_models,
    with_keep_warm,
    with_results,
)
from serfer.cli.shared.setting_options import setting, settings_of
from serfer.cli.shared.terminal import err
from serfer.control.selection import DEFAULT
from serfer.fleet.open_pool import routing_of
from serfer.pipeline.event_loop import run
from serfer.settings import Settings
from serfer.wiring.options import Choices, workers_of

_CHOICES = (
    "an .onnx file, a plan directory from serfer split, timm:NAME, torchvision:NAME, or a model of the zoo; --app NAME "
    "for an application of a registry; or --demo for efficientnet-lite0"
)


def serve(
    context: typer.Context,
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
    demo: DemoOption = False,
    drivers: Annotated[
        int,
        setting(
            "drivers",
            min=0,
            max=64,
            help="Run so many drivers behind a load balancer, each in a process of its own that is started again when "
            "it ends (extra local); 0: this process is the one driver.",
        ),
    ] = 0,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    store: StoreOption = None,
    object_store: ObjectStoreOption = None,
    workers: WorkersOption = None,
    stack: StackOption = None,
    engine: EngineOption = "push",
    cache_s: Annotated[
        float, typer.Option("--cache-s", help="Keep answers in the store for so many seconds; 0: keep none.")
    ] = 0.0,
    in_flight: Annotated[
        int | None, setting("api_in_flight", min=1, max=10_000, help="Queries that run at once.")
    ] = None,
    queue: Annotated[
        int | None, setting("api_queue", min=0, max=10_000, help="Queries that wait for a decoder or their turn.")
    ] = None,
    drain_s: DrainOption = None,
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
    keep_warm: KeepWarmOption = None,
    log_level: LogLevelOption = "info",
    log_format: LogFormatOption = "auto",
    show_config: Annotated[
        bool,
        typer.Option(
            "--show-config", help="Print every setting, and the option, variable or file it comes from; stop."
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Answer queries over HTTP, with all that this takes on this machine, until Ctrl-C (docs/reference/api.md).

    Store and functions are started here as well, unless --store, --workers or --stack say where they are. Options win
    over SERFER_* variables, and these over serfer.toml (docs/reference/settings.md). With no network named, it serves
    the applications of SERFER_REGISTRY.
    """
    file = FileOptions.of(size, channels, preprocess, labels, output, WeightsFrom(weights_file, random, download))
    settings = settings_of(context)
    if show_config:
        print_config(context, settings, as_json=as_json)
        return
    settings = with_results(settings, drivers)
    model = [named] if (named := demo_model(demo, network, model, plan)) else model
    workers, address = workers_of(workers, stack, "local"), Address(host, port)
    settings = with_keep_warm(settings, keep_warm, workers)
    check_logs(log_level, log_format)
    check_named(stack, network, model, plan)
    choices = Choices(store, workers, engine, object_store, cache_s=cache_s, stack=stack)
    if drivers:
        check_balanced(context, choices, address, settings)
    applications = applications_of(
        settings,
        registry,
        app,
        variant_instances,
        max_usd_per_hour,
        named=bool(network or model or plan),
        selector=selector,
    )
    routing = routing_of(
        settings,
        route=route,
        instances=instances,
        scenario=scenario,
        max_usd_per_hour=ceiling_of_route(settings, route, variant_instances, max_usd_per_hour),
    )
    if drivers:
        applications = found_applications(applications, store)
    models = {}
    if network or model or plan or not applications:
        models = served_models(model, plan, network, file, deployed=workers == "aws", choices=_CHOICES)
    else:
        file.check([])
    opening = Opening(choices, routing, applications)
    if drivers:
        serve_balanced(context, drivers, address, models, opening, settings, as_json=as_json)
    else:
        _serve_alone(address, models, opening, settings, as_json=as_json)


def _serve_alone(
    address: Address,
    models: Mapping[str, Path],
    opening: Opening,
    settings: Settings,
    *,
    as_json: bool,
) -> None:
    """Be the one driver, until SIGTERM."""
    if not opening.choices.driver.startswith("stepfunctions"):  # a state machine starts as many tasks as it likes
        share = settings.local_share(least=least_concurrency(models.values(), settings))
        settings = settings.model_copy(update={"local_concurrency": share})
    as_lines = None if settings.log_format == "auto" else settings.log_format == "json"
    configure_logs(settings.log_level, as_json=as_lines, in_background=True)
    applications = opening.applications

    def started(url: str) -> None:
        steps.close()  # else its line would be drawn for as long as the service runs, with the log's lines behind it
        if not settings.keys_file and address.host not in LOOPBACK:
            may = "send queries" + (", and change the registry" if applications and settings.open_registry else "")
            err.print(f"serfer: anyone who reaches this address may {may}: give --keys to require an API key")
        if as_json:
            print_json({"url": url, "pid": os.getpid(), "models": [*models]})
        else:
            served = [*models, *(applications.names or ("applications",) if applications else ())]
            err.print(f"{', '.join(served)} at {plain(url)} (docs: {plain(url)}/docs)", soft_wrap=True)
            if line := ask_line(url, [*models.values()]):
                err.print(plain(line), soft_wrap=True)

    collect_rarely()
    with ExitStack() as steps:
        progress = steps.enter_context(status_line())
        run(serve_models(models, opening, address, settings, on_started=started, progress=progress))
