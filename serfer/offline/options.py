"""Options of offline work: which services it yields to."""

from __future__ import annotations

from dataclasses import dataclass

from serfer.control.throttle import Thresholds
from serfer.core.options import Options, option


@dataclass(frozen=True, kw_only=True)
class YieldOptions(Options):
    """Which services' online load pauses offline work, and from where on."""

    yield_to: tuple[str, ...] = option(
        (),
        "A running service, such as http://localhost:8000: while it has more online load than yield_utilisation and "
        "yield_latency say, nothing new starts; may be repeated. Its API key is SERFER_YIELD_KEY.",
        metavar="URL",
    )
    yield_utilisation: float = option(
        Thresholds.utilisation, "The share in use, of what answers a service's queries, above which to pause."
    )
    yield_latency: float = option(
        Thresholds.latency, "The latency of a service's queries over their profile, above which to pause."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        Thresholds(self.yield_utilisation, self.yield_latency)
