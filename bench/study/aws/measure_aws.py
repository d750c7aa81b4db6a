"""Measure AWS' constants by a deployment that is there for the run alone: `serfer study measure-aws build --max-usd 1`.

It deploys, queries and deletes as `serfer deploy smoke` does; in between it invokes the first stage's function. What
is measured has to reach its store from here: a store in S3.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from serfer.cli.deploy import BuildArgument, EnvironmentArgument, open_stack
from serfer.cli.shared.options import JsonOption
from serfer.cli.shared.terminal import complain
from serfer.core.errors import QueryError, UsageError
from serfer.files import write_whole
from serfer.sam.deployment import GENERATIONS
from serfer.sam.smoke import Budget, Order, OverBudgetError, Say, Smoke, ask, deploy, prepare
from serfer.settings import Settings, load_settings
from serfer.storage import open_store
from serfer.wiring.deployed import deployed_functions, find_deployment
from serfer_bench.core.tables import Results, Table, publish
from serfer_bench.study.aws.findings import Findings, Priced, predicted_usd
from serfer_bench.study.aws.measure import Samples
from serfer_bench.study.aws.probe import Extent, Probe, Step, input_bytes, steps
from serfer_bench.study.aws.probed_function import ProbedFunction

_MB_PER_GB = 1024
_SNAPSHOT_S = 3 * 3600  # a SnapStart snapshot is billed for at least three hours
_STORES = ("s3", "s3express")
_MODULES = ("probe.py", "probed_function.py", "measure.py", "tails.py", "findings.py")


@dataclass(frozen=True)
class Measurement(Smoke):
    """A run that measures besides."""

    extent: Extent = field(default_factory=Extent)

    @property
    def priced(self) -> Priced:
        deployed = self.bill.deployed
        return Priced(deployed.facts, deployed.options.architecture, deployed.table)

    @property
    def snapstart(self) -> str:
        without = self.bill.deployed.facts.regions_without.get("snapstart", ())
        return f"{self.region} has no SnapStart" if self.region in without else ""

    @property
    def estimated_usd(self) -> float:
        """Dollars of a whole run, rather too many: a snapshot and all steps besides."""
        memory_gb = self.plan.stages[0].memory_mb / _MB_PER_GB
        snapshot = self.priced.functions.price_snapstart_cached * _SNAPSHOT_S * memory_gb
        return super().estimated_usd + snapshot + sum(map(self.step_usd, steps(self.plan, self.extent)))

    def step_usd(self, step: Step) -> float:
        """Return the dollars of a step, rather too many: as if each invocation started its environment."""
        moved = 2 * input_bytes(self.plan, step.images)
        cold = predicted_usd(self.plan, self.priced, step.memory_mb, moved, images=step.images, cold=True)
        restored = step.restored * self.priced.functions.price_snapstart_restored * step.memory_mb / _MB_PER_GB
        return step.invocations * (cold + restored)


def plan_measurement(order: Order, settings: Settings, extent: Extent) -> Measurement:
    run = prepare(order, settings)
    if (store := run.bill.deployed.options.store) not in _STORES:
        raise UsageError(f"only a store in S3 is reached from here: package with --store s3 or s3express, not {store}")
    if run.bill.deployed.driver_runs:
        raise UsageError("the driver runs the plan itself, there is no stage to time: package with driver_runs=never")
    measurement = Measurement(order, run.plan, run.stack, run.bill, settings, extent)
    measurement.check()
    return measurement


def measure_aws(run: Measurement, session: Any, say: Say) -> Findings:  # noqa: ANN401 - boto3 has no types here
    with deploy(run, session, say) as budget:
        samples = _probe(run, session, budget)  # first, while no environment is there
        try:
            ask(run, session, budget, say)
        except OverBudgetError as stop:
            samples.missing.append(str(stop))
        for reason in samples.missing:
            say(f"not measured: {reason}")
        where = f"{run.region}, {run.plan.model} {run.plan.digest[:12]}, {run.plan.stages[0].memory_mb} MB"
        found = Findings(run.plan, samples, run.priced, where, datetime.now(UTC).date().isoformat())
        if not found.facts:
            raise QueryError("nothing was measured")
        return found


def _probe(run: Measurement, session: Any, budget: Budget) -> Samples:  # noqa: ANN401 - same
    deployment, client = find_deployment(run.stack), session.client("lambda")
    part = 0, run.plan.stages[0].tiles[0].function
    home, number = run.plan.home(*part)
    code = run.order.build / GENERATIONS / run.plan.digest[:12] / "functions" / f"{home}-{number}"
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
                    run.extent,
                    run.snapstart,
                )
                return await probe.run()
        finally:
            await invoker.close()

    return asyncio.run(measured(deployment.store))


def command(
    build: BuildArgument,
    environment: EnvironmentArgument = "dev",
    max_usd: Annotated[float, typer.Option(help="Spend no more, by the price model.")] = 1.0,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE.toml", help="Write what was measured there, for SERFER_AWS_FILE, and a record into FILE.json."
        ),
    ] = Path("aws-measured.toml"),
    at_once: Annotated[
        int,
        typer.Option(
            min=1,
            max=1000,
            help="The largest group of starts at once, six times, after groups of 4, 16 and 64 that are smaller.",
        ),
    ] = 64,
    as_json: JsonOption = False,
) -> None:
    """Deploy a stack of its own, NAME-smoke, measure AWS by it, query it, and delete it, however the run ends."""
    check_out(out)
    with open_stack(build, environment) as (settings, session):
        os.environ["AWS_DEFAULT_REGION"] = settings.region  # of the clients that know no samconfig.toml, and of SAM CLI
        run = plan_measurement(Order(build, settings, max_usd), load_settings(), Extent.up_to(at_once))
        found = measure_aws(run, session, complain)
        write_whole(out, found.toml.encode())
    complain(f"written: {out}; use it by SERFER_AWS_FILE={out}")
    words = f"serfer study measure-aws BUILD {environment} --max-usd {max_usd:g} --at-once {at_once}"
    write_whole(out.with_suffix(".json"), json.dumps(record_of(found, words), indent=1).encode())
    complain(f"written: {out.with_suffix('.json')}; serfer bench results reads it from docs/results/data")
    tables = found.tables()
    shown = [Table([*table[0]], [[*row.values()] for row in table]) for table in tables]
    publish(Results([row for table in tables for row in table], shown), as_json=as_json)


def check_out(out: Path) -> None:
    """Raise UsageError where nothing can be written to FILE.toml, or the record would be written there."""
    if not out.absolute().parent.is_dir():
        raise UsageError(f"--out {out}: there is no directory {out.absolute().parent}")
    if out.suffix == ".json":
        raise UsageError(f"--out {out}: the record is written there: name a file FILE.toml")


def record_of(found: Findings, words: str) -> dict[str, Any]:
    files = [Path(__file__).with_name(name) for name in _MODULES]
    several = f"{found.where}: {len(found.samples.warm)} warm invocations, {len(found.samples.cold)} starts"
    return {
        "command": words,
        "kind": "measured",
        "seeds": "",
        "samples": "; not measured: ".join([several, *found.samples.missing]),
        "files": {f"bench/study/aws/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest() for file in files},
        "date": found.date,
        "commit": "",
        "machine": "",
        "tables": [{"head": [*table[0]], "rows": [[*row.values()] for row in table]} for table in found.tables()],
    }
