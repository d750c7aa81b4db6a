"""Lines of a bill, and how often environments that are kept are all busy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from serfer.core.costs.aws import AwsFacts


@dataclass(frozen=True)
class Line:
    """One item of a bill: `quantity` of `unit`, and dollars for all of it; `source` is the price's name in aws.toml."""

    item: str
    quantity: float
    unit: str
    usd: float
    source: str

    @classmethod
    def priced(cls, facts: AwsFacts, item: str, quantity: float, unit: str, source: str) -> Line:
        return cls(item, quantity, unit, quantity * facts.price(source), source)

    def times(self, factor: float) -> Line:
        return replace(self, quantity=factor * self.quantity, usd=factor * self.usd)


def add_up(lines: Iterable[Line]) -> list[Line]:
    """Return the lines, those of one item and price together, where the first of them was."""
    found: dict[tuple[str, str, str], Line] = {}
    for line in lines:
        key = line.item, line.unit, line.source
        before = found.get(key)
        found[key] = (
            replace(line, quantity=before.quantity + line.quantity, usd=before.usd + line.usd) if before else line
        )
    return [*found.values()]


def all_busy(kept: int, load: float) -> float:
    """Return the share of queries that come while `kept` others are under way, `load` being under way on average.

    Erlang's loss formula, for queries that come at random.
    """
    share = 1.0
    for number in range(1, kept + 1):
        share = load * share / (number + load * share)
    return share
