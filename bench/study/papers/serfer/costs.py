"""SerFer's Tables 2 and 3, and its section 6.4: when to move from a GPU to functions (`study paper serfer --table 3`).

Arithmetic over what the paper printed, and over the cost model's predictions for the same network today; nothing runs.

    way                dollars of an hour of q queries
    functions          what stands (driver, Redis) + q * equation 2
    an instance        its price, for any q up to its throughput; it costs less from where the two are equal
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from serfer.cli.shared.options import JsonOption, status_lines
from serfer.core.costs.aws import AwsFacts
from serfer.core.costs.cost_model import HOURS_A_MONTH, invocation_usd
from serfer.core.costs.pricing import Circumstances, price
from serfer.packaging.bundle import code_stamp
from serfer.plan_directory import load_plan
from serfer.settings import Settings, load_settings
from serfer.splitter.split import split
from serfer.wiring.plan_cache import cached_plan
from serfer_bench.core.options import MarkdownOption
from serfer_bench.core.plans import Progress, bench_plan
from serfer_bench.core.tables import Results, Table, publish

QUERIES_AN_HOUR: Final = 24_000
"""What the paper takes its system to answer in bursts of 1,000 (section 6.4)."""
_DRIVER_USD, _REDIS_USD = 0.188, 0.216  # an hour, Table 3
_GPU_USD, _GPU_QPS = 0.9, 130.0  # p2.xlarge an hour, and its throughput in bursts of 1,000 (figure 9)
_PUBLISHED_QUERY, _PUBLISHED_HOUR, _PUBLISHED_GPU = 0.00014271638, 3.829, 0.0508
_GPU, _DRIVER = "g4dn.xlarge", "t3.medium"
_HOUR_S = 3600.0


@dataclass(frozen=True)
class Layer:
    """A row of Table 2: functions at once, MB, dollars for 100 ms, and the average ms."""

    functions: int
    memory_mb: int
    usd_per_100_ms: float
    ms: float


TABLE_2: Final = (
    Layer(4, 512, 0.000000834, 124),
    Layer(4, 1216, 0.000001980, 116),
    Layer(1, 2048, 0.000003334, 3881),
)


def equation_2(layers: Sequence[Layer], *, billed_in_100_ms: bool = False) -> float:
    """Return the dollars of a query by equation 2; AWS billed every started 100 ms then, which it leaves out."""
    return sum(
        layer.functions * layer.usd_per_100_ms * (-(-layer.ms // 100) if billed_in_100_ms else layer.ms / 100)
        for layer in layers
    )


@dataclass(frozen=True)
class Way:
    """A way to answer queries by functions: dollars of a query, and of an hour in which none comes.

    `kind` says where its figures come from: published, arithmetic over those, or modelled.
    """

    name: str
    kind: str
    usd_a_query: float
    usd_an_hour: float

    def usd(self, queries: float) -> float:
        return self.usd_an_hour + queries * self.usd_a_query

    def moves_at(self, instance_usd: float) -> float:
        """Return from how many queries an hour on an instance of so many dollars an hour costs less."""
        return max(0.0, (instance_usd - self.usd_an_hour) / self.usd_a_query)


def gpu_usd(queries: float) -> float:
    """Return the paper's dollars of queries on a GPU: those of the time in which it is busy, idle time left out."""
    return queries / _GPU_QPS * _GPU_USD / _HOUR_S


def published_ways(facts: AwsFacts) -> list[Way]:
    stands = _DRIVER_USD + _REDIS_USD
    today = sum(layer.functions * invocation_usd(layer.memory_mb, layer.ms, facts.functions) for layer in TABLE_2)
    stands_today = facts.instances[_DRIVER] + facts.redis.price_hour
    return [
        Way("Table 2 by equation 2", "published", equation_2(TABLE_2), stands),
        Way("Table 2, each started 100 ms billed", "arithmetic", equation_2(TABLE_2, billed_in_100_ms=True), stands),
        Way("Table 2 at today's prices, with requests", "arithmetic", today, stands_today),
    ]


def our_ways(settings: Settings, progress: Progress) -> list[Way]:
    """Return AlexNet in the paper's tiles, beside a driver, and in one function, warm, as the cost model has them."""
    facts, warm = settings.facts(), Circumstances(cold_share=0.0)
    tiles = price(load_plan(bench_plan("alexnet", settings, progress)), facts, warm)
    whole = price(load_plan(_one_function(settings, progress)), facts, warm)
    driver = facts.instances[_DRIVER]
    return [
        Way(
            "AlexNet, convolutions in 2x2 tiles",
            "modelled",
            tiles.query.usd,
            driver + tiles.standing_usd / HOURS_A_MONTH,
        ),
        Way("AlexNet in one function", "modelled", whole.query.usd, whole.standing_usd / HOURS_A_MONTH),
    ]


def _one_function(settings: Settings, progress: Progress) -> Path:
    def make(directory: Path) -> None:
        progress("splitting alexnet into one function, once: the plan stays in the cache")
        split("alexnet", out=directory, grids=["1"], progress=progress)

    name = f"whole-alexnet-{code_stamp(('serfer.splitter', 'serfer.core'))}"
    return cached_plan(settings.cache_dir, name, make)


def results(ways: Sequence[Way], gpu_today_usd: float) -> Results:
    rows = [
        (
            way.name,
            way.kind,
            f"{way.usd_a_query:.8f}",
            f"{way.usd_an_hour:.3f}",
            f"{way.usd(QUERIES_AN_HOUR):.3f}",
            f"{way.moves_at(_GPU_USD):,.0f}",
            f"{way.moves_at(gpu_today_usd):,.0f}",
        )
        for way in ways
    ]
    hour = f"$ for {QUERIES_AN_HOUR:,} an hour"
    head = (
        "way",
        "figures",
        "$ a query",
        "$ an hour idle",
        hour,
        f"moves at, ${_GPU_USD}",
        f"moves at, ${gpu_today_usd}",
    )
    busy = gpu_usd(QUERIES_AN_HOUR)
    notes = [
        f"published: ${_PUBLISHED_QUERY:.11f} a query (Table 3) and ${_PUBLISHED_HOUR} an hour of {QUERIES_AN_HOUR:,}",
        f"the GPU's {QUERIES_AN_HOUR:,} queries at {_GPU_QPS:g} a second and ${_GPU_USD} an hour are ${busy:.4f}",
        f"   (the paper prints ${_PUBLISHED_GPU})",
        "moves at: from how many queries an hour on an instance that runs all hour costs less, at the paper's price",
        f"   (p2.xlarge) and at that of {_GPU} today; its throughput in figure 9 is {_GPU_QPS * _HOUR_S:,.0f} an hour",
        f"driver and Redis stand at ${_DRIVER_USD} and ${_REDIS_USD} an hour in Table 3, today at those of {_DRIVER}",
        "   and of the store's node; one function needs neither",
    ]
    records = [
        {
            **asdict(way),
            "usd_an_hour_of_load": way.usd(QUERIES_AN_HOUR),
            "moves_at_published": way.moves_at(_GPU_USD),
            "moves_at_today": way.moves_at(gpu_today_usd),
        }
        for way in ways
    ]
    return Results(records, [Table(head, rows)], notes)


def command(as_markdown: MarkdownOption = False, as_json: JsonOption = False) -> None:
    """Price a query and an hour as the paper does, at today's prices, and as predicted for the same network here."""
    settings = load_settings()
    with status_lines() as progress:
        ways = [*published_ways(settings.facts()), *our_ways(settings, progress)]
    publish(results(ways, settings.facts().instances[_GPU]), as_json=as_json, as_markdown=as_markdown)
