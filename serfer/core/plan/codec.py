"""plan.json: a plan as text and back, sealed by a digest of itself."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

from serfer.core.errors import PlanError
from serfer.core.plan.layout import PLAN_FILE
from serfer.core.plan.model import Plan
from serfer.core.plan.validation import check_sound
from serfer.core.structure import structure, unstructure

FORMAT = 11
_SHOWN = 40  # characters of what should have been a number


def _digest(plan: Plan) -> str:
    canonical = unstructure(replace(plan, digest=""))
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def sealed(plan: Plan) -> Plan:
    """Return the plan with its format and digest: SHA-256 of its canonical JSON, artefact digests included."""
    plan = replace(plan, format=FORMAT)
    return replace(plan, digest=_digest(plan))


def dump_plan(plan: Plan) -> str:
    """Write a plan as the text of plan.json."""
    return json.dumps(unstructure(plan), indent=1, ensure_ascii=False) + "\n"


def parse_plan(text: str, where: str = PLAN_FILE) -> Plan:
    """Read the text of plan.json; raises PlanError where it is not a plan, or not the plan that was written.

    A plan of another format is refused by the name `where`.
    """
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:  # also raised for numbers of thousands of digits, and deep nesting
        raise PlanError(f"plan.json is not JSON ({error}); split the model again") from error
    if not isinstance(value, dict) or "format" not in value:
        raise PlanError("plan.json is not a plan: it has no format; split the model again")
    if type(value["format"]) is not int or value["format"] != FORMAT:
        version = repr(value["format"])[:_SHOWN]
        raise PlanError(
            f"{where} has format {version}, this version reads {FORMAT}: split the network again with serfer split, or "
            "serfer map-plan"
        )
    plan = structure(Plan, value, PLAN_FILE)
    if _digest(plan) != plan.digest:
        raise PlanError("plan.json was edited: its digest does not match; split the model again")
    check_sound(plan)
    return plan
