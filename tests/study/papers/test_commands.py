"""`serfer study paper NAME` finds the evaluation of each paper, by figure, table or section; the rest is weekly."""

from dataclasses import replace
from functools import partial

import pytest

from serfer.core.errors import ModelError, UsageError
from serfer.settings import load_settings
from serfer_bench.study.papers.infaas import figure5, figure6, figure7
from serfer_bench.study.papers.infaas.cluster import HEEDING, INFAAS, PACKING, Cluster, Worker
from serfer_bench.study.papers.serfer.costs import (
    QUERIES_AN_HOUR,
    TABLE_2,
    Way,
    equation_2,
    gpu_usd,
    published_ways,
    results,
)
from tests.bench.running import rows, run

paper = partial(rows, "study", "paper")


def test_serfer_reads_its_digits_before_it_trains(tmp_path):
    with pytest.raises(ModelError, match=r"0\.json cannot be read"):
        paper("serfer", "--data", tmp_path)


def test_infaas_shows_every_system_under_every_load_with_what_was_published():
    found = paper("infaas", "--figure", 6, "--seconds", 2, "--seeds", 1)
    assert len(found) == 3 * 8
    assert sum(bool(row["published"]) for row in found) == 13


@pytest.mark.parametrize("figure", [5, 7])
def test_a_figure_whose_public_trace_is_not_here_is_left_out_by_name(tmp_path, figure):
    given = ["--figure", str(figure), "--trace", str(tmp_path / "twitter_2021-08_per_minute.csv")]
    done = run("study", "paper", "infaas", *given)
    assert done.stdout == ""
    assert "skipped: twitter_2021-08_per_minute: not here; get them with serfer study fetch-traces" in done.stderr


def test_infless_publishes_rows_of_a_figure():
    found = paper("infless", "--figure=12", "--hours", 0.1, "--seeds", 1)
    assert {row["figure"] for row in found} >= {"12a", "12b"}
    assert {row["published"] for row in found if (row["figure"], row["system"]) == ("12b", "infless")} == {"1.00"}


@pytest.mark.parametrize("part", [("--figure", "9"), ("--table", "8"), ("--figure",), ("--section=4",)])
def test_a_part_that_is_not_redone_is_refused_with_those_that_are(part):
    with pytest.raises(UsageError, match=r"there are --figure 5, .*--table 7, --section 4\.2, not"):
        paper("infaas", *part)


def test_figures_5_to_7_have_one_infaas_and_its_other_readings_differ_by_their_rule_alone():
    for figure, readings in ((figure5, {HEEDING, PACKING}), (figure6, {HEEDING}), (figure7, {HEEDING, PACKING})):
        found = {system.name: system for system in figure.systems()}
        letter = found[INFAAS]
        assert (letter.heeds, letter.packs) == (False, False)
        assert {name for name in found if name.startswith(f"{INFAAS}, ")} == readings
        for name in readings:
            assert found[name] == replace(letter, name=name, heeds=name == HEEDING, packs=name == PACKING)


def test_queries_are_packed_onto_one_worker_while_it_answers_in_time_and_spread_without():
    *_, small = figure7.systems()[0].networks
    network = replace(small, first={f"{figure7.SMALL}-gpu": 2})
    workers = Worker("gpu 1", "gpu"), Worker("gpu 2", "gpu")
    letter = replace(figure7.systems()[0], networks=(network,), workers=workers, scales=False, most={})
    busy = {}
    for packs, each_s in ((False, 0.01), (True, 0.01), (True, 0.0004)):
        cluster = Cluster(replace(letter, packs=packs))
        measured = cluster.run(iter([(number * each_s, 0) for number in range(500)]), 500 * each_s)
        assert measured.late_share == 0 or each_s < 0.001
        busy[packs, each_s] = sorted(queue.empty_s > 0 for queue in cluster._queues.values())
    assert busy == {(False, 0.01): [True, True], (True, 0.01): [False, True], (True, 0.0004): [True, True]}


WAYS = published_ways(load_settings().facts())


def test_equation_2_over_table_2_and_the_papers_gpu_give_what_it_prints():
    assert equation_2(TABLE_2) == pytest.approx(0.00014271638, rel=1e-6)
    assert WAYS[0].usd(QUERIES_AN_HOUR) == pytest.approx(3.829, abs=5e-4)
    assert gpu_usd(QUERIES_AN_HOUR) == pytest.approx(24_000 / 130 / 3600 * 0.9)
    assert equation_2(TABLE_2, billed_in_100_ms=True) > equation_2(TABLE_2)
    assert Way("functions", "modelled", 2e-5, 1.0).moves_at(0.9) == 0


def test_from_where_an_instance_costs_less_both_cost_the_same_and_each_row_says_where_its_figures_come_from():
    for usd_an_hour in (0.0, 0.3):
        way = Way("functions", "modelled", 2e-5, usd_an_hour)
        assert way.usd(way.moves_at(0.9)) == pytest.approx(0.9)
    [table] = results(WAYS, 0.526).tables
    assert [row[1] for row in table.body] == ["published", "arithmetic", "arithmetic"]
