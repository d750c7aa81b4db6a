"""Opens what keeps a plan's functions warm: `--keep-warm`, SERFER_KEEP_WARM."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass

from serfer.control.environments import PINGED_AFTER
from serfer.control.windows import WarmLevels, window_policies
from serfer.core.plan import Plan
from serfer.fleet.keep_warm.keep_warm import KeepWarm, Ping, PingLimits
from serfer.fleet.policy_state import StateOwner, open_keeper
from serfer.fleet.registry import PoolRegistry
from serfer.pipeline.warm import environments
from storage.store import Store


@dataclass(frozen=True)
class WarmOptions:
    """`windows` is what `window_policies` takes, `state` the directory or `s3://` prefix where what it learns is kept.

    At most `concurrency` environments of a function are pinged, each after most of `kept_s` idle seconds.
    """

    windows: str
    state: str | None
    concurrency: int
    kept_s: float


async def open_keep_warm(
    options: WarmOptions, plan: Plan, store: Store, url: str, ping: Ping, paid: Callable[[int], None]
) -> KeepWarm:
    """Keep a plan's functions warm, from now on, on the running event loop; drivers coordinate in `store`, at `url`.

    `ping` warms the functions up for so many queries at once, `paid` is told of how many. Raises UsageError for windows
    or a place that cannot be.
    """
    make = window_policies(options.windows)
    owner = StateOwner(plan.model, f"keep-warm-{options.windows}", "")
    state = open_keeper(options.state, url, owner) if options.state is not None else None

    def new() -> WarmLevels:
        return WarmLevels(make)

    restored = await asyncio.to_thread(state.restored, new) if state else None
    registry = PoolRegistry(store.coordination(), f"serfer:warm:{{{plan.digest[:16]}}}", secrets.token_hex(16))
    most = max(1, options.concurrency // max(environments(plan, 1).values()))
    limits = PingLimits(most, PINGED_AFTER * options.kept_s)
    opened = KeepWarm(restored or new(), registry, ping, limits, state=state, paid=paid)
    opened.start()
    return opened
