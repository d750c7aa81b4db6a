"""A template's parameters, as CloudFormation would check what they are given."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from serfer.core.errors import UsageError


def check_parameters(declared: Mapping[str, Any], given: Mapping[str, str]) -> None:
    """Raise UsageError for a value that a template's parameter does not take, or a parameter that there is not."""
    if unknown := sorted(set(given) - set(declared)):
        raise UsageError(f"--parameter {unknown[0]} is none of the template's: {', '.join(sorted(declared))}")
    for name, value in given.items():
        said = declared[name]
        if wants := _refusal(said if isinstance(said, Mapping) else {}, value):
            raise UsageError(f"--parameter {name} {wants}, not {value!r:.60}")


def _refusal(said: Mapping[str, Any], value: str) -> str | None:
    """Say what a parameter wants, or None where it takes the value."""
    allowed = [str(each) for each in said.get("AllowedValues", ())]
    if allowed and value not in allowed:
        return f"is one of {', '.join(allowed)}"
    if pattern := said.get("AllowedPattern"):
        return None if re.fullmatch(str(pattern), value) else f"should match {pattern}"
    if said.get("Type") != "Number":
        return None
    least, most = float(said.get("MinValue", -math.inf)), float(said.get("MaxValue", math.inf))
    try:
        number = float(value)
    except ValueError:
        return "is a number"
    if math.isfinite(number) and least <= number <= most:
        return None
    return f"is a number from {least:g}" + (f" to {most:g}" if math.isfinite(most) else " up")
