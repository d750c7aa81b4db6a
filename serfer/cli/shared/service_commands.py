"""The options of `serfer serve` and `serfer instance`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from serfer.cli.shared.option_groups import JsonOptions, NetworkFileOptions, RegistryOptions
from serfer.core.options import argument, option
from serfer.wiring.pipeline_options import PipelineOptions


@dataclass(frozen=True, kw_only=True)
class ServiceOptions(RegistryOptions, JsonOptions):
    """Which networks are served over HTTP, where, to whom, and its log."""

    model: tuple[str, ...] = option((), "A model of the zoo; of several, the first is the default.", metavar="NAME")
    plan: tuple[str, ...] = option((), "A plan directory or an .onnx file; may be repeated.", metavar="[NAME=]DIR")
    host: str = option("127.0.0.1", "The address to listen at; 0.0.0.0 is all there are.", setting="host")
    port: int = option(8000, "The port; 0 is any free one.", least=0, most=65535, setting="port")
    drain_s: float | None = option(
        None, "Seconds that new requests are still taken after SIGTERM.", least=0, most=900, setting="api_drain_s"
    )
    keys: Path | None = option(None, "A file of API keys (serfer keys add); none: no key needed.", setting="keys_file")
    app: tuple[str, ...] = option(
        (),
        "With --registry: an application to answer for, by variants that its queries' objectives select; may be "
        "repeated. Without it, all that the registry has.",
        metavar="NAME",
    )
    allow_host: tuple[str, ...] = option(
        (),
        "Without keys: a host name or address that requests may come for, besides this machine's own and --host, and "
        "pages from, at any port or at PORT alone, besides the service's own; may be repeated.",
        metavar="NAME[:PORT]",
        setting="allow_hosts",
    )
    log_level: Literal["debug", "info", "warning", "error"] = option(
        "info", "debug, info, warning or error.", setting="log_level"
    )
    log_format: Literal["json", "text", "auto"] = option(
        "auto", "json, text, or auto: text on a terminal.", setting="log_format"
    )


@dataclass(frozen=True, kw_only=True)
class ServeCommand(ServiceOptions, PipelineOptions, NetworkFileOptions):
    """Answer queries over HTTP, with all that this takes on this machine, until Ctrl-C (docs/reference/api.md).

    A plan of one function is computed in this process. For others, store and functions are started here as well, unless
    --store, --workers or --stack say where they are. Options win over SERFER_* variables, and these over serfer.toml
    (docs/reference/settings.md). With no network named, it serves the applications of SERFER_REGISTRY.
    """

    command: ClassVar[str] = "serve"
    line: ClassVar[str] = (
        "model plan output demo host port drivers store workers stack keys registry app route instances show_config "
        "as_json"
    )

    network: tuple[str, ...] = argument(
        (),
        "A plan directory, an .onnx file, timm:NAME, torchvision:NAME, or a model of the zoo.",
        metavar="[[NAME=]NETWORK]...",
    )
    demo: bool = option(False, "Take efficientnet-lite0 of the zoo, which knows ImageNet's classes; planned once.")
    drivers: int = option(0, "Drivers behind a load balancer; 0: this process.", least=0, most=64, setting="drivers")
    cache_s: float = option(0.0, "Keep answers in the store for so many seconds; 0: keep none.")
    in_flight: int | None = option(None, "Queries that run at once.", least=1, most=10_000, setting="api_in_flight")
    queue: int | None = option(None, "Queries that wait for their turn.", least=0, most=10_000, setting="api_queue")
    results: str | None = option(
        None,
        "A store for results that are too large for an answer (docs/how-to/dense-outputs.md); none keeps none.",
        metavar="URL",
        setting="results",
        own_default=True,
    )
    variant_instances: str | None = option(
        None,
        "With --registry: the instances that run variants for instances, started and stopped as the load changes: "
        "local or local:N (processes here), ec2:GROUP (an Auto Scaling group), static:URL,URL (instances of yours); of "
        "several types, one for each: TYPE=ec2:GROUP,TYPE=static:URL|URL.",
        metavar="SPEC",
    )
    selector: str = option(
        "infaas", "With --registry: what selects variants: infaas, a plug-in or MODULE:Class.", metavar="NAME"
    )
    open_registry: bool = option(False, "Without keys: let anyone change applications.", setting="open_registry")
    route: str | None = option(
        None,
        "Where queries of the first model run: serverless (the plan's functions), auto (bursts there, load that lasts "
        "on instances), gpu (instances alone), or a policy by name or as MODULE:Class (docs/how-to/routing.md).",
        setting="route",
        own_default=True,
        shown="serverless",
    )
    instances: str | None = option(
        None,
        "The pool of instances: local (processes here), static:URL,URL (servers of yours), ec2:GROUP (an Auto Scaling "
        "group); of several types, one for each: TYPE=ec2:GROUP,TYPE/spot=ec2:GROUP,TYPE=static:URL|URL.",
        metavar="SPEC",
        setting="instances",
        own_default=True,
    )
    scenario: Path | None = option(
        None,
        "Prices and speeds that routing uses (docs/explanation/policies.md).",
        metavar="FILE.toml",
        setting="scenario_file",
        own_default=True,
    )
    max_usd_per_hour: float | None = option(
        None,
        "With --route: what functions and instances may cost together in any hour; then 429. With variant_instances: "
        "what its instances may cost an hour; then no more are started.",
        setting="max_usd_per_hour",
        own_default=True,
    )
    keep_warm: str | None = option(
        None,
        "Ping functions by windows that are learnt from idle times: lsth, hybrid; or for so many seconds after a query "
        "(docs/how-to/keep-warm.md).",
        metavar="WINDOWS",
        setting="keep_warm",
        own_default=True,
    )
    show_config: bool = option(False, "Print every setting, and the option, variable or file it comes from; stop.")


@dataclass(frozen=True, kw_only=True)
class InstanceCommand(ServiceOptions):
    """Answer queries with whole networks, in batches, over HTTP, until SIGTERM (docs/how-to/instance.md).

    With no network named, these are the variants of SERFER_REGISTRY.
    """

    command: ClassVar[str] = "instance"
    line: ClassVar[str] = "model plan host port keys registry app device precision max_batch window_ms as_json"

    device: str = option("auto", "cuda, cpu, or auto: a GPU where ONNX Runtime can use one.")
    precision: str = option("fp32", "fp32; fp16: faster on GPUs, not quite exact; or int8, where the plan has it.")
    threads: int | None = option(None, "Processors that compute; by default all that there are.", least=1, most=1024)
    max_batch: int | None = option(None, "Images computed at once (serfer study tune); by default 16, 64 on a GPU.")
    window_ms: float = option(0.0, "How long a free engine waits for a full batch; 0: not (docs/how-to/instance.md).")
    memory_mb: int | None = option(
        None,
        "Memory of all networks together; those least recently used are unloaded when another needs room.",
        shown="60% of the machine's or container's, 90% of a GPU's free memory; one network: no bound",
    )
    preload: bool = option(False, "Have all networks in memory at the start, not just the first one.")
    instance_type: str | None = option(None, "With --registry: variants registered for this type.", metavar="TYPE")
    exit_when_idle_s: float | None = option(None, "End after so many seconds without any request.", least=1)
    auto_scaling_release: bool = option(False, "On EC2: leave the Auto Scaling group before ending idle.")
