"""Public architectures, measured against docs/results/data/networks.csv: what its shards have in common."""

from pathlib import Path

import pytest

from serfer.core.exactness import TOLERANCE
from serfer_bench.study.planner.networks import NETWORKS, SECONDS, known_rows, measure

TABLE = (Path(__file__).parents[3] / "docs" / "results" / "data" / "networks.csv").read_text()
ROWS = known_rows(TABLE)
QUICK = (
    *("test_byobnet", "test_convnext", "test_efficientnet", "test_efficientnet_ln", "test_mambaout", "test_nfnet"),
    *("test_resnet", "test_coatnet", "test_vit", "resnet10t", "seresnet18", "ese_vovnet19b_dw", "starnet_s1"),
    *("vit_tiny_patch16_224", "swin_t", "mobilevit_xxs", "lraspp_mobilenet_v3_large"),
)
"""What CI splits besides the zoo: 17, of which each takes seconds."""
ROUNDINGS = 4
"""Times float32's own error that tiles may be off: random weights are badly conditioned (4e-4 in rexnet_100)."""
SHARDS = 3
"""Files of `make weekly`, an hour at most each."""


def quick():
    return [network for network in NETWORKS if network.name in QUICK]


def of_shard(number):
    """Return one of SHARDS parts of the others."""
    return [network for network in NETWORKS if network.name not in QUICK][number::SHARDS]


def named(network):
    return f"{network.library}-{network.name}"


def check(network):
    """Split a network, and fail where it is refused, not its module, or not its row; skipped without its library."""
    if not network.installed:
        pytest.skip(f"{network.library} is not installed")
    row = measure(network)
    assert not row.reason, row.reason
    assert row.error <= max(TOLERANCE, ROUNDINGS * row.rounding)
    if network in ROWS:
        assert _without_seconds(row.cells) == _without_seconds(ROWS[network])


def weekly_test(number):
    @pytest.mark.weekly
    @pytest.mark.parametrize("network", of_shard(number), ids=named)
    def test(network):
        check(network)

    return test


def _without_seconds(cells):
    return cells[:SECONDS] + cells[SECONDS + 1 :]
