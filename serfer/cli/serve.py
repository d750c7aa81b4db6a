"""`serfer serve`: one driver's HTTP service, for a container or an instance."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

import typer

from serfer.cli import display
from serfer.cli.options import (
    DriverOption,
    JsonOption,
    ObjectStoreOption,
    StackOption,
    StoreOption,
    WorkersOption,
    check_named,
    plan_directory,
    print_json,
    status_line,
)
from serfer.cli.terminal import err
from serfer.core.errors import UsageError
from serfer.settings import Settings, load_settings, settings_with
from serfer.wiring.options import workers_of

_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})=(.+)")
_OWN = ("127.0.0.1", "::1", "localhost")
_NAME = re.compile(r"[^A-Za-z0-9._-]+")

ModelsOption = Annotated[
    list[str] | None, typer.Option("--model", help="A model of the zoo; may be repeated. The first one is the default.")
]
PlansOption = Annotated[
    list[str] | None,
    typer.Option("--plan", metavar="[NAME=]DIR", help="A plan directory, from serfer split; may be repeated."),
]
HostOption = Annotated[str, typer.Option(help="The address to listen at; 0.0.0.0 is all there are.")]
KeysOption = Annotated[
    Path | None, typer.Option("--keys", help="A file of API keys (serfer keys add); without one, anybody may ask.")
]
AllowHostOption = Annotated[
    list[str] | None,
    typer.Option(
        "--allow-host",
        metavar="NAME",
        help="Without keys: a host name or address that requests may come for, and pages from, besides this machine's "
        "own and --host; may be repeated.",
        show_default="SERFER_ALLOW_HOSTS",
    ),
]
RouteOption = Annotated[
    str | None,
    typer.Option(
        help="Where queries of the first model run: serverless (the plan's functions), auto (bursts there, load that "
        "lasts on instances), gpu (instances alone), or a policy by name (docs/how-to/routing.md).",
        show_default="serverless",
    ),
]
InstancesOption = Annotated[
    str | None,
    typer.Option(
        metavar="SPEC",
        help="The pool of instances: local (processes here), static:URL,URL (servers of yours), ec2:GROUP (an Auto "
        "Scaling group).",
    ),
]
ScenarioOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE.toml", help="Prices and speeds that routing uses (docs/explanation/policies.md)."),
]
CeilingOption = Annotated[
    float | None,
    typer.Option("--max-usd-per-hour", help="What functions and instances may cost together in any hour; then 429."),
]


def serve(
    model: ModelsOption = None,
    plan: PlansOption = None,
    host: HostOption = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 is any free one.")] = 8000,
    store: StoreOption = None,
    object_store: ObjectStoreOption = None,
    workers: WorkersOption = None,
    stack: StackOption = None,
    driver: DriverOption = "push",
    cache_s: Annotated[
        float, typer.Option("--cache-s", help="Keep answers in the store for so many seconds; 0: keep none.")
    ] = 0.0,
    in_flight: Annotated[int | None, typer.Option(min=1, max=10_000, help="Queries that run at once.")] = None,
    queue: Annotated[int | None, typer.Option(min=0, max=10_000, help="Queries that wait for their turn.")] = None,
    drain_s: Annotated[
        float | None, typer.Option(min=0, max=900, help="Seconds that new requests are still taken after SIGTERM.")
    ] = None,
    keys: KeysOption = None,
    allow_host: AllowHostOption = None,
    route: RouteOption = None,
    instances: InstancesOption = None,
    scenario: ScenarioOption = None,
    max_usd_per_hour: CeilingOption = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
    log_format: Annotated[str, typer.Option(help="json, text, or auto: text on a terminal.")] = "auto",
    as_json: JsonOption = False,
) -> None:
    """Answer queries over HTTP, as one driver, until SIGTERM: what runs is answered first (docs/reference/api.md)."""
    from serfer.api.entrypoints.serving import Address, Opening, serve_models  # noqa: PLC0415 - same
    from serfer.api.observability.logs import configure_logs  # noqa: PLC0415 - the command line starts fast
    from serfer.fleet.open_pool import routing_of  # noqa: PLC0415 - same

    chosen = {"api_in_flight": in_flight, "api_queue": queue, "api_drain_s": drain_s, "keys_file": keys}
    settings = load_settings().model_copy(update={key: value for key, value in chosen.items() if value is not None})
    settings = with_hosts(settings, allow_host)
    if driver in {"push", "poll"}:  # a state machine starts its tasks itself, as many as it likes
        settings = settings.model_copy(update={"local_concurrency": settings.local_share()})
    check_logs(log_level, log_format)
    check_named(stack, model, plan)
    routing = routing_of(
        settings, route=route, instances=instances, scenario=scenario, max_usd_per_hour=max_usd_per_hour
    )
    models = served_models(model, plan)
    configure_logs(log_level, as_json=None if log_format == "auto" else log_format == "json")
    opening = Opening(store, workers_of(workers, stack, "local"), driver, object_store, cache_s, stack, routing)

    def started(url: str) -> None:
        if not settings.keys_file and host not in _OWN:
            err.print("serfer: anybody who reaches this address may ask: give --keys to let in those who have one")
        if as_json:
            print_json({"url": url, "pid": os.getpid(), "models": [*models]})
        else:
            err.print(f"{', '.join(models)} at {display.plain(url)} (docs: {display.plain(url)}/docs)", soft_wrap=True)

    with status_line() as progress:
        serve_models(models, opening, Address(host, port), settings, on_started=started, progress=progress)


def served_models(names: list[str] | None, plans: list[str] | None) -> dict[str, Path]:
    """Return the plan directories to serve, by model name; by default the zoo's own default.

    Raises UsageError for two of one name.
    """
    from serfer.plan_directory import load_plan  # noqa: PLC0415 - the command line starts fast

    found: dict[str, Path] = {}
    wanted = [*((name, None) for name in names or ()), *((None, each) for each in plans or ())]
    for name, text in wanted or [(None, None)]:
        if text is None:
            directory = plan_directory(None, name)
            called = load_plan(directory).model
        else:
            match = _NAMED.fullmatch(text)
            directory = Path(match[2] if match else text)
            called = match[1] if match else _NAME.sub("-", load_plan(directory).model)
        if called in found:
            raise UsageError(f"two models are called {called}: name one of them, --plan NAME=DIR")
        found[called] = directory
    return found


def with_hosts(settings: Settings, allowed: list[str] | None) -> Settings:
    """Return settings with the hosts of --allow-host, if it was given; raises UsageError for what is not a host."""
    return settings_with(settings, {"allow_hosts": tuple(allowed)}, "--allow-host") if allowed else settings


def check_logs(level: str, form: str) -> None:
    """Refuse what is not a level or format of logs; raises UsageError."""
    if level not in ("debug", "info", "warning", "error"):
        raise UsageError(f"--log-level is debug, info, warning or error, not {level!r}")
    if form not in ("json", "text", "auto"):
        raise UsageError(f"--log-format is json, text or auto, not {form!r}")
