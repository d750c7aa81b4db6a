"""`serfer instance`: one instance's server."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import typer

from serfer.api.entrypoints.instance import Idle, serve_instance
from serfer.api.entrypoints.opening import Address
from serfer.api.entrypoints.process import collect_rarely
from serfer.cli.shared.display import plain
from serfer.cli.shared.options import BY_OPTION, print_json, status_line
from serfer.cli.shared.schema import settings_of
from serfer.cli.shared.service_commands import InstanceCommand
from serfer.cli.shared.service_options import (
    applications_of,
    check_service,
    served_models,
    start_log,
    warn_of_open_address,
)
from serfer.cli.shared.terminal import err
from serfer.core.errors import UsageError
from serfer.core.units import MIB
from serfer.instance.network import Hardware
from serfer.instance.opening import Instance, InstanceChoices, measure_networks
from serfer.pipeline.event_loop import run
from serfer.settings import Settings


def instance(options: InstanceCommand, context: typer.Context) -> None:
    hardware = Hardware(options.device, options.precision, options.threads)
    choices = InstanceChoices(hardware, options.max_batch, options.window_ms, options.memory_mb, options.preload)
    if options.auto_scaling_release and options.exit_when_idle_s is None:
        raise UsageError("auto_scaling_release says what to do before ending idle: give --set exit_when_idle_s=SECONDS")
    settings, named = settings_of(context), bool(options.model or options.plan)
    check_service(options.host, options.port, settings)
    if options.registry or options.app or (settings.registry and not named):
        if named:
            raise UsageError("--registry takes the place of --model and --plan: give one of them")
        models, choices = _variants(choices, settings, options)
    else:
        if options.instance_type is not None:
            raise UsageError("instance_type is about variants of a registry: give --registry")
        models = served_models(options.model, options.plan, choices=f"{BY_OPTION}; or --registry URL for its variants")
    idle = None
    if options.exit_when_idle_s is not None:
        idle = Idle(options.exit_when_idle_s, _release if options.auto_scaling_release else lambda: True)
    start_log(options.log_level, options.log_format)

    def started(url: str, ready: Instance) -> None:
        warn_of_open_address(settings, options.host, "send queries, load and unload networks")
        _print_instance(url, ready, options.window_ms, as_json=options.as_json)

    with status_line() as progress:
        measured = measure_networks(models, choices, progress)
        collect_rarely()
        run(serve_instance(measured, Address(options.host, options.port), settings, idle=idle, on_started=started))


def _variants(
    choices: InstanceChoices, settings: Settings, options: InstanceCommand
) -> tuple[dict[str, Path], InstanceChoices]:
    from serfer.applications.opening import variants_for_instances  # noqa: PLC0415 - instances without a registry start faster

    applications = applications_of(settings, options)
    if applications is None:
        raise UsageError("which registry? Give --registry, or set SERFER_REGISTRY")
    found = variants_for_instances(applications, settings, options.instance_type)
    own = {name: (variant.precision, variant.batch) for name, (variant, _) in found.items()}
    measured_on = {name: variant.measured_on for name, (variant, _) in found.items()}
    directories = {name: directory for name, (_, directory) in found.items()}
    return directories, replace(choices, own=own, measured_on=measured_on)


def _release() -> bool:
    from serfer.fleet.provisioners.auto_scaling import release_this_instance  # noqa: PLC0415 - only instances in EC2 need boto3

    return release_this_instance()


def _print_instance(url: str, ready: Instance, window_ms: float, *, as_json: bool) -> None:
    default, models = ready.default, [ready.residents[name] for name in ready.pipelines]
    known = default.measured
    if as_json:
        about = {"url": url, "pid": os.getpid(), "model": default.name, "device": known.device}
        batching = {"precision": known.precision, "max_batch": known.max_batch, "window_ms": window_ms}
        listed = [
            {"name": item.name, "status": item.status, "bytes": item.measured.size, "loss": item.measured.loss}
            for item in models
        ]
        memory = {"models": listed, "memory_bytes": ready.residents.bound}
        print_json({**about, **batching, "loss": known.loss, **memory})
        return
    names = ", ".join(plain(item.name) for item in models)
    how = f"{known.device}, {known.precision}, at most {known.max_batch} images at once"
    err.print(f"{names} at {plain(url)} ({how})", soft_wrap=True)
    for item in models:
        whose = f" of {plain(item.name)} ({item.measured.size / MIB:,.0f} MB, {item.status})" if len(models) > 1 else ""
        loss = f"{item.measured.loss:.1e} of the logits' range"
        err.print(f"the answers{whose} differ from fp32 on a processor by {loss}", soft_wrap=True)
