"""The options of `register`; this module imports nothing slow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from serfer.core.errors import UsageError
from serfer.core.options import Options, option
from serfer.core.variants import MAX_VARIANTS


@dataclass(frozen=True, kw_only=True)
class RegisterOptions(Options):
    """Which variants of a network are made, and how instances are priced."""

    most: int = option(12, "How many variants to register at most.", least=1, most=MAX_VARIANTS)
    max_loss: float = option(0.01, "The share of the images that a variant may get wrong in addition.", least=0, most=1)
    latency_ms: float | None = option(
        None, "A latency that queries will ask for: the cheapest plan within it is made too."
    )
    device: Literal["auto", "cuda", "cpu"] = option("auto", "Of instances: cuda, cpu, or auto.")
    instance: str | None = option(
        None, "What this machine is as an instance, for its price; else a like one's.", metavar="TYPE"
    )
    usd_per_hour: float | None = option(None, "An instance's price, in place of the data's.", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.latency_ms is not None and not self.latency_ms > 0:
            raise UsageError(f"--latency-ms must be more than 0, not {self.latency_ms:g}")
