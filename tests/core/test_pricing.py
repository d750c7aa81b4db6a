import math
from dataclasses import replace

import pytest

from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.cold_starts import COLD_SHARE
from serfer.core.costs.cost_model import HOURS_A_MONTH, Platform, price_plan
from serfer.core.costs.pricing import Circumstances, price, store_of
from serfer.core.errors import UsageError
from serfer.core.geometry import Rect
from serfer.core.plan import INLINE, Shape
from tests.core.plans import small_plan

FACTS = shipped_aws()


def test_a_plan_is_priced_for_its_own_store_and_memory_by_default():
    costs = price(small_plan(), FACTS, Circumstances())
    assert costs.store == "redis"
    assert costs.query.usd == price_plan(small_plan(), Platform(FACTS.functions, FACTS.redis, COLD_SHARE)).usd
    own = price(replace(small_plan(), cold_share=0.0), FACTS, Circumstances())
    assert own.query.usd == price_plan(small_plan(), Platform(FACTS.functions, FACTS.redis)).usd
    assert costs.burst.usd == pytest.approx(1000 * costs.query.usd)
    assert costs.standing_usd == pytest.approx(HOURS_A_MONTH * FACTS.redis.price_hour)
    none, every = (price(small_plan(), FACTS, Circumstances(cold_share=share)) for share in (0.0, 1.0))
    assert (every.query.usd, none.cold.latency.mean) == (none.cold.usd, every.query.latency.mean)
    assert none.cold_burst_usd == pytest.approx(1000 * none.cold.usd)


def test_a_store_that_no_query_uses_costs_nothing_and_is_not_deployed():
    first, last = small_plan().stages
    inline = replace(small_plan(), stages=(replace(first, path=INLINE), last))
    assert (price(inline, FACTS, Circumstances()).standing_usd, store_of(inline, FACTS)) == (0.0, "s3")
    assert store_of(small_plan(), FACTS) == "redis"
    tiles = tuple(replace(tile, inputs=(Rect.whole(3000, 3000),)) for tile in inline.stages[0].tiles)
    stages = (replace(inline.stages[0], tiles=tiles), last)
    large = replace(inline, input=Shape(3, 3000, 3000, flat=False), stages=stages)
    assert price(large, FACTS, Circumstances()).query.stored  # crops, which are no reason for a node
    assert (price(large, FACTS, Circumstances()).standing_usd, store_of(large, FACTS)) == (0.0, "s3")
    assert store_of(inline, FACTS, small_plan()) == "redis"
    assert store_of(replace(small_plan(), store="valkey+s3"), FACTS) == "valkey"


def test_printed_costs_add_up_and_another_store_and_memory_change_them():
    plain = price(small_plan(), FACTS, Circumstances(burst=7)).as_dict()
    query = plain["query"]
    assert query["cost_usd"] == pytest.approx(sum(stage["cost_usd"] for stage in query["stages"]))
    assert query["latency_ms"]["mean"] == pytest.approx(sum(stage["ms"] for stage in query["stages"]), abs=0.1)
    assert query["latency_ms"]["p50"] < query["latency_ms"]["p95"] < query["latency_ms"]["p99"]
    assert (plain["burst"]["queries"], plain["burst"]["environments"]) == (7, 14)
    free = replace(FACTS, functions=replace(FACTS.functions, price_request=0.0, price_gb_second=0.0))
    assert price(small_plan(), free, Circumstances()).query.usd == 0
    other = price(small_plan(), FACTS, Circumstances(store="s3", memory_mb=10240)).as_dict()
    assert other["store"] == "s3"
    assert {stage["memory_mb"] for stage in other["query"]["stages"]} == {10240}
    assert other["query"]["latency_ms"]["mean"] > plain["query"]["latency_ms"]["mean"] + 25
    assert other["query"]["cost_usd"] > plain["query"]["cost_usd"] + FACTS.s3.price_put
    assert other["idle_month"] == {"hours": 730, "functions_usd": 0.0, "store_usd": 0.0}


def test_each_boundary_is_priced_by_its_data_path():
    first, last = small_plan().stages
    plan = replace(small_plan(), store="valkey+s3", stages=(replace(first, path="objects"), last))
    both, one = (price(plan, FACTS, Circumstances(store=store)).as_dict() for store in (None, "valkey"))
    assert both["store"] == "valkey+s3"
    assert [stage["path"] for stage in both["query"]["stages"]] == ["objects", "inline"]
    assert both["query"]["latency_ms"]["mean"] > one["query"]["latency_ms"]["mean"] + 40
    assert both["query"]["cost_usd"] > one["query"]["cost_usd"] + 2 * FACTS.s3.price_put
    assert both["idle_month"]["store_usd"] == pytest.approx(0.0084 * 730)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (Circumstances(store="tape"), r"valkey\+s3, not 'tape'"),
        (Circumstances(cold_share=1.01), "from 0 to 1, not 1.01"),
        (Circumstances(cold_share=math.nan), "from 0 to 1, not nan"),
        (Circumstances(burst=0), "at least 1 query, not 0"),
        (Circumstances(memory_mb=127), "128 to 10240 MB, not 127"),
        (Circumstances(memory_mb=10241), "128 to 10240 MB, not 10241"),
    ],
)
def test_impossible_circumstances_are_refused(given, words):
    with pytest.raises(UsageError, match=words):
        price(small_plan(), FACTS, given)
    plan = replace(small_plan(), store="tape")
    with pytest.raises(UsageError, match="not 'tape'"):
        price(plan, FACTS, Circumstances())
    assert price(plan, FACTS, Circumstances(store="s3")).store == "s3"
