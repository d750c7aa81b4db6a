"""`serfer bench route`: what it makes of ends, and one small run."""

import json

import pytest

from serfer_bench.core.workload import Sent
from serfer_bench.serving.route import Experiment, _steps, outcome
from tests.e2e.conftest import cache, plan, serfer_, start  # noqa: F401 - fixtures
from tests.e2e.test_routing import scenario  # noqa: F401 - same

EXPERIMENT = Experiment(rate=1.0, seconds=4.0, after_s=2.0, step_s=2.0, kill_s=None, warm=0, options=())


def end(due, latency, outcome):
    return Sent(0, due, due, due + latency, result=outcome)


def test_ends_are_counted_in_the_step_of_their_arrival():
    ends = [
        end(0.1, 0.010, "serverless"),
        end(1.9, 5.000, "serverless"),
        end(2.0, 0.030, "gpu"),
        end(2.5, 0.001, "refused"),
        end(3.0, 0.001, "500"),
        end(3.0, 0.001, None),
        end(3.1, 0.001, "wrong"),
    ]
    instances = [(0.0, {"wanted": 0}), (1.5, {"wanted": 1}), (2.5, {"wanted": 1, "on": 1}), (4.5, {})]
    first, second, last = _steps(ends, instances, EXPERIMENT)
    assert (first.queries, first.serverless, first.gpu, first.wanted, first.on) == (2, 2, 0, 1, 0)
    assert first.p50_ms == pytest.approx(2505.0)
    assert (second.gpu, second.refused, second.wrong, second.failed) == (1, 1, 1, 2)
    assert (second.p50_ms, second.on) == (pytest.approx(30.0), 1)
    assert (last.second, last.queries, last.shown["p50 ms"]) == (4.0, 0, "")


@pytest.mark.parametrize(
    ("status", "answer", "expected"),
    [
        (200, {"target": "gpu", "images": [{"predictions": [{"index": 3}]}]}, "gpu"),
        (200, {"target": "gpu", "images": [{"predictions": [{"index": 4}]}]}, "wrong"),
        (429, {}, "refused"),
        (503, {}, "503"),
    ],
)
def test_an_answer_is_its_target_where_it_is_right(status, answer, expected):
    assert outcome(status, answer, 3) == expected


@pytest.mark.killed
@pytest.mark.slow
def test_a_burst_moves_to_an_instance_and_no_query_is_lost_when_it_dies(serfer_, plan, scenario):  # noqa: F811
    result = serfer_(
        *("bench", "route", "--plan", plan, "--workers", "inprocess", "--scenario", scenario, "--json"),
        *("--rps", "10", "--seconds", "30", "--kill-s", "12"),
    )
    assert result.code == 0, result.err
    rows = [json.loads(line) for line in result.lines]
    assert sum(row["queries"] for row in rows) == 300
    assert sum(row["serverless"] + row["gpu"] for row in rows) == 300
    assert rows[0]["serverless"] > 0
    assert sum(row["gpu"] for row in rows) > 0
