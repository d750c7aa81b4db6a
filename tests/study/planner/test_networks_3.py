"""A third of the public architectures that are split every week: a file is an hour of `make weekly` at most."""

import pytest

from tests.study.planner.networks import check, named, of_shard


@pytest.mark.weekly
@pytest.mark.parametrize("network", of_shard(2), ids=named)
def test_each_network_behaves_as_its_row_states(network):
    check(network)
