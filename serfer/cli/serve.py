"""`serfer serve`: networks over HTTP, by one driver in this process, or by several behind a load balancer."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import typer

from serfer.api.entrypoints.opening import Address, Opening
from serfer.cli.balanced import (
    WORKERS_SAID,
    check_balanced,
    driver_command,
    driver_variables,
    resolve_names,
    serve_balanced,
)
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
from serfer.local.supervisor import become_parent, inherited
from serfer.pipeline.event_loop import run
from serfer.settings import Settings
from serfer.wiring.options import Choices, check_keep_warm, default_workers, workers_of

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
    workers = workers_of(options.workers, options.stack, "local")
    address = Address(options.host, options.port, *inherited())
    check_keep_warm(options.keep_warm, workers)
    check_named(options.stack, *named, demo)
    options.check_workers()
    choices = Choices(
        options.store, workers, options.engine, options.object_store, cache_s=options.cache_s, stack=options.stack
    )
    if options.drivers:
        check_balanced(context, choices)
    if address.listener is None:
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
        names, deployed, quiet = (zoo, options.plan, options.network), workers == "aws", address.state is not None
        models = served_models(*names, options, deployed=deployed, choices=_CHOICES, quiet=quiet)
    else:
        check_described(options, [])
    if not (options.workers or options.stack or applications or routing):  # functions are what these select among
        choices = replace(choices, workers=default_workers(models.values(), options.engine, settings))
    opening = Opening(choices, routing, applications)
    if options.drivers:
        serve_balanced(context, options.drivers, address, models, opening, settings, as_json=options.as_json)
    elif choices.workers != "inprocess" or sys.platform != "linux" or address.state is not None:
        _serve_here(address, models, opening, settings, as_json=options.as_json)
    else:  # in a process that is started again when a pass has killed it
        own = [f"--host={address.host}", f"--port={address.port}", f"--set=drain_s={settings.api_drain_s}"]
        own += [f"--set=log_format={settings.log_format}", *(["--json"] if options.as_json else [])]
        command = driver_command(context, models, choices, settings.allow_hosts, *own)
        as_json = settings.log_format != "text" and not err.is_terminal
        become_parent(command, driver_variables(settings, choices), address.listen().detach(), as_json=as_json)


def _serve_here(
    address: Address, models: Mapping[str, Path], opening: Opening, settings: Settings, *, as_json: bool
) -> None:
    from serfer.api.entrypoints.process import collect_rarely  # noqa: PLC0415 - not for who only starts drivers
    from serfer.api.entrypoints.serving import serve_models  # noqa: PLC0415 - same
    from serfer.api.observability.logs import write  # noqa: PLC0415 - same

    if not opening.choices.driver.startswith("stepfunctions"):  # a state machine starts as many tasks as it likes
        share = settings.local_share(least=least_concurrency(models.values(), settings))
        settings = settings.model_copy(update={"local_concurrency": share})
    start_log(settings.log_level, settings.log_format)
    applications = opening.applications

    def started(url: str) -> None:
        steps.close()  # else its line would be drawn for as long as the service runs, with the log's lines behind it
        if not address.balanced and (said := WORKERS_SAID.get(opening.choices.workers)):
            write(logging.INFO, "workers", {"message": said})
        changes = ", and change the registry" if applications and settings.open_registry else ""
        warn_of_open_address(settings, address.host, f"send queries{changes}")
        if as_json:
            pid = os.getpid() if address.listener is None else os.getppid()  # of whom to signal
            print_json({"url": url, "pid": pid, "models": [*models]})
        else:
            served = [*models, *(applications.names or ("applications",) if applications else ())]
            err.print(f"{', '.join(served)} at {plain(url)} (docs: {plain(url)}/docs)", soft_wrap=True)
            if line := ask_line(url, [*models.values()], keyed=settings.keys_file is not None):
                err.print(plain(line), soft_wrap=True)

    collect_rarely()
    with ExitStack() as steps:
        progress = steps.enter_context(status_line())
        run(serve_models(models, opening, address, settings, on_started=started, progress=progress))
