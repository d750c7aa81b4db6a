"""Deploy a build, ask it, measure AWS by it, and delete it again: `serfer deploy smoke build --max-usd 1`.

The stack is one of its own, NAME-smoke, so that no deployment that serves is touched, and it is deleted however the
run ends. Only a deployment that answers from anywhere can be measured: function drivers, with a store in S3.
"""

from __future__ import annotations

import asyncio
import io
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from PIL import Image

from serfer.client.sync_client import Client
from serfer.core.costs.cost_model import HOURS_A_MONTH
from serfer.core.errors import (
    KeyRefusedError,
    QueryError,
    UnavailableError,
    UsageError,
    WrongAnswerError,
)
from serfer.core.plan import Plan
from serfer.core.retry import Backoff, RetryPolicy, retry
from serfer.files import write_whole
from serfer.sam.cost.bill import Bill, price_build
from serfer.sam.deployment import function_code, load_current_plan, load_deployment
from serfer.sam.findings import Findings, Priced, predicted_usd
from serfer.sam.measure import Samples
from serfer.sam.probe import Extent, OverBudgetError, Probe, Step, input_bytes, steps
from serfer.sam.probed_function import ProbedFunction
from serfer.sam.quotas import run_sam
from serfer.sam.samconfig import StackSettings
from serfer.sam.stacks import find_stack
from serfer.sam.teardown import forget_uploads, tear_down
from serfer.settings import Settings
from serfer.storage import open_store
from serfer.wiring.deployed import deployed_functions, find_deployment

_MB_PER_GB = 1024
QUERIES = 10
"""Queries to the REST API."""
_KEPT_HOURS = 3
"""Hours of fixed costs in the estimate: a SnapStart snapshot is billed for at least three."""
_OPENING = RetryPolicy("api key", KeyRefusedError, Backoff(2.0, 2.0), attempts=80)
_DRIVER_FUNCTION, _STORES = "function", ("s3", "s3express")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Order:
    """The order: deploy BUILD's plan with an environment's settings, spend `most_usd` at most, write `out`."""

    build: Path
    settings: StackSettings
    most_usd: float
    out: Path
    extent: Extent = field(default_factory=Extent)


class Budget:
    """The dollars that were spent, by the price model, and whether there are enough left for a step."""

    def __init__(self, most_usd: float) -> None:
        self.most_usd = most_usd
        self.spent_usd = 0.0

    def allow(self, step: str, usd: float) -> None:
        """Raise OverBudgetError where a step, estimated at so many dollars, is more than what is left."""
        left_usd = self.most_usd - self.spent_usd
        if usd > left_usd:
            raise OverBudgetError(
                f"{step}: estimated at ${usd:.4f}, and ${max(left_usd, 0.0):.4f} are left of --max-usd "
                f"{self.most_usd:g}: allow more"
            )

    def spend(self, usd: float) -> None:
        """Count dollars, which were spent whatever is left."""
        self.spent_usd += usd


@dataclass(frozen=True)
class Smoke:
    """A run that may begin: what it deploys, as which stack, and what that costs."""

    order: Order
    plan: Plan
    stack: str
    bill: Bill
    settings: Settings

    @property
    def region(self) -> str:
        """The region of the stack."""
        return self.order.settings.region

    @property
    def priced(self) -> Priced:
        """The facts by which invocations are priced."""
        deployed = self.bill.deployed
        return Priced(deployed.facts, deployed.options.architecture, deployed.table)

    @property
    def snapstart(self) -> str:
        """Why snapshots are not measured; nothing where they are."""
        without = self.bill.deployed.facts.regions_without.get("snapstart", ())
        return f"{self.region} has no SnapStart" if self.region in without else ""

    @property
    def estimated_usd(self) -> float:
        """Dollars of a whole run, rather too many: three hours of what costs without queries, a snapshot among it."""
        kept_s = _KEPT_HOURS * 3600
        snapshot = self.priced.functions.price_snapstart_cached * kept_s * self.plan.stages[0].memory_mb / _MB_PER_GB
        return (
            self.bill.idle_usd * _KEPT_HOURS / HOURS_A_MONTH
            + snapshot
            + sum(map(self.step_usd, steps(self.plan, self.order.extent)))
            + self.bill.cold.usd
            + QUERIES * self.bill.warm.usd
        )

    def step_usd(self, step: Step) -> float:
        """Return the dollars of a step, rather too many: as if each invocation started its environment."""
        moved = 2 * input_bytes(self.plan, step.images)
        cold = predicted_usd(self.plan, self.priced, step.memory_mb, moved, images=step.images, cold=True)
        restored = step.restored * self.priced.functions.price_snapstart_restored * step.memory_mb / _MB_PER_GB
        return step.invocations * (cold + restored)


def planned(order: Order, settings: Settings) -> Smoke:
    """Read BUILD and price the run; raises UsageError where it cannot be measured, or costs more than is allowed."""
    deployment = load_deployment(order.build)
    options = deployment.options
    if options.drivers != _DRIVER_FUNCTION or options.store not in _STORES:
        raise UsageError(
            f"deploy smoke measures what answers from here: package with --drivers function and --store s3 or "
            f"s3express, not {options.drivers} and {options.store}"
        )
    if not order.most_usd > 0:
        raise UsageError(f"--max-usd is a number of dollars above 0, not {order.most_usd:g}")
    if not order.out.parent.is_dir():
        raise UsageError(f"--out {order.out}: there is no directory {order.out.parent}")
    if order.out.suffix == ".json":
        raise UsageError(f"--out {order.out}: the record is written there: name a file FILE.toml")
    bill = price_build(order.build, settings.facts(), burst=1)
    plan = load_current_plan(order.build, deployment)
    run = Smoke(order, plan, f"{options.name}-smoke", bill, settings)
    if run.estimated_usd > order.most_usd:
        raise UsageError(
            f"deploy smoke is estimated at ${run.estimated_usd:.4f}, more than --max-usd {order.most_usd:g}: allow "
            "more, or package a smaller network"
        )
    return run


def smoke(order: Order, settings: Settings, session: Any, say: Say) -> Findings:  # noqa: ANN401 - boto3 has no types here
    """Do it all, leave nothing that bills, and return what was found, which is written to the order's file.

    Raises UsageError where it cannot be done or the stack is there already, UnavailableError where AWS or a part of the
    stack does not answer, WrongAnswerError or QueryError where a query goes wrong.
    """
    run = planned(order, settings)
    _check_account(run, session)
    say(f"{run.stack} in {run.region}: estimated ${run.estimated_usd:.4f}, at most ${order.most_usd:g}")
    budget, started = Budget(order.most_usd), time.monotonic()
    with _gone_at_the_end(run, session, say):
        try:
            _deploy(run)
            samples = _probe(run, session, budget)  # first, while no environment is there
            try:
                _ask(run, session, budget, say)
            except OverBudgetError as stop:
                say(f"not measured: {stop}")
                samples.missing.append(str(stop))
            return _found(run, samples, say)
        finally:
            hours = (time.monotonic() - started) / 3600
            usd = budget.spent_usd + run.bill.idle_usd * hours / HOURS_A_MONTH
            say(f"spent: ${usd:.4f}, estimated by the price model of serfer cost")


def _check_account(run: Smoke, session: Any) -> None:  # noqa: ANN401 - same
    """Raise UnavailableError without credentials, UsageError where the stack is there: another run's, perhaps."""
    if session.get_credentials() is None:
        raise UnavailableError("deploy smoke: no AWS credentials: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and its secret")
    if find_stack(session.client("cloudformation"), run.stack) is None:
        return
    raise UsageError(
        f"there is a stack {run.stack} in {run.region}: wait for the run that made it, or delete it by "
        f"serfer deploy destroy {run.order.build} --stack {run.stack}"
    )


@contextmanager
def _gone_at_the_end(run: Smoke, session: Any, say: Say) -> Iterator[None]:  # noqa: ANN401 - same
    """Delete the stack, however the block ends; a further Ctrl-C does not stop that."""
    try:
        yield
    finally:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            if find_stack(session.client("cloudformation"), run.stack) is None:
                forget_uploads(run.stack, session, say)
            else:
                tear_down(run.stack, session, say)
            say(f"{run.stack} is gone, and nothing of it bills")
        except BaseException:
            say(f"{run.stack} may be there still: serfer deploy destroy {run.order.build} --stack {run.stack}")
            raise
        finally:
            signal.signal(signal.SIGINT, before)


def _deploy(run: Smoke) -> None:
    environment = run.order.settings.environment
    run_sam(run.order.build, "build", "--config-env", environment)
    own = ("--stack-name", run.stack, "--s3-prefix", run.stack, "--tags", f"serfer:stack={run.stack}")
    run_sam(run.order.build, "deploy", "--config-env", environment, *own)


def _ask(run: Smoke, session: Any, budget: Budget, say: Say) -> None:  # noqa: ANN401 - same
    """Query the REST API with the stack's first key; raises WrongAnswerError for another plan or other answers."""
    if run.plan.preprocess is None:
        say("the plan does not say how an image becomes its input: the REST API is not queried")
        return
    budget.allow(f"{QUERIES} queries to the REST API", run.bill.cold.usd + QUERIES * run.bill.warm.usd)
    outputs, gateway = _outputs(run, session), session.client("apigateway")
    key = gateway.get_api_key(apiKey=outputs["ApiKeyId"], includeValue=True)["value"]
    answers, latencies = set(), []
    with Client(_reachable(outputs["Url"], gateway.meta.endpoint_url), api_key=key) as client:
        _until_open(client)
        for number in range(QUERIES):
            budget.spend(run.bill.warm.usd if number else run.bill.cold.usd)
            started = time.perf_counter()
            report = client.classify(_image(run.plan))
            latencies.append(time.perf_counter() - started)
            cold = run.bill.deployed.cold
            if report.plan not in {plan.digest for plan in (run.plan, cold) if plan}:
                raise WrongAnswerError(f"the plan {report.plan[:12]} answers, not {run.plan.digest[:12]}")
            answers.add(report.images[0].predictions[0].index)
    if len(answers) > 1:
        raise WrongAnswerError(f"one image is class {' and '.join(map(str, sorted(answers)))} in {QUERIES} queries")
    warm = sorted(latencies[1:])
    say(f"REST API: first query {latencies[0] * 1000:.0f} ms, then {warm[0] * 1000:.0f} to {warm[-1] * 1000:.0f} ms")


def _outputs(run: Smoke, session: Any) -> dict[str, str]:  # noqa: ANN401 - same
    [stack] = session.client("cloudformation").describe_stacks(StackName=run.stack)["Stacks"]
    return {each["OutputKey"]: each["OutputValue"] for each in stack["Outputs"]}


def _reachable(url: str, endpoint: str) -> str:
    """Return where a REST API answers: at its URL, or below an emulator's endpoint (AWS_ENDPOINT_URL) by its id."""
    if (urlsplit(endpoint).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn")):
        return url
    parts = urlsplit(url)
    return f"{endpoint}/_aws/execute-api/{(parts.hostname or '').partition('.')[0]}{parts.path}"


def _until_open(client: Client) -> None:
    """Wait until API Gateway takes a new key, which is some seconds after the stack is there."""
    retry(client.models, _OPENING, time.sleep)


def _image(plan: Plan) -> bytes:
    """Return a PNG as large as the plan's input: a gradient."""
    image = Image.radial_gradient("L").resize((plan.input.width, plan.input.height)).convert("RGB")
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()


def _probe(run: Smoke, session: Any, budget: Budget) -> Samples:  # noqa: ANN401 - same
    deployment, client = find_deployment(run.stack), session.client("lambda")
    part = 0, run.plan.stages[0].tiles[0].function
    code = function_code(run.order.build, run.plan, *part)
    function = ProbedFunction(client, run.plan.deployed(deployment.prefix, *part), code)

    async def measured(store_url: str) -> Samples:
        invoker = await deployed_functions(run.plan, deployment.settings(run.settings))
        try:
            with open_store(store_url) as store:
                probe = Probe(
                    run.plan,
                    invoker,
                    store,
                    function,
                    client.meta.endpoint_url,
                    lambda step: budget.allow(step.name, run.step_usd(step)),
                    lambda memory_mb, billed_ms: budget.spend(run.priced.usd(memory_mb, billed_ms)),
                    run.order.extent,
                    run.snapstart,
                )
                return await probe.run()
        finally:
            await invoker.close()

    return asyncio.run(measured(deployment.store))


def _found(run: Smoke, samples: Samples, say: Say) -> Findings:
    """Return what was measured, and write it where `serfer cost` can read it."""
    for reason in samples.missing:
        say(f"not measured: {reason}")
    where = f"{run.region}, {run.plan.model} {run.plan.digest[:12]}, {run.plan.stages[0].memory_mb} MB"
    found = Findings(run.plan, samples, run.priced, where, datetime.now(UTC).date().isoformat())
    if not found.facts:
        raise QueryError("deploy smoke measured nothing")
    write_whole(run.order.out, found.toml.encode())
    say(f"written: {run.order.out}; use it by SERFER_AWS_FILE={run.order.out}")
    return found
