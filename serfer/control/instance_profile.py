"""How fast an instance is, as `serfer study tune` measured it, and the scenario of a deployment as text."""

from __future__ import annotations

import json
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serfer.control.scenario import InstanceType, Scenario, parse_scenario
from serfer.core.errors import InputError
from serfer.files import read_text

_MOST_BYTES = 64 * 1024
_FUNCTIONS = {"usd_per_query": 1, "latency_ms": 1, "cold_ms": 0, "concurrency": 1, "memory_gb": 1, "keep_alive_s": 0}
_OF_INSTANCE = ("usd_per_hour", "spot_usd_per_hour", "boot_s", "min_billing_s", "qps")


@dataclass(frozen=True)
class Profile:
    """The measurements of `serfer study tune` on an instance; `slo_ms` is the objective that its `qps` holds for."""

    instance: InstanceType
    slo_ms: float


def parse_profile(file: Path, slo_ms: float, usd_per_hour: float) -> Profile:
    """Read the one [[instance]] table of a file, at a price; raises InputError that does not name the file."""
    instance = {**_table(file), "usd_per_hour": usd_per_hour}
    scenario = parse_scenario({"slo_ms": slo_ms, "lambda": _FUNCTIONS, "instance": [instance]})
    return Profile(scenario.instance, scenario.slo_ms)


def _table(file: Path) -> dict[str, Any]:
    try:
        document = tomllib.loads(read_text(file, _MOST_BYTES))
    except (ValueError, RecursionError) as error:
        raise InputError(f"it is not TOML: {str(error)[:200]}") from error
    tables = document.get("instance")
    if set(document) != {"instance"} or not isinstance(tables, list) or len(tables) != 1:
        raise InputError("it should be one [[instance]] table, as serfer study tune writes it")
    if not isinstance(tables[0], dict):
        raise InputError("its [[instance]] is not a table")
    return tables[0]


def scenario_text(scenario: Scenario, digest: str) -> str:
    """Return the text of the scenario of a plan, which `parse_scenario` takes."""
    functions, kind = scenario.serverless, scenario.instance
    lines = [
        f"# The plan {digest}, by serfer deploy package: Lambda as the cost model predicts it,",
        "# an instance at the price of aws.toml and as fast as serfer study tune measured it.",
        f"slo_ms = {scenario.slo_ms!r}",
        "",
        "[lambda]",
        *(f"{name} = {getattr(functions, name)!r}" for name in _FUNCTIONS),
        "",
        "[[instance]]",
        f"name = {json.dumps(kind.name)}",
        *(f"{name} = {getattr(kind, name)!r}" for name in _OF_INSTANCE),
        f"batches = [{', '.join(f'[{size}, {ms!r}]' for size, ms in kind.batches)}]",
    ]
    return "\n".join(lines) + "\n"
