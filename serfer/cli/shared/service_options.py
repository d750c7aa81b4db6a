"""Shared by the commands that serve over HTTP: their options, the models they mean, their hosts and logs."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import typer

from serfer.applications.opening import ApplicationOptions
from serfer.applications.scaling.spec import parse_instances
from serfer.cli.shared.display import print_table
from serfer.cli.shared.network_options import NO_OPTIONS, check_described, plan_of
from serfer.cli.shared.option_groups import NetworkFileOptions
from serfer.cli.shared.options import BY_OPTION, nothing_named, own_results, plan_directory, print_json, status_lines
from serfer.cli.shared.schema import given_settings
from serfer.cli.shared.service_commands import ServeCommand, ServiceOptions
from serfer.cli.shared.terminal import complain, err
from serfer.control.router import SERVERLESS
from serfer.control.selection import DEFAULT, make_selector
from serfer.core.errors import InputError, UsageError
from serfer.core.plan import ACTIVATIONS, Plan
from serfer.core.plan.window_plan import check_whole_images
from serfer.core.report import CLASSES
from serfer.local.server import listen
from serfer.pipeline.plan_choice import terms
from serfer.pipeline.prediction import kind_of
from serfer.plan_directory import COLD_DIRECTORY, is_code, is_network, load_cold_plan, load_plan
from serfer.settings import Settings, is_secret, origins
from serfer.splitter.network.zoo import ZOO, meant
from serfer.storage import check_known, redact

ARGUMENTS = "SERFER_DRIVER_ARGUMENTS"
"""The variable with the last arguments of a driver behind a balancer, a list in JSON; they hold passwords."""
BALANCERS = {
    *("network", "model", "plan", "demo", "size", "channels", "preprocess", "labels", "output", "weights_file"),
    *("random", "download", "show_config", "drivers", "host", "port", "store", "object_store", "workers", "results"),
    *("allow_host", "allow_hosts", "drain_s", "api_drain_s", "log_format", "as_json"),
}
"""Options that drivers do not have as they were given: they get plans, addresses and stores that follow from these."""
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_NAMED = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]{0,63})=(.+)")
_NAME = re.compile(r"[^A-Za-z0-9._-]+")


def served_models(
    names: Sequence[str] | None,
    plans: Sequence[str] | None,
    networks: Sequence[str] | None = None,
    file: NetworkFileOptions = NO_OPTIONS,
    *,
    deployed: bool = False,
    choices: str = BY_OPTION,
    quiet: bool = False,
) -> dict[str, Path]:
    """Return the plan directories to serve, by model name.

    `networks` are files, plan directories, names of a library or models of the zoo, and come first; `file` says what
    a file does not. It is `quiet` where the command that started this process has said what there is to say.
    Raises UsageError for two of one name, none at all, with the `choices`, or a file where functions are `deployed`;
    PlanError for a map plan.
    """
    models: dict[str, Path] = {}
    wanted = [
        *map(_network, networks or ()),
        *((name, None) for name in names or ()),
        *((None, plan) for plan in plans or ()),
    ]
    if not wanted:
        raise nothing_named(choices)
    places = [_place(text) for _, text in wanted if text]
    check_described(file, [place for place in places if is_network(place)])
    for name, text in wanted:
        if text is None:
            directory = plan_directory(None, name, again=True)
            called = (plan := load_plan(directory)).model
        else:
            match = _NAMED.fullmatch(text)
            directory = _place(text)
            if is_network(directory):
                with status_lines() as progress:
                    directory = plan_of(directory, file, progress, deployed=deployed, again=True)
            plan = load_plan(directory)
            called = match[1] if match else (_NAME.sub("-", plan.model).strip("-") or "network")
        check_whole_images(plan)
        if plan.untrained and not quiet:
            complain(f"{called} has random weights: its answers mean nothing")
        if called in models:
            raise UsageError(
                f"two models are called {called}: name one of them, NAME={_place(text) if text else directory}"
            )
        models[called] = directory
    return models


def check_service(host: str, port: int, settings: Settings) -> None:
    """Refuse a file of API keys that cannot be used, and a port that is taken, before plans are made."""
    if settings.keys_file:
        from serfer.api.auth.keys import KeyRing  # noqa: PLC0415 - imports FastAPI, of what serves

        KeyRing(settings.keys_file, time.monotonic)
    listen(host, port).close()


def ask_line(url: str, directories: Sequence[Path], *, keyed: bool = False) -> str:
    """Return a line with the command that asks a service about an image; empty where its first model takes none."""
    plan = load_plan(directories[0]) if directories else None
    if plan is None or plan.preprocess is None:
        return ""
    lacks = [] if plan.labels else ["classes by number: labels=FILE.txt names them"]
    lacks += ["scores are the network's numbers: --output softmax"] if plan.activation == ACTIVATIONS[-1] else []
    said = f"    # {'; '.join(lacks)}" if lacks and plan.classifies else ""
    route, key = "classify" if kind_of(plan) == CLASSES else "predict", "-H 'X-API-Key: KEY' " * keyed
    return f"next: curl {key}-F image=@photo.jpg '{url}/v1/{route}'{said}"


def _place(text: str) -> Path:
    match = _NAMED.fullmatch(text)
    return Path(match[2] if match else text)


def _network(text: str) -> tuple[str | None, str | None]:
    place = _place(text)
    if text in ZOO and not place.exists():
        return text, None
    if not (place.exists() or is_network(place) or is_code(place)):
        raise InputError(
            f"{place} does not exist, and no network has that name{meant(text)}: give an .onnx file, a plan directory, "
            "timm:NAME, torchvision:NAME or a model of the zoo"
        )
    return None, text


def as_plans(models: Mapping[str, Path]) -> list[str]:
    return [
        f"--plan={name}={path}" if _NAMED.fullmatch(f"{name}={path}") else f"--plan={path}"
        for name, path in models.items()
    ]


def plans_of(directories: Iterable[Path], settings: Settings) -> list[tuple[Plan, Path]]:
    plans = [(load_plan(directory), directory) for directory in directories]
    if settings.cold_plan == "never":
        return plans
    found = [(load_cold_plan(directory, plan), directory / COLD_DIRECTORY) for plan, directory in plans]
    return [*plans, *((cold, directory) for cold, directory in found if cold)]


def least_concurrency(directories: Iterable[Path], settings: Settings) -> int:
    """Return how many invocations some model's query needs at once: members of a gang, or a cold plan's and a warm-up.

    0 where none needs more than one.
    """
    facts, least = settings.facts().functions, 0
    for directory in directories:
        (plan, _), *others = plans_of([directory], settings)
        least = max([least, plan.widest_gang, *(terms(plan, cold, 0, facts).least for cold, _ in others)])
    return least


def applications_of(settings: Settings, options: ServiceOptions, *, named: bool = False) -> ApplicationOptions | None:
    """Return the applications to serve, None for none; raises UsageError for options that cannot be.

    Where models are `named`, the registry of the settings alone asks for none.
    """
    url = options.registry or settings.registry
    instances, usd, selector = None, None, DEFAULT
    if isinstance(options, ServeCommand):
        instances, usd, selector = options.variant_instances, options.max_usd_per_hour, options.selector
    make_selector(selector)  # one that cannot be made is refused before anything starts
    asked = (options.registry or options.app or instances) or not (named or url is None)
    if not asked:
        return None
    if url is None:
        raise UsageError("--app and variant_instances are about applications: give --registry, or SERFER_REGISTRY")
    ceiling = settings.max_usd_per_hour if usd is None else usd
    if instances is not None and ceiling is not None and not 0 < ceiling < math.inf:
        raise UsageError(f"max_usd_per_hour is a number of dollars above 0, not {ceiling}")
    pools = parse_instances(instances) if instances is not None else ()
    return ApplicationOptions(url, tuple(dict.fromkeys(options.app)), pools, ceiling, selector=selector)


def ceiling_of_route(settings: Settings, options: ServeCommand) -> float | None:
    """Return the ceiling of --route: none where there is only that of instances of applications."""
    alone = options.variant_instances is not None and (options.route or settings.route) == SERVERLESS
    return None if alone else options.max_usd_per_hour


def start_log(level: str, form: str) -> None:
    from serfer.api.observability.logs import configure_logs  # noqa: PLC0415 - same

    configure_logs(level, as_json=None if form == "auto" else form == "json", in_background=True)


def warn_of_open_address(settings: Settings, host: str, may: str) -> None:
    if not settings.keys_file and host not in _LOOPBACK:
        err.print(f"serfer: anyone who reaches this address may {may}: give --keys to require an API key")


def print_config(context: typer.Context, settings: Settings, *, as_json: bool) -> None:
    rows = []
    for name, value, origin in origins(settings, given_settings(context)):
        shown: Any = value
        if is_secret(name):
            shown = "***" if value.get_secret_value() else None
        elif isinstance(value, Path | str):
            shown = redact(str(value))
        if as_json:
            print_json({"setting": name, "value": shown, "from": origin})
        else:
            rows.append((name, "" if shown is None else str(shown), origin))
    if not as_json:
        print_table(["setting", "value", "from"], rows, left=(0, 1, 2))


def with_results(settings: Settings, drivers: int) -> Settings:
    """Return settings with a store of results for several drivers: this user's own, unless one or none is set.

    Raises UsageError for one that cannot be.
    """
    if settings.results is not None:
        check_known("--results", settings.results)
    elif drivers and "results" not in settings.model_fields_set:
        return settings.model_copy(update={"results": own_results(settings)})  # which all of them read
    return settings
