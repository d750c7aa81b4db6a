import pytest

from bench.prediction import HELD_OUT, measure, table
from serfer.core.profile import shipped_profiles
from splitter import profile


def test_no_network_that_is_judged_was_profiled():
    assert not {name for name, _ in profile.NETWORKS} & set(HELD_OUT)


def test_every_stage_is_predicted_and_measured():
    result = measure(shipped_profiles(), ("efficientnet-lite0",), most_s=0.5)
    assert [stage.grid for stage in result.stages] == ["1", "2x2", "2x2", "1"]
    assert all(stage.predicted_ms > 0 and stage.measured_ms > 0 and stage.spread >= 0 for stage in result.stages)
    assert "efficientnet-lite0  mean error" in table(result)
    assert result.mean_error < 1  # the machine may be another and busy


@pytest.mark.slow
def test_predictions_are_within_a_tenth_on_networks_that_were_not_profiled():
    result = measure(profile.measure())
    assert result.mean_error < 0.1, table(result)
