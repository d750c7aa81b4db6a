"""SerFer's Tables 2 and 3 by its own arithmetic: what follows from what it printed, and what does not."""

import pytest

from serfer.settings import load_settings
from serfer_bench.study.papers.serfer.costs import (
    QUERIES_AN_HOUR,
    TABLE_2,
    Way,
    equation_2,
    gpu_usd,
    published_ways,
    results,
)

WAYS = published_ways(load_settings().facts())


def test_equation_2_over_table_2_gives_what_the_paper_prints():
    assert equation_2(TABLE_2) == pytest.approx(0.00014271638, rel=1e-6)
    assert WAYS[0].usd(QUERIES_AN_HOUR) == pytest.approx(3.829, abs=5e-4)


def test_the_papers_gpu_costs_what_its_own_price_and_throughput_say():
    assert gpu_usd(QUERIES_AN_HOUR) == pytest.approx(24_000 / 130 / 3600 * 0.9)


def test_started_hundreds_of_milliseconds_cost_more_than_equation_2():
    assert equation_2(TABLE_2, billed_in_100_ms=True) > equation_2(TABLE_2)


@pytest.mark.parametrize("usd_an_hour", [0.0, 0.3])
def test_from_where_an_instance_costs_less_both_cost_the_same(usd_an_hour):
    way = Way("functions", "modelled", 2e-5, usd_an_hour)
    assert way.usd(way.moves_at(0.9)) == pytest.approx(0.9)


def test_an_instance_is_cheaper_at_once_than_functions_whose_driver_and_store_cost_more():
    assert Way("functions", "modelled", 2e-5, 1.0).moves_at(0.9) == 0


def test_each_row_says_where_its_figures_come_from():
    [table] = results(WAYS, 0.526).tables
    assert [row[1] for row in table.body] == ["published", "arithmetic", "arithmetic"]
