"""Cost of a GPU pool's registry where the drivers' store is a bucket.

A bucket bills each request: every driver reads and writes the pool's record each second (serfer/fleet/registry.py).
Where the store is a cache these are a few cheap commands.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serfer.core.costs.aws import AwsFacts, StoreFacts
from serfer.fleet.registry import REQUESTS_PER_S
from serfer.sam.cost.fixed import SECONDS_A_MONTH, Line
from serfer.sam.options import Options
from serfer.sam.template.intrinsics import resources

BUCKETS = ("s3", "s3express")
_GROUP = "Drivers"


def usd_per_driver(facts: AwsFacts, store: str) -> float:
    """Return the dollars a month that a driver's part in the registry costs."""
    reads, writes = _requests(1)
    prices = _prices(facts, store)
    return reads * prices.price_get + writes * prices.price_put


def lines(
    options: Options, facts: AwsFacts, template: Mapping[str, Any], parameters: Mapping[str, Any] | None = None
) -> list[Line]:
    """Price the registry for a month of the fewest drivers; none where the deployment has no pool or a cache."""
    if options.gpu is None or options.store not in BUCKETS:
        return []
    _, group = resources(template, parameters, options.region).get(_GROUP, ("", {}))
    reads, writes = _requests(int(group.get("MinSize", 1)))
    prices = _prices(facts, options.store)
    return [
        Line("pool registry, looks", reads, "requests", reads * prices.price_get, f"{options.store}.price_get"),
        Line("pool registry, writes", writes, "requests", writes * prices.price_put, f"{options.store}.price_put"),
    ]


def _requests(drivers: int) -> tuple[float, float]:
    """Return the reads and writes of a month, of all drivers."""
    seconds = drivers * SECONDS_A_MONTH
    return seconds * REQUESTS_PER_S.reads, seconds * REQUESTS_PER_S.writes


def _prices(facts: AwsFacts, store: str) -> StoreFacts:
    return facts.s3 if store == "s3" else facts.s3express
