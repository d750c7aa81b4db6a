"""Parameters and intrinsic functions of a template, checked and evaluated as far as is possible before deploying."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serfer.core.errors import UsageError

_NOTHING = object()  # what AWS::NoValue leaves
_MOST_DEPTH = 64
_BRANCHES, _SIDES = 3, 2  # of Fn::If, with its condition, and of Fn::Equals

Properties = dict[str, Any]


class Scope:
    """A template's parameters, conditions and mappings, with the region that it goes to.

    `parameters` take the place of the template's defaults; a parameter without either is an empty text.
    """

    def __init__(self, template: Mapping[str, Any], parameters: Mapping[str, Any], region: str) -> None:
        declared = template.get("Parameters") or {}
        defaults = {name: _default(parameter) for name, parameter in declared.items()}
        self._values = {"AWS::Region": region, "AWS::NoValue": _NOTHING, **defaults, **parameters}
        self._conditions: Mapping[str, Any] = template.get("Conditions") or {}
        self._held: dict[str, bool] = {}
        self._mappings: Mapping[str, Any] = template.get("Mappings") or {}

    def resolved(self, value: Any, depth: int = 0) -> Any:  # noqa: ANN401 - any part of a template
        """Return a value with what is known put in; what only AWS knows stays as it is."""
        if depth > _MOST_DEPTH:
            return value
        if isinstance(value, list):
            return [item for item in (self.resolved(item, depth + 1) for item in value) if item is not _NOTHING]
        if not isinstance(value, dict):
            return value
        if len(value) == 1 and (known := self._called(*next(iter(value.items())), depth)) is not None:
            return known
        items = {key: self.resolved(item, depth + 1) for key, item in value.items()}
        return {key: item for key, item in items.items() if item is not _NOTHING}

    def _called(self, name: str, argument: Any, depth: int) -> Any:  # noqa: ANN401 - any part of a template
        if name == "Ref" and isinstance(argument, str):
            return self._values.get(argument)
        if name == "Fn::If" and isinstance(argument, list) and len(argument) == _BRANCHES:
            condition, yes, no = argument
            return self.resolved(yes if self.holds(condition) else no, depth + 1)
        if name == "Fn::FindInMap":
            return self._in_mapping(self.resolved(argument, depth + 1)) if isinstance(argument, list) else None
        return None

    def holds(self, condition: Any) -> bool:  # noqa: ANN401 - a name, or an expression
        """Return whether a condition holds; what is unknown, or stands for itself, does not."""
        if isinstance(condition, str):
            if condition not in self._held:
                self._held[condition] = False
                self._held[condition] = self.holds(self._conditions.get(condition, {}))
            return self._held[condition]
        if not isinstance(condition, dict) or len(condition) != 1:
            return False
        [(name, argument)] = condition.items()
        if name == "Condition":
            return self.holds(argument)
        if name == "Fn::Equals" and isinstance(argument, list) and len(argument) == _SIDES:
            one, other = (self.resolved(side) for side in argument)
            return str(one) == str(other)
        held = [self.holds(part) for part in argument] if isinstance(argument, list) else []
        return {"Fn::Not": held == [False], "Fn::And": all(held), "Fn::Or": any(held)}.get(name, False)

    def _in_mapping(self, path: list[Any]) -> Any:  # noqa: ANN401 - any part of a template
        place: Any = self._mappings
        for key in path:
            if not isinstance(place, dict) or not isinstance(key, str):
                return None
            place = place.get(key)
        return place


def _default(parameter: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a parameter's value
    value = parameter.get("Default", "")
    several = str(parameter.get("Type", "")).startswith(("CommaDelimitedList", "List<"))
    return [item.strip() for item in value.split(",")] if several and isinstance(value, str) else value


def resources(
    template: Mapping[str, Any], parameters: Mapping[str, Any] | None = None, region: str = "us-east-1"
) -> dict[str, tuple[str, Properties]]:
    """Return type and properties of every resource that is made, by logical id; SAM's Globals are in the properties."""
    scope = Scope(template, parameters or {}, region)
    shared = template.get("Globals") or {}
    made = {}
    for name, resource in (template.get("Resources") or {}).items():
        if "Condition" in resource and not scope.holds(resource["Condition"]):
            continue
        kind = resource["Type"]
        given = shared.get(kind.removeprefix("AWS::Serverless::"), {}) if kind.startswith("AWS::Serverless::") else {}
        made[name] = (kind, scope.resolved({**given, **(resource.get("Properties") or {})}))
    return made


@dataclass(frozen=True)
class ApiLimits:
    """Requests that the API before driver functions takes: at once, a second, and of a key in a month."""

    at_once: int
    a_second: int
    a_month: int

    @classmethod
    def of(
        cls, template: Mapping[str, Any], parameters: Mapping[str, Any] | None = None, region: str = "us-east-1"
    ) -> ApiLimits | None:
        """Return what a template's parameters set; None for a fleet, which has no such API."""
        if (plan := resources(template, parameters, region).get("ApiPlan")) is None:
            return None
        throttle, quota = plan[1]["Throttle"], plan[1]["Quota"]
        return cls(int(throttle["BurstLimit"]), int(throttle["RateLimit"]), int(quota["Limit"]))

    def __str__(self) -> str:
        return f"{self.at_once:,} at once, {self.a_second:,} a second, {self.a_month:,} a month a key"


def check_parameters(declared: Mapping[str, Any], given: Mapping[str, str]) -> None:
    if unknown := sorted(set(given) - set(declared)):
        raise UsageError(f"--parameter {unknown[0]}: the template has {', '.join(sorted(declared))}")
    for name, value in given.items():
        parameter = declared[name]
        if wants := _refusal(parameter if isinstance(parameter, Mapping) else {}, value):
            raise UsageError(f"--parameter {name} {wants}, not {value!r:.60}")


def _refusal(parameter: Mapping[str, Any], value: str) -> str | None:
    allowed = [str(text) for text in parameter.get("AllowedValues", ())]
    if allowed and value not in allowed:
        return f"is one of {', '.join(allowed)}"
    if pattern := parameter.get("AllowedPattern"):
        return None if re.fullmatch(str(pattern), value) else f"should match {pattern}"
    if parameter.get("Type") != "Number":
        return None
    least, most = float(parameter.get("MinValue", -math.inf)), float(parameter.get("MaxValue", math.inf))
    try:
        number = float(value)
    except ValueError:
        return "is a number"
    if math.isfinite(number) and least <= number <= most:
        return None
    return f"is a number from {least:g}" + (f" to {most:g}" if math.isfinite(most) else " up")
