"""plan.json: what is executed of a plan, as text and back, sealed by a digest of itself."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, replace
from typing import Any

from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.errors import PlanError
from serfer.core.plan.layout import PLAN_FILE
from serfer.core.plan.model import Plan, PlanDescription
from serfer.core.plan.validation import check_sound

FORMAT = 11
OF_PLAN = ("limit", "changes", "ways", "store", "why", "alternatives", "cold_share", "times")
OF_STEP = ("predicted_ms", "predicted_usd")
OF_TILE = ("serial_ms", "parallel_ms")
"""Fields of a plan, of its stages and gangs, and of tiles that explanation.json has: the digest does not cover them."""


def _digest(executed: dict[str, Any]) -> str:
    if "as_split" in executed:
        now = {"as_split", *(field.name for field in fields(PlanDescription))}
        executed = {name: value for name, value in executed.items() if name not in now} | executed["as_split"]
    text = json.dumps({**executed, "digest": ""}, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _to_plain(plan: Plan) -> dict[str, Any]:
    plain: dict[str, Any] = unstructure(plan)
    tiles = [tile for stage in plain["stages"] for tile in stage["tiles"]]
    for records, names in (([plain], OF_PLAN), ([*plain["stages"], *plain["gangs"]], OF_STEP), (tiles, OF_TILE)):
        for record in records:
            for name in names:
                del record[name]
    for output in plain["outputs"]:
        if not output["sized_by"]:  # as plans of before such outputs have it
            del output["sized_by"], output["axis"]
    return plain


def sealed(plan: Plan) -> Plan:
    """Return the plan with its format and digest: SHA-256 of the canonical JSON of what is executed, files included."""
    plan = replace(plan, format=FORMAT)
    return replace(plan, digest=_digest(_to_plain(plan)))


def answer_digest(plan: Plan) -> str:
    """Return the digest of what answers follow from: the plan's own, unless its description was changed.

    Functions are the same then, but what is kept of earlier answers is not to be mixed with later ones.
    """
    if plan.as_split is None:
        return plan.digest
    text = json.dumps([plan.digest, unstructure(plan.description)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def dump_plan(plan: Plan) -> str:
    return json.dumps(_to_plain(plan), indent=1, ensure_ascii=False) + "\n"


def parse_plan(text: str, where: str = PLAN_FILE) -> Plan:
    """Read the text of plan.json; raises PlanError where it is not a plan, or not the plan that was written.

    What is no plan of this format is refused by the name `where`.
    """
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:  # also raised for numbers of thousands of digits, and deep nesting
        raise PlanError(f"{where} is not JSON ({error}); split the model again") from error
    if not isinstance(value, dict) or "format" not in value:
        raise PlanError(f"{where} is not a plan: it has no format; split the model again")
    if type(value["format"]) is not int or value["format"] != FORMAT:
        raise PlanError(
            f"{where} has format {value['format']!r:.40}, this version reads {FORMAT}: split the network again with "
            "serfer split or serfer map-plan, or register it again with serfer app register"
        )
    windows = value.get("windows")
    if isinstance(windows, dict) and (windows.get("difference") is not None or windows.get("overlap")):
        raise PlanError(
            f"{where} has windows that differ from the whole network (statistics of a sample, or overlaps), which maps "
            "have no more: make it again with serfer map-plan --set statistics=exact"
        )
    plan = structure(Plan, value, PLAN_FILE)
    executed = _to_plain(plan)
    if executed != value or _digest(executed) != plan.digest:
        raise PlanError(f"{where} was edited: its digest does not match; split the model again")
    check_sound(plan)
    return plan
