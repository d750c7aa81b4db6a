"""docs/reference/networks.md says what the code does with public networks and with operators."""

from pathlib import Path

import pytest

from bench.planner.networks import (
    NETWORKS,
    Network,
    chosen,
    is_exact,
    measure,
    networks_table,
    operators_table,
    section,
)

DOCUMENT = (Path(__file__).parents[2] / "docs" / "reference" / "networks.md").read_text()
ROWS = section(DOCUMENT, "networks").splitlines()[2:]
AT_LEAST = 25
# All of them take a worker twenty minutes: every second one, and others that are quick, of other families.
# Three quarters of these wait for `make weekly`.
MEASURED = NETWORKS[::2] + chosen(
    [
        *("googlenet", "mobilenet_v2", "regnet_x_400mf", "resnet18", "squeezenet1_1", "resnet10t", "seresnet18"),
        *("gernet_s", "mobileone_s0", "tinynet_e", "convnext_atto", "starnet_s1"),
    ]
)


def test_the_operators_are_those_of_the_rules():
    assert section(DOCUMENT, "operators") == operators_table().markdown()


def test_a_row_is_of_a_network_that_is_tried():
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in ROWS]
    rows = [Network(library, name, int(size)) for name, library, size, *_ in cells]
    assert [network for network in NETWORKS if network in rows] == rows, "in order, and each once"


@pytest.mark.slow
def test_the_table_has_every_network_and_most_are_tiled_up_to_their_global_pooling():
    counts = [row.strip("|").split("|")[3].split(" of ") for row in ROWS]
    assert len(ROWS) == len(NETWORKS) >= len({*MEASURED}) == 40
    assert sum(len(count) == 2 and len({number.strip() for number in count}) == 1 for count in counts) >= AT_LEAST


@pytest.mark.parametrize(
    "network",
    [
        pytest.param(network, marks=pytest.mark.weekly if number % 4 else pytest.mark.slow)
        for number, network in enumerate(MEASURED)
    ],
    ids=[f"{network.library}-{network.name}" for network in MEASURED],
)
def test_each_network_behaves_as_its_row_states(network):
    row = measure(network)
    assert networks_table([row]).markdown().splitlines()[2] in ROWS
    assert row.reason or is_exact(row), row.error
