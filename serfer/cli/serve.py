"""`serfer serve`: networks over HTTP, by one driver in this process, or by several behind a load balancer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

import typer

from serfer.api.entrypoints.process import collect_rarely
from serfer.api.entrypoints.serving import Address, Opening, serve_models
from serfer.cli.balanced import check_balanced, resolve_names, serve_balanced
from serfer.cli.shared.display import plain
from serfer.cli.shared.network_options import check_described
from serfer.cli.shared.options import check_named, demo_model, print_json, status_line
from serfer.cli.shared.schema import settings_of
from serfer.cli.shared.service_commands import ServeCommand
from serfer.cli.shared.service_options import (
    applications_of,
    ask_line,
    ceiling_of_route,
    check_service,
    least_concurrency,
    print_config,
    served_models,
    start_log,
    warn_of_open_address,
    with_results,
)
from serfer.cli.shared.terminal import err
from serfer.fleet.open_pool import routing_of
from serfer.pipeline.event_loop import run
from serfer.settings import Settings
from serfer.wiring.options import Choices, check_keep_warm, workers_of

_CHOICES = (
    "an .onnx file, a plan directory from serfer split, timm:NAME, torchvision:NAME, or a model of the zoo; --app NAME "
    "for an application of a registry; or --demo for efficientnet-lite0"
)


def serve(options: ServeCommand, context: typer.Context) -> None:
    settings, named = settings_of(context), (options.network, options.model, options.plan)
    if options.show_config:
        print_config(context, settings, as_json=options.as_json)
        return
    settings = with_results(settings, options.drivers)
    demo = demo_model(options.demo, *named)
    workers, address = workers_of(options.workers, options.stack, "local"), Address(options.host, options.port)
    check_keep_warm(options.keep_warm, workers)
    check_named(options.stack, *named, demo)
    choices = Choices(
        options.store, workers, options.engine, options.object_store, cache_s=options.cache_s, stack=options.stack
    )
    if options.drivers:
        check_balanced(context, choices)
    check_service(address.host, address.port, settings)
    applications = applications_of(settings, options, named=any(named) or options.demo)
    routing = routing_of(
        settings,
        route=options.route,
        instances=options.instances,
        scenario=options.scenario,
        max_usd_per_hour=ceiling_of_route(settings, options),
    )
    if options.drivers:
        applications = resolve_names(applications, choices.store)
    models = {}
    if any(named) or demo or not applications:
        zoo = [demo] if demo else options.model
        models = served_models(zoo, options.plan, options.network, options, deployed=workers == "aws", choices=_CHOICES)
    else:
        check_described(options, [])
    opening = Opening(choices, routing, applications)
    if options.drivers:
        serve_balanced(context, options.drivers, address, models, opening, settings, as_json=options.as_json)
    else:
        _serve_alone(address, models, opening, settings, as_json=options.as_json)


def _serve_alone(
    address: Address, models: Mapping[str, Path], opening: Opening, settings: Settings, *, as_json: bool
) -> None:
    if not opening.choices.driver.startswith("stepfunctions"):  # a state machine starts as many tasks as it likes
        share = settings.local_share(least=least_concurrency(models.values(), settings))
        settings = settings.model_copy(update={"local_concurrency": share})
    start_log(settings.log_level, settings.log_format)
    applications = opening.applications

    def started(url: str) -> None:
        steps.close()  # else its line would be drawn for as long as the service runs, with the log's lines behind it
        changes = ", and change the registry" if applications and settings.open_registry else ""
        warn_of_open_address(settings, address.host, f"send queries{changes}")
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
