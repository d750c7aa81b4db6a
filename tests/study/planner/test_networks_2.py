"""A third of the public architectures that are split every week: a file is an hour of `make weekly` at most."""

from tests.study.planner.networks import weekly_test

test_each_network_behaves_as_its_row_states = weekly_test(1)
