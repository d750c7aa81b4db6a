"""What a map will take, as the cost model predicts it: before it starts, and for each window in flight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from serfer.core.costs.aws import AwsFacts
from serfer.core.costs.cost_model import Platform, invocation_usd, price_plan
from serfer.core.inline_outputs import PAYLOAD_SHARE, inline_stages
from serfer.core.plan import CACHE, Plan
from serfer.core.plan.window_plan import query_plan
from serfer.core.plan.windows import ImageWindows
from serfer.core.units import FLOAT_BYTES, MS_PER_S


@dataclass(frozen=True)
class WindowPrice:
    """A warm window's predicted seconds and dollars, and what a cold start adds to either."""

    seconds: float
    usd: float
    cold_seconds: float
    cold_usd: float


@dataclass(frozen=True)
class Estimate:
    """What the missing windows of an image will take on Lambda, `concurrency` of them at once.

    `cold_starts` environments are started, which `usd` and `seconds` include. `overlap` are the windows'
    multiply-accumulates beyond those of the image at once, as a share of the latter. `pixel_m2` are the square
    metres of the image's pixels, None where they are not known.

    A network that looks at the whole image takes `passes` over it, the last of which is the map, and `times` the
    multiply-accumulates of the network once. `windows` are those of all passes. Of maps that passes keep for later ones
    at most `kept_bytes` are in the folder `kept_where` at once.
    """

    windows: int
    missing: int
    height: int
    width: int
    concurrency: int
    usd: float
    seconds: float
    cold_starts: int
    overlap: float
    passes: int = 1
    times: float = 1.0
    kept_bytes: int = 0
    kept_where: str = ""
    pixel_m2: float | None = None

    @property
    def usd_per_megapixel(self) -> float | None:
        return self.usd * 1e6 / (self.height * self.width) if self.missing == self.windows else None

    @property
    def usd_per_km2(self) -> float | None:
        if self.pixel_m2 is None or self.usd_per_megapixel is None:
            return None
        return self.usd_per_megapixel / self.pixel_m2  # a million pixels are as many square kilometres


class WindowPrices:
    """Predicted prices of the windows of a map plan, each kind priced once."""

    def __init__(self, plan: Plan, facts: AwsFacts) -> None:
        self._plan, self._facts = plan, facts
        self._prices: dict[int, WindowPrice] = {}

    @cached_property
    def _platform(self) -> Platform:
        self._plan.check_explained()
        return Platform.over(self._facts, self._plan.store)

    def of(self, tile: int) -> WindowPrice:
        if tile not in self._prices:
            query = self._placed(query_plan(self._plan, tile))
            if self._plan.windows and self._plan.windows.reads_of(tile):  # float32 in place of an image of 8 bits
                query = replace(query, input=replace(query.input, channels=FLOAT_BYTES * query.input.channels))
            price = price_plan(query, self._platform)
            start = price.cold_starts[0]
            memory, facts = self._plan.stages[0].memory_mb, self._facts.functions
            cold_usd = invocation_usd(memory, start.billed_seconds * MS_PER_S, facts) - facts.price_request
            self._prices[tile] = WindowPrice(price.stages[0].seconds, price.usd, start.seconds, cold_usd)
        return self._prices[tile]

    def _placed(self, query: Plan) -> Plan:
        """Return a window's query whose output goes through the store where no answer carries it, as drivers do it."""
        limit = int(self._facts.functions.sync_payload_limit * PAYLOAD_SHARE)
        if all(inline_stages(query, 1, limit)):
            return query
        [stage] = query.stages
        return replace(query, stages=(replace(stage, path=CACHE),))

    def estimate(
        self,
        windows: ImageWindows,
        missing: Iterable[int],
        size: tuple[int, int],
        concurrency: int,
        passes: Sequence[tuple[ImageWindows, Iterable[int]]] = (),
    ) -> Estimate:
        every = [*passes, (windows, missing)]
        by_pass = [Counter(cut[number].tile for number in left) for cut, left in every]
        tiles = sum(by_pass, Counter[int]())
        count = tiles.total()
        prices = {tile: self.of(tile) for tile in tiles}
        starts = min(concurrency, max(counts.total() for counts in by_pass))
        seconds = sum(_pass_seconds(counts, prices, concurrency) for counts in by_pass)
        cold = max((price.cold_seconds for price in prices.values()), default=0.0)
        cold_usd = max((price.cold_usd for price in prices.values()), default=0.0)
        once = max(all_macs(self._plan, windows), whole_macs(self._plan, windows))
        return Estimate(
            windows=sum(len(cut) for cut, _ in every),
            missing=count,
            height=size[0],
            width=size[1],
            concurrency=concurrency,
            usd=sum(prices[tile].usd * many for tile, many in tiles.items()) + starts * cold_usd,
            seconds=seconds + cold if count else 0.0,
            cold_starts=starts,
            overlap=overlap_share(self._plan, windows),
            passes=len(every),
            times=sum(all_macs(self._plan, cut) for cut, _ in every) / (once or 1),
        )


def _pass_seconds(tiles: Counter[int], prices: Mapping[int, WindowPrice], concurrency: int) -> float:
    work = sum(prices[tile].seconds * many for tile, many in tiles.items())
    return max(work / concurrency, max((prices[tile].seconds for tile in tiles), default=0.0))


def all_macs(plan: Plan, windows: ImageWindows) -> int:
    [stage] = plan.stages
    rows, cols = (Counter(window.kind for window in axis.windows) for axis in (windows.rows, windows.cols))
    return sum(
        stage.tiles[windows.tiles[row][col]].macs * down * across
        for row, down in rows.items()
        for col, across in cols.items()
    )


def overlap_share(plan: Plan, windows: ImageWindows) -> float:
    whole = whole_macs(plan, windows)
    return max(0.0, all_macs(plan, windows) / whole - 1) if whole else 0.0


def whole_macs(plan: Plan, windows: ImageWindows) -> float:
    [stage] = plan.stages
    known = plan.windows
    if known is None:
        return 0.0
    # A map plan's operators have those of the first of its images, and each image's are in proportion to its result.
    first = known.heights[0].result * known.widths[0].result
    return stage.macs * windows.height * windows.width / first
