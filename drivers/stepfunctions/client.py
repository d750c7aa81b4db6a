"""Executions of one state machine of AWS Step Functions, by way of botocore in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from serfer.core.errors import UnavailableError
from serfer.core.retry import Backoff
from serfer.drivers.clock import Clock
from serfer.drivers.stepfunctions.asl import EXPRESS_LIMIT_S

if TYPE_CHECKING:
    from botocore.credentials import Credentials

KINDS = ("standard", "express")
CONCURRENCY = 64  # executions at once, each of which may hold a connection
_MARGIN_S = 5  # a call waits for the longest execution
_POLLING = Backoff(base=0.05, longest=1.0, factor=1.5)  # s between two requests about an execution
_POLLS_PER_S = 10.0  # of all executions together: AWS allows 15
Client: TypeAlias = Any
"""botocore's client for Step Functions, which several threads may use at once."""
_CALLS = 16  # at once, where none waits for an execution's end


def connect(
    region: str, *, endpoint: str | None = None, credentials: Credentials | None = None, connections: int = CONCURRENCY
) -> Client:
    from botocore.config import Config  # noqa: PLC0415 - most commands never need it, and it takes its time
    from botocore.session import get_session  # noqa: PLC0415 - as above

    config = Config(
        max_pool_connections=connections,
        connect_timeout=_MARGIN_S,
        read_timeout=EXPRESS_LIMIT_S + _MARGIN_S,
        retries={"mode": "standard", "total_max_attempts": 3},
    )
    if endpoint:  # "sync-" before the host's name is AWS's alone; otherwise the environment may say so
        config = config.merge(Config(inject_host_prefix=False))
    return get_session().create_client(
        "stepfunctions",
        region_name=region,
        endpoint_url=endpoint,
        aws_access_key_id=credentials.access_key if credentials else None,
        aws_secret_access_key=credentials.secret_key if credentials else None,
        aws_session_token=credentials.token if credentials else None,
        config=config,
    )


@dataclass(frozen=True)
class Outcome:
    """The end of an execution, and its times, in seconds since the epoch by the service's clock.

    `clock` is what to add to such a time for the time on the driver's clock, as well as one can know.
    """

    status: str
    output: str
    error: str
    cause: str
    started: float
    ended: float
    clock: float


class Executions:
    """Runs executions of a state machine and waits for their ends, any number at once.

    `kind` is "standard", polled less and less often, or "express", of which at most `at_once` can be waited for.
    """

    def __init__(self, client: Client, arn: str, kind: str, at_once: int, clock: Clock) -> None:
        self._client = client
        self._arn = arn
        self._clock = clock
        self._run = {"standard": self._standard, "express": self._express}[kind]
        self._threads = ThreadPoolExecutor(
            at_once if kind == "express" else min(at_once, _CALLS), thread_name_prefix="serfer-step-functions"
        )
        self._in_flight = 0
        self.polls = 0

    async def run(self, name: str, text: str, expected_s: float) -> Outcome:
        """Run an execution with the input `text`; one of `expected_s` seconds is first polled when they are over.

        Cancelling stops a Standard execution; an Express one cannot be stopped, so its end is waited for. Raises
        UnavailableError where Step Functions does not answer, or refuses.
        """
        self._in_flight += 1
        try:
            return await self._run(name, text, expected_s)
        finally:
            self._in_flight -= 1

    def close(self) -> None:
        """Close the connections; calls that have not begun are abandoned."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def _standard(self, name: str, text: str, expected_s: float) -> Outcome:
        start = asyncio.ensure_future(self._start(name, text))
        try:
            arn, clock = await asyncio.shield(start)
            return _outcome(await self._await_end(arn, expected_s), clock)
        except asyncio.CancelledError:
            with suppress(UnavailableError):  # it has a time limit of its own
                await self._call(self._client.stop_execution, executionArn=(await start)[0])
            raise

    async def _start(self, name: str, text: str) -> tuple[str, float]:
        sent = self._clock.time()
        response = await self._call(self._client.start_execution, stateMachineArn=self._arn, name=name, input=text)
        return response["executionArn"], (sent + self._clock.time()) / 2 - response["startDate"].timestamp()

    async def _await_end(self, arn: str, expected_s: float) -> Any:  # noqa: ANN401 - botocore's
        await self._clock.sleep(max(0.0, expected_s - _POLLING.base))
        polls = 0
        while True:
            polls += 1
            await self._clock.sleep(max(_POLLING.wait(polls), self._in_flight / _POLLS_PER_S))
            description = await self._call(self._client.describe_execution, executionArn=arn)
            self.polls += 1
            if description["status"] != "RUNNING":
                return description

    async def _express(self, name: str, text: str, _expected_s: float) -> Outcome:
        sent = self._clock.time()
        call = asyncio.ensure_future(
            self._call(self._client.start_sync_execution, stateMachineArn=self._arn, name=name, input=text)
        )
        try:
            response = await asyncio.shield(call)
        except asyncio.CancelledError:
            await asyncio.gather(call, return_exceptions=True)
            raise
        middle = (response["startDate"].timestamp() + response["stopDate"].timestamp()) / 2
        return _outcome(response, (sent + self._clock.time()) / 2 - middle)

    async def _call(self, method: Callable[..., Any], **given: str) -> Any:  # noqa: ANN401 - botocore's
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415 - as in `connect`

        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, lambda: method(**given))
        except ClientError as error:
            code, message = (error.response["Error"].get(key, "") for key in ("Code", "Message"))
            raise UnavailableError(
                f"Step Functions refused {error.operation_name}, {code}: {message}; "
                "is SERFER_STATE_MACHINE the ARN of a machine of yours?"
            ) from error
        except BotoCoreError as error:
            raise UnavailableError(f"Step Functions cannot be reached: {error}") from error


def _outcome(description: Any, clock: float) -> Outcome:  # noqa: ANN401 - botocore's
    status, output, error, cause = (str(description.get(key) or "") for key in ("status", "output", "error", "cause"))
    return Outcome(
        status, output, error, cause, description["startDate"].timestamp(), description["stopDate"].timestamp(), clock
    )
