from itertools import count

import pytest

from bench.planner import whole_prediction
from bench.planner.prediction import HELD_OUT, Prediction, StagePrediction, measure, results
from bench.planner.whole_prediction import BatchPrediction, mean_error, measure_whole, whole_results
from serfer.core.costs.operator_costs import shipped_profiles
from serfer.core.errors import UnavailableError
from splitter.profiling import profile
from tests.e2e.small import small_onnx


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


def batch(model, predicted_ms, threads, quiet):
    return BatchPrediction(model, 4, threads, predicted_ms, measured_ms=10, runs=8, quiet=quiet)


def test_batches_of_whole_networks_have_an_error_by_network_and_threads():
    rows = [batch("alexnet", 11, 1, 3), batch("alexnet", 7, 2, 1), batch("resnet18", 20, 1, 0)]
    assert mean_error(rows) == pytest.approx(0.2)
    text = whole_results(rows, shipped_profiles()).text()
    assert "20.0% of 2 batches; 1 disturbed" in text
    assert "below 10% on average" in text
    [errors] = [line.split() for line in text.splitlines() if line.startswith("alexnet") and "/" not in line]
    assert errors == ["alexnet", "10.0%", "30.0%", "20.0%"]
    with pytest.raises(UnavailableError, match="quiet"):
        mean_error(rows[2:])


def test_a_run_whose_threads_wait_for_a_processor_is_disturbed(monkeypatch):
    session = profile.worker_session(small_onnx())
    waited = count(step=0.5)
    monkeypatch.setattr(whole_prediction, "_waited_s", lambda: next(waited))
    assert whole_prediction._run(session, 2, max_s=0.0)[1:] == (8, 0)
    monkeypatch.setattr(whole_prediction, "_waited_s", lambda: 0.5)
    assert whole_prediction._run(session, 2, max_s=0.0)[1:] == (8, 8)


@pytest.mark.slow
def test_whole_networks_are_predicted_and_measured_by_batch_and_threads():
    rows = measure_whole(shipped_profiles(), ("squeezenet",), batches=(1, 2), max_s=0.5)
    assert [(one.batch, one.threads) for one in rows] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert all(one.predicted_ms > 0 and one.measured_ms > 0 for one in rows)
