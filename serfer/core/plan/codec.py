"""plan.json: a plan as text and back, sealed by a digest of itself."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Any

from serfer.core.errors import PlanError
from serfer.core.plan.model import ZIP, Plan
from serfer.core.plan.validation import check_sound
from serfer.core.structure import structure, unstructure

FORMAT = 10
_NOT_QUANTISED = 9
"""The format of a plan without a network in 8 bits: the same JSON without `quantised`."""
_WITHOUT_WINDOWS = 8
"""The format of a plan of whole images: the same JSON without `windows`."""
_OF_SCORES = 7
"""The format of a plan whose network classifies: the same JSON without `outputs`."""
_ALL_IN_ZIPS = 6
"""The format of a plan whose functions all have their weights in zips: the same JSON without `weights_in`."""
_WITHOUT_GANGS = 5
"""The format of such a plan that has no gangs either: the same JSON without `gangs`."""
_FORMATS = (_WITHOUT_GANGS, _ALL_IN_ZIPS, _OF_SCORES, _WITHOUT_WINDOWS, _NOT_QUANTISED, FORMAT)
_SHOWN = 40  # characters of what should have been a number


def _digest(plan: Plan) -> str:
    canonical = _plain(replace(plan, digest=""))
    text = json.dumps(canonical, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(plan: Plan) -> dict[str, Any]:
    plain: dict[str, Any] = unstructure(plan)
    number = _format(plan)
    if number == _WITHOUT_GANGS:
        del plain["gangs"]
    if number < FORMAT:
        del plain["quantised"]
    if number < _NOT_QUANTISED:
        del plain["windows"]
    elif plan.windows:
        _drop_unsaid(plain["windows"])
    if number < _WITHOUT_WINDOWS:
        del plain["outputs"]
    if number < _OF_SCORES:
        for stage in plain["stages"]:
            del stage["weights_in"]
    return plain


def _drop_unsaid(windows: dict[str, Any]) -> None:
    """Leave out what windows do not say, as plans did that were written before it could be said."""
    if not windows["overlap"] and windows["difference"] is None:
        del windows["difference"]
    for axis in (*windows["heights"], *windows["widths"]):
        for name in ("start", "step"):
            if axis[name] is None:
                del axis[name]


def _format(plan: Plan) -> int:
    """Return the oldest format that has all that a plan says."""
    if plan.quantised:
        return FORMAT
    if plan.windows:
        return _NOT_QUANTISED
    if not plan.classifies:
        return _WITHOUT_WINDOWS
    if any(stage.weights_in != ZIP for stage in plan.stages):
        return _OF_SCORES
    return _ALL_IN_ZIPS if plan.gangs else _WITHOUT_GANGS


def sealed(plan: Plan) -> Plan:
    """Return the plan with its format and digest: SHA-256 of its canonical JSON, artefact digests included."""
    plan = replace(plan, format=_format(plan))
    return replace(plan, digest=_digest(plan))


def dump_plan(plan: Plan) -> str:
    """Write a plan as the text of plan.json."""
    return json.dumps(_plain(plan), indent=1, ensure_ascii=False) + "\n"


def parse_plan(text: str) -> Plan:
    """Read the text of plan.json; raises PlanError where it is not a plan, or not the plan that was written."""
    try:
        value: Any = json.loads(text)
    except (ValueError, RecursionError) as error:  # also raised for numbers of thousands of digits, and deep nesting
        raise PlanError(f"plan.json is not JSON ({error}); split the model again") from error
    if not isinstance(value, dict) or "format" not in value:
        raise PlanError("plan.json is not a plan: it has no format; split the model again")
    if value["format"] not in _FORMATS:
        version = repr(value["format"])[:_SHOWN]
        raise PlanError(
            f"plan.json has format {version}, this version reads {_FORMATS[0]} to {FORMAT}: write the plan again, "
            "with serfer split and the model that it was made from"
        )
    plan = structure(Plan, value, "plan.json")
    if plan.format != _format(plan):
        raise PlanError(f"plan.json has format {plan.format}, what it says is of format {_format(plan)}")
    if _digest(plan) != plan.digest:
        raise PlanError("plan.json was edited: its digest does not match; split the model again")
    check_sound(plan)
    return plan
