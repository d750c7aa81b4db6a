"""INFless' figure 8: predicted and measured times of whole networks."""

from itertools import count

import pytest

from serfer.core.costs.operator_costs import shipped_profiles
from serfer.core.errors import UnavailableError
from serfer_bench.study.papers.infless import figure8
from serfer_bench.study.papers.infless.figure8 import BatchPrediction, mean_error, measure_whole, whole_results
from serfer_bench.study.profiling import profile
from tests.e2e.small import small_onnx

pytestmark = pytest.mark.weekly


def batch(model, predicted_ms, threads, quiet):
    return BatchPrediction(model, 4, threads, predicted_ms, measured_ms=10, runs=8, quiet=quiet)


def test_batches_of_whole_networks_have_an_error_by_network_and_threads():
    rows = [batch("alexnet", 11, 1, 3), batch("alexnet", 7, 2, 1), batch("resnet18", 20, 1, 0)]
    assert mean_error(rows) == pytest.approx(0.2)
    text = whole_results(rows, shipped_profiles()).text()
    assert "20.0% of 2 batches; 1 disturbed" in text
    assert "below 10% on average" in text
    errors = [line.split() for line in text.splitlines() if line.startswith(("alexnet", "all")) and "/" not in line]
    assert errors == [
        ["alexnet", "no", "1", "+10.0%", "10.0%"],
        ["alexnet", "no", "2", "-30.0%", "30.0%"],
        ["all", "1", "10.0%"],
        ["all", "2", "30.0%"],
    ]
    assert any(line.split() == ["resnet18", "yes", "1", "disturbed", "-"] for line in text.splitlines())
    with pytest.raises(UnavailableError, match="quiet"):
        mean_error(rows[2:])


def test_a_run_whose_threads_wait_for_a_processor_is_disturbed(monkeypatch):
    session = profile.worker_session(small_onnx())
    waited = count(step=0.5)
    monkeypatch.setattr(figure8, "_waited_s", lambda: next(waited))
    assert figure8._run(session, 2, max_s=0.0)[1:] == (8, 0)
    monkeypatch.setattr(figure8, "_waited_s", lambda: 0.5)
    assert figure8._run(session, 2, max_s=0.0)[1:] == (8, 8)


def test_whole_networks_are_predicted_and_measured_by_batch_and_threads():
    rows = measure_whole(shipped_profiles(), ("squeezenet",), batches=(1, 2), max_s=0.5)
    assert [(one.batch, one.threads) for one in rows] == [(1, 1), (2, 1), (1, 2), (2, 2)]
    assert all(one.predicted_ms > 0 and one.measured_ms > 0 for one in rows)
