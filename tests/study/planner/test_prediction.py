import pytest

from serfer.core.costs.operator_costs import shipped_profiles
from serfer.core.errors import UnavailableError
from serfer_bench.study.planner.prediction import HELD_OUT, Prediction, StagePrediction, measure, results
from serfer_bench.study.profiling import profile


def test_no_network_that_is_judged_was_profiled():
    assert not {name for name, _ in profile.NETWORKS} & set(HELD_OUT)


@pytest.mark.slow
def test_every_stage_is_predicted_and_measured():
    result = measure(shipped_profiles(), ("efficientnet-lite0",), max_s=0.5)
    assert [stage.grid for stage in result.stages] == ["1", "2x2", "2x2", "1"]
    assert all(stage.predicted_ms > 0 and stage.measured_ms > 0 and stage.spread >= 0 for stage in result.stages)


def stage(predicted_ms, measured_ms, quiet):
    return StagePrediction("lenet", "whole", "1", predicted_ms, measured_ms, spread=0.1, runs=8, quiet=quiet)


def test_a_disturbed_stage_is_listed_but_does_not_count():
    result = Prediction((stage(11, 10, 3), stage(8, 10, 1), stage(10, 20, 0)), "a machine")
    assert result.mean_error == pytest.approx(0.15)
    assert result.errors == {"lenet": pytest.approx(0.15)}
    assert "15.0% of 2 stages; 1 disturbed" in results(result).text()
    assert "-50.0%" in results(result).text()


def test_without_an_undisturbed_stage_there_is_no_answer():
    with pytest.raises(UnavailableError, match="quiet"):
        _ = Prediction((stage(11, 10, 0),), "a machine").mean_error
