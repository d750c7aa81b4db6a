"""AWS Lambda on one machine: its Invoke API, for unmodified boto3 clients and the AWS SDKs of others.

    boto3 ── POST /2015-03-31/functions/NAME/invocations ──> LambdaService ──> EnvironmentPool ──> Environment
                                                                  │ Event           ^                   │ Runtime API
                                                                  └──> EventQueue ──┘               awslambdaric

It lives on the running event loop and starts its workers from that loop's thread; they die with that thread
(`process.py`), so the thread must stay for as long as the service. What differs from AWS: one region and account, a
qualifier means $LATEST but for a published version in NAME:VERSION, /tmp is the machine's own, and whether a
synchronous payload is JSON is found out by the worker that has to parse it anyway (100 kB cost 0.16 ms to check), so
such a request may start an environment. GET /serfer/counts says what it has done so far (conditions.py), and POST
/serfer/plans adds a plan's functions (added_functions.py).

Every call must be signed with the service's credentials (access.py): loopback is open to all users of the
machine. What describes a function leaves out its variables, which hold passwords.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
import uuid
from base64 import b64decode, b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import unquote

from serfer.build_cache import in_use
from serfer.core.errors import InputError
from serfer.local.lambda_.access import Verifier, random_access
from serfer.local.lambda_.added_functions import PLANS, Additions, Provide
from serfer.local.lambda_.conditions import CONDITIONS, Conditions, Counts
from serfer.local.lambda_.environment import Invocation, Outcome
from serfer.local.lambda_.events import EventPolicy, EventQueue, Sleep
from serfer.local.lambda_.function import LATEST, FunctionConfig, check_function, describe, function_name
from serfer.local.lambda_.http_server import Exchange, HttpServer
from serfer.local.lambda_.pool import EnvironmentPool
from serfer.local.lambda_.socket_owner import check_supported
from serfer.local.server import local_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from serfer.core.costs.aws import LambdaFacts
    from serfer.core.sigv4 import Access

FUNCTIONS = "/2015-03-31/functions"
_ACCOUNT = "/2016-08-19/account-settings"
_INVOCATIONS = "/invocations"
_USED_EVERY_S = 3600.0
COUNTS = "/serfer/counts"


class LambdaService:
    """The service, its functions and all of their workers; `clock` and `sleep` are in seconds.

    `runtime` is the directory of `runtime_directory`; functions for other interpreters than this process's find theirs
    in `runtimes`, by the interpreter's path. `provide` makes the functions of a plan directory that a client names;
    without it none are added. `conditions` are the context's unless given. With `freezes` environments stand still
    between invocations, and one that starts in place of one that crashed starts in its function's own time, as in
    Lambda. Callers sign with `access`, random unless given; `wall_clock` is in seconds since the epoch.
    """

    def __init__(  # noqa: PLR0913 - settings, all but two with defaults
        self,
        functions: Iterable[FunctionConfig],
        *,
        facts: LambdaFacts,
        runtime: Path,
        runtimes: Mapping[Path, Path] | None = None,
        concurrency: int = 1000,
        keep_alive_s: float = 300.0,
        events: EventPolicy | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        on_log: Callable[[str], None] | None = None,
        provide: Provide | None = None,
        conditions: Conditions | None = None,
        freezes: bool = False,
        access: Access | None = None,
        wall_clock: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._functions: dict[str, FunctionConfig] = {}
        self._sizes: dict[str, int] = {}
        self._facts = facts
        self._concurrency = concurrency
        clients = {Path(sys.executable): runtime, **(runtimes or {})}
        for function in functions:
            if function.interpreter not in clients:
                raise InputError(f"function {function.name}: give the directory of a runtime for {function.python}")
            if function.name in self._functions:
                raise InputError(f"two functions are named {function.name}")
            self._take(function, check_function(function, facts))
        self._additions = Additions(provide, facts, self._take) if provide else None
        self._policy = events or EventPolicy()
        self._address = (host, port)
        self._on_log = on_log
        self._clock = clock
        self._sleep = sleep
        self.access = access or random_access()
        self._verifier = Verifier(self.access, wall_clock)
        self._server: HttpServer | None = None
        self.counts = Counts()
        self._conditions = conditions or CONDITIONS.get()
        self._pool = EnvironmentPool(
            facts,
            clients,
            concurrency=2 * concurrency if self._conditions.twice else concurrency,
            keep_alive_s=keep_alive_s,
            clock=clock,
            on_log=on_log,
            counts=self.counts,
            conditions=self._conditions,
            freezes=freezes,
            sizes=self._sizes,
        )
        self._queues: dict[str, EventQueue] = {}
        self._forever: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        """The endpoint URL for boto3; of use once the service has started."""
        return local_url(*self._address)

    @property
    def environments(self) -> int:
        return self._pool.environments

    async def start(self) -> None:
        """Open the port; raises OSError if it is taken, UnavailableError if environments could not be guarded."""
        check_supported()
        host, port = self._address
        self._server = HttpServer(self._handle, self._limit)
        self._address = (host, self._server.listen(host, port))
        self._forever = [
            asyncio.create_task(self._pool.expire_forever(self._sleep)),
            asyncio.create_task(self._use_forever()),
        ]

    async def stop(self) -> None:
        """Close every port, drop what is in flight, kill every worker and wait for its end."""
        if self._server is not None:
            self._server.close()
        for task in self._forever:
            task.cancel()
        if self._additions is not None:
            await self._additions.stop()
        await self._pool.stop()
        for queue in self._queues.values():
            await queue.stop()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def _use_forever(self) -> None:
        """Mark functions' directories as used: the cache removes those that were not for a day or a week."""
        while True:
            for function in self._functions.values():
                in_use(function.directory)
            await self._sleep(_USED_EVERY_S)

    def _take(self, function: FunctionConfig, size: int) -> None:
        self._sizes.setdefault(function.name, size)
        self._functions.setdefault(function.name, function)

    def _limit(self, exchange: Exchange) -> int:
        if exchange.headers.get("x-amz-invocation-type") == "Event":
            return self._facts.async_payload_limit
        return self._facts.sync_payload_limit

    def _handle(self, exchange: Exchange) -> None:
        if refusal := self._verifier.refusal(exchange, by_head=exchange.oversize):  # which has no body
            refuse(exchange, 403, *refusal)
        elif exchange.oversize:
            self._refuse_oversize(exchange)
        else:
            self._route(exchange)

    def _route(self, exchange: Exchange) -> None:
        path = exchange.target.partition("?")[0]
        if not path.startswith(FUNCTIONS):
            self._route_other(exchange, path)
            return
        reference = path[len(FUNCTIONS) + 1 :]
        if exchange.method == "POST" and reference.endswith(_INVOCATIONS):
            self._invoke(exchange, reference[: -len(_INVOCATIONS)])
        elif exchange.method == "GET" and not reference:
            send(
                exchange,
                {
                    "Functions": [
                        describe(config, self._sizes[name])
                        for name, config in self._functions.items()
                        if config.version == LATEST
                    ]
                },
            )
        elif exchange.method == "GET":
            self._describe(exchange, reference)
        else:
            refuse(exchange, 405, "UnknownOperationException", f"no {exchange.method} here")

    def _route_other(self, exchange: Exchange, path: str) -> None:
        if exchange.method == "GET" and path == COUNTS:
            send(exchange, self.counts.as_dict())
        elif exchange.method == "GET" and path.removesuffix("/") == _ACCOUNT:
            limits = dict.fromkeys(("ConcurrentExecutions", "UnreservedConcurrentExecutions"), self._concurrency)
            send(exchange, {"AccountLimit": limits})
        elif exchange.method == "POST" and path == PLANS and self._additions is not None:
            self._additions.take(exchange)
        else:
            refuse(exchange, 404, "UnknownOperationException", "the local Lambda service knows /2015-03-31/functions")

    def _describe(self, exchange: Exchange, reference: str) -> None:
        function = self._find(exchange, reference.removesuffix("/configuration"))
        if function is None:
            return
        configuration = describe(function, self._sizes[function.reference])
        whole = {"Configuration": configuration, "Code": {"RepositoryType": "S3"}}
        send(exchange, configuration if reference.endswith("/configuration") else whole)

    def _find(self, exchange: Exchange, reference: str) -> FunctionConfig | None:
        function = self._functions.get(unquote(reference)) or self._functions.get(function_name(reference))
        if function is None:
            refuse(exchange, 404, "ResourceNotFoundException", f"Function not found: {function_name(reference)}")
        return function

    def _invoke(self, exchange: Exchange, reference: str) -> None:
        function = self._find(exchange, reference)
        if function is None:
            return
        kind = exchange.headers.get("x-amz-invocation-type", "RequestResponse")
        if kind != "DryRun" and self._conditions.throttles():
            self.counts.throttled += 1
            _throttle(exchange)
        elif kind == "RequestResponse":
            latency_s = self._conditions.latency_s()
            if latency_s:
                asyncio.get_running_loop().call_later(latency_s, self._invoke_now, exchange, function)
            else:
                self._invoke_now(exchange, function)
        elif kind not in ("Event", "DryRun"):
            refuse(exchange, 400, "InvalidParameterValueException", f"there is no invocation type {kind}")
        elif problem := _json_problem(exchange.body):
            refuse(exchange, 400, "InvalidRequestContentException", problem)
        elif kind == "Event":
            self._take_event(exchange, function)
        else:
            executed = {"X-Amz-Executed-Version": function.version}
            exchange.reply(204, b"", {"x-amzn-RequestId": str(uuid.uuid4()), **executed})

    def _refuse_oversize(self, exchange: Exchange) -> None:
        kind = exchange.headers.get("x-amz-invocation-type", "RequestResponse")
        message = f"{exchange.length} byte payload is too large for the {kind} invocation type"
        refuse(exchange, 413, "RequestTooLargeException", f"{message} (limit {self._limit(exchange)} bytes)")

    def _take_event(self, exchange: Exchange, function: FunctionConfig) -> None:
        request_id = str(uuid.uuid4())
        queue, payload = self._queue(function), exchange.body or b"{}"
        queue.put(request_id, payload)
        self.counts.events += 1
        if self._conditions.twice:
            queue.put(request_id, payload)
            self.counts.doubled += 1
        exchange.reply(202, b"", {"x-amzn-RequestId": request_id})

    def _invoke_now(self, exchange: Exchange, function: FunctionConfig) -> None:
        asked = exchange.headers
        try:
            headers = _runtime_headers(asked)
        except ValueError as error:
            refuse(exchange, 400, "InvalidRequestContentException", f"Client context must be base64 JSON: {error}")
            return
        invocation = Invocation(
            request_id=str(uuid.uuid4()),
            payload=exchange.body or b"{}",
            done=lambda outcome: _answer(exchange, invocation, outcome, function.version),
            tail=asked.get("x-amz-log-type") == "Tail",
            headers=headers,
        )
        if not self._pool.dispatch(function, invocation):
            _throttle(exchange)

    def _queue(self, function: FunctionConfig) -> EventQueue:
        reference = function.reference
        if reference not in self._queues:
            self._queues[reference] = EventQueue(
                lambda invocation: self._pool.dispatch(self._functions[reference], invocation),  # as it is by then
                self._policy,
                clock=self._clock,
                sleep=self._sleep,
                on_drop=lambda message: self._on_log(f"{function.name}: {message}") if self._on_log else None,
            )
        return self._queues[reference]


def _answer(exchange: Exchange, invocation: Invocation, outcome: Outcome, version: str) -> None:
    if outcome.error == "Runtime.UnmarshalError":  # the worker's word for a payload that is not JSON
        refuse(exchange, 400, "InvalidRequestContentException", "Could not parse request body into json")
        return
    headers = {
        "Content-Type": "application/json",
        "x-amzn-RequestId": invocation.request_id,
        "X-Amz-Executed-Version": version,
    }
    if outcome.error:
        headers["X-Amz-Function-Error"] = "Unhandled"
    if invocation.tail:
        headers["X-Amz-Log-Result"] = b64encode(outcome.log).decode()
    exchange.reply(200, outcome.payload, headers)


def _runtime_headers(headers: dict[str, str]) -> dict[str, str]:
    result = {}
    if trace := headers.get("x-amzn-trace-id"):
        result["Lambda-Runtime-Trace-Id"] = trace
    if context := headers.get("x-amz-client-context"):
        result["Lambda-Runtime-Client-Context"] = json.dumps(json.loads(b64decode(context, validate=True)))
    return result


def _json_problem(body: bytes) -> str:
    try:
        json.loads(body or b"{}")
    except ValueError as error:
        return f"Could not parse request body into json: {error}"
    return ""


def send(exchange: Exchange, answer: dict[str, object], status: int = 200) -> None:
    headers = {"Content-Type": "application/json", "x-amzn-RequestId": str(uuid.uuid4())}
    exchange.reply(status, json.dumps(answer).encode(), headers)


def _throttle(exchange: Exchange) -> None:
    refuse(exchange, 429, "TooManyRequestsException", "Rate Exceeded.", "ConcurrentInvocationLimitExceeded")


def refuse(exchange: Exchange, status: int, kind: str, message: str, reason: str | None = None) -> None:
    body = {"Type": "User", "message": message, "Message": message}
    if reason is not None:
        body["Reason"] = reason
    headers = {"Content-Type": "application/json", "x-amzn-RequestId": str(uuid.uuid4()), "x-amzn-ErrorType": kind}
    exchange.reply(status, json.dumps(body).encode(), headers)
