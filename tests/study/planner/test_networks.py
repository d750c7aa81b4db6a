"""docs/results/data/networks.csv says what the code does with public networks."""

import pytest

from serfer_bench.study.planner.networks import NETWORKS, Network, Row, in_runs, known_rows, write_table
from tests.study.planner.networks import QUICK, ROWS, TABLE, check, named, of_shard, quick

AT_LEAST = 45


def test_the_rows_are_of_networks_that_are_tried_of_which_seventeen_are_split_in_ci_and_three_hundred_every_week():
    assert [network for network in NETWORKS if network in ROWS] == [*ROWS], "in order, and each once"
    assert sum(cells[3] == "tiled" for cells in ROWS.values()) >= AT_LEAST
    assert len(quick()) == len(QUICK) == 17
    weekly = [network for number in range(3) for network in of_shard(number)]
    assert len({*weekly, *quick()}) == len(NETWORKS) >= 300
    assert {network.library for network in NETWORKS} == {"timm", "torchvision", "smp"}


def test_a_row_that_is_measured_again_takes_its_place_and_the_others_stay(tmp_path):
    table = tmp_path / "networks.csv"
    table.write_text(TABLE)
    network = list(ROWS)[1]
    write_table(table, [Row(network, ("2x2", "2x2", "1"), 3, 4, seconds=5432.1)])
    rows = known_rows(table.read_text())
    assert rows[network][3:] == ("in part", "5432", "3 of 4", "2 x 2x2, 1")
    assert list(rows.items()) == list({**ROWS, network: rows[network]}.items()), "in order"


@pytest.mark.parametrize(
    ("row", "how"),
    [
        (Row(NETWORKS[0], ("2x2", "1"), 4, 4), "tiled"),
        (Row(NETWORKS[0], ("2x2", "1"), 4, 4, as_is=True), "in part"),
        (Row(NETWORKS[0], ("1",), 0, 4), "whole"),
        (Row(NETWORKS[0], ("1",)), "whole"),
        (Row(NETWORKS[0], reason="why"), "refused"),
    ],
)
def test_how_a_network_is_split_is_said_in_a_word(row, how):
    assert row.how == how


def test_grids_are_written_in_runs():
    assert in_runs(["2x2", "2x2", "1", "2x2", "1", "1"]) == "2 x 2x2, 1, 2x2, 2 x 1"
    assert in_runs([]) == ""


@pytest.mark.slow
def test_a_network_is_built_at_the_size_that_it_is_split_at():
    assert Network("timm", "test_vit", 96).build().pos_embed.shape[1] == 37


@pytest.mark.slow
@pytest.mark.parametrize("network", quick(), ids=named)
def test_each_network_behaves_as_its_row_states(network):
    check(network)
