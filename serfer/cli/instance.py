"""`serfer instance`: one instance's server."""

# ruff: noqa: ARG001 - options that stand for a setting are read from settings_of(context)

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from serfer.api.entrypoints.instance import Idle, serve_instance
from serfer.api.entrypoints.process import collect_rarely
from serfer.api.entrypoints.serving import Address
from serfer.api.observability.logs import configure_logs
from serfer.cli.registry.options import RegistryOption
from serfer.cli.shared.display import plain
from serfer.cli.shared.options import (
    BY_OPTION,
    JsonOption,
    print_json,
    status_line,
)
from serfer.cli.shared.service_options import (
    LOOPBACK,
    AllowHostOption,
    AppsOption,
    DrainOption,
    HostOption,
    KeysOption,
    LogFormatOption,
    LogLevelOption,
    ModelsOption,
    PlansOption,
    PortOption,
    applications_of,
    check_logs,
    served_models,
)
from serfer.cli.shared.setting_options import settings_of
from serfer.cli.shared.terminal import err
from serfer.core.errors import UsageError
from serfer.core.units import MIB
from serfer.instance.network import Hardware
from serfer.instance.opening import Instance, InstanceChoices, measure_networks
from serfer.pipeline.event_loop import run
from serfer.settings import Settings

DeviceOption = Annotated[str, typer.Option(help="cuda, cpu, or auto: a GPU where ONNX Runtime can use one.")]
PrecisionOption = Annotated[
    str,
    typer.Option(
        help="fp32; fp16, faster on GPUs, and not quite the same answers; or int8, where the plan has it (register)."
    ),
]
ThreadsOption = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Processors that compute; by default all that there are.")
]


def instance(
    context: typer.Context,
    model: ModelsOption = None,
    plan: PlansOption = None,
    host: HostOption = "127.0.0.1",
    port: PortOption = 8000,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "fp32",
    max_batch: Annotated[
        int | None,
        typer.Option(help="Images computed at once (serfer study tune says how many); by default 16, and 64 on a GPU."),
    ] = None,
    window_ms: Annotated[
        float,
        typer.Option(help="How long a free engine waits for a full batch; 0: not at all (docs/how-to/instance.md)."),
    ] = 0.0,
    threads: ThreadsOption = None,
    memory_mb: Annotated[
        int | None,
        typer.Option(
            "--memory-mb",
            help="Memory of all networks together; those least recently used are unloaded when another needs room.",
            show_default="60% of the machine's or container's, 90% of a GPU's free memory; one network: no bound",
        ),
    ] = None,
    preload: Annotated[
        bool, typer.Option("--preload", help="Have all networks in memory at the start, not just the first one.")
    ] = False,
    registry: RegistryOption = None,
    app: AppsOption = None,
    instance_type: Annotated[
        str | None,
        typer.Option(
            "--instance-type",
            metavar="TYPE",
            help="With --registry: the variants that were registered for this type alone (serfer app register "
            "--instance).",
        ),
    ] = None,
    exit_when_idle_s: Annotated[
        float | None,
        typer.Option(min=1, help="End after so many seconds without a request of any kind, health included."),
    ] = None,
    auto_scaling_release: Annotated[
        bool, typer.Option("--auto-scaling-release", help="On EC2: leave the Auto Scaling group before ending idle.")
    ] = False,
    drain_s: DrainOption = None,
    keys: KeysOption = None,
    allow_host: AllowHostOption = None,
    log_level: LogLevelOption = "info",
    log_format: LogFormatOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Answer queries with whole networks, in batches, over HTTP, until SIGTERM (docs/how-to/instance.md).

    With no network named, these are the variants of SERFER_REGISTRY.
    """
    choices = InstanceChoices(Hardware(device, precision, threads), max_batch, window_ms, memory_mb, preload)
    check_logs(log_level, log_format)
    if auto_scaling_release and exit_when_idle_s is None:
        raise UsageError("--auto-scaling-release says what to do before ending idle: give --exit-when-idle-s")
    settings = settings_of(context)
    if registry or app or (settings.registry and not (model or plan)):
        if model or plan:
            raise UsageError("--registry takes the place of --model and --plan: give one of them")
        models, choices = _variants(choices, settings, registry, app, instance_type)
    else:
        if instance_type is not None:
            raise UsageError("--instance-type is about variants of a registry: give --registry")
        models = served_models(model, plan, choices=f"{BY_OPTION}; or --registry URL for its variants")
    idle = None
    if exit_when_idle_s is not None:
        idle = Idle(exit_when_idle_s, _release if auto_scaling_release else lambda: True)
    configure_logs(log_level, as_json=None if log_format == "auto" else log_format == "json", in_background=True)

    def started(url: str, ready: Instance) -> None:
        if not settings.keys_file and host not in LOOPBACK:
            may = "send queries, load and unload networks"
            err.print(f"serfer: anyone who reaches this address may {may}: give --keys to require an API key")
        _print_instance(url, ready, window_ms, as_json=as_json)

    with status_line() as progress:
        measured = measure_networks(models, choices, progress)
        collect_rarely()
        run(serve_instance(measured, Address(host, port), settings, idle=idle, on_started=started))


def _variants(
    choices: InstanceChoices, settings: Settings, registry: str | None, names: list[str] | None, kind: str | None
) -> tuple[dict[str, Path], InstanceChoices]:
    """Return the plan directories of applications' variants for instances, by name, and the choices with theirs."""
    from serfer.applications.opening import variants_for_instances  # noqa: PLC0415 - instances without a registry start faster

    options = applications_of(settings, registry, names)
    if options is None:
        raise UsageError("which registry? Give --registry, or set SERFER_REGISTRY")
    found = variants_for_instances(options, settings, kind)
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
            {"name": one.name, "status": one.status, "bytes": one.measured.size, "loss": one.measured.loss}
            for one in models
        ]
        memory = {"models": listed, "memory_bytes": ready.residents.bound}
        print_json({**about, **batching, "loss": known.loss, **memory})
        return
    names = ", ".join(plain(one.name) for one in models)
    how = f"{known.device}, {known.precision}, at most {known.max_batch} images at once"
    err.print(f"{names} at {plain(url)} ({how})", soft_wrap=True)
    for one in models:
        where = "" if len(models) == 1 else f" of {plain(one.name)} ({one.measured.size / MIB:,.0f} MB, {one.status})"
        err.print(
            f"the answers{where} differ from fp32 on a processor by {one.measured.loss:.1e} of the logits' range",
            soft_wrap=True,
        )
