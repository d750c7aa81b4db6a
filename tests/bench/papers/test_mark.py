"""`serfer bench paper mark`: its inputs are those of the paper's text, and the experiments show what the text says."""

import numpy as np
import pytest

from serfer.control.batching import Profile, tune
from serfer.control.policies import make_policy
from serfer_bench.papers.mark.evaluation import (
    MODELS,
    ON_DEMAND,
    TWITTER,
    cost_rows,
    interruption_rows,
    results,
    surge_rows,
)
from tests.control.worlds import seen

pytestmark = pytest.mark.weekly

SCENARIOS = {one.name: one.scenario for one in MODELS if one.scenario}


def silent(text):
    del text


def test_inputs_agree_with_the_pairs_of_the_text():
    inception = SCENARIOS["Inception-v3"]
    assert (inception.slo_ms, SCENARIOS["LSTM-ptb"].slo_ms) == (600, 100)
    tuned = tune(Profile(inception.kind("p2.xlarge").batches), inception.slo_ms)
    assert (tuned.most, tuned.window_ms) == (8, pytest.approx(200))
    starts = inception.serverless.usd_per_query / inception.serverless.latency_ms * inception.serverless.cold_ms
    assert 7000 * starts == pytest.approx(1.0, rel=0.05)
    assert 7000 / inception.serverless.latency_ms * 1000 == pytest.approx(20_000)
    for scenario in SCENARIOS.values():
        assert scenario.warnings() == []
        assert make_policy(ON_DEMAND, scenario).observe(seen(60.0, 10.0)).total >= 0


def test_stand_ins_keep_latency_low_while_spot_instances_are_away():
    (row,) = interruption_rows(0, silent, (0.4,))
    before, meanwhile = row.values["before"], row.values["meanwhile"]
    assert meanwhile["mean_ms"] < before["mean_ms"]
    assert all(each["slo_met"] >= 0.98 for each in row.values.values())
    assert meanwhile["on_lambda"] < 0.02


def test_a_surge_is_capped_by_lambda():
    rows = [*surge_rows(0, silent, (1.0,))]
    assert [row.figure for row in rows] == ["SageMaker", "MArk"]
    assert rows[1].values["late"] < 0.02
    assert rows[1].values["usd"] < rows[0].values["usd"]


def test_costs_stand_beside_the_published_factors(tmp_path):
    minutes = np.arange(11 * 1440)
    counts = (3000 + 1500 * np.sin(minutes / 1440 * 2 * np.pi)).astype(int)
    lines = "".join(f"{minute},{count}\n" for minute, count in zip(minutes, counts, strict=True))
    (tmp_path / TWITTER).write_text("minute,requests\n" + lines)
    rows = [*cost_rows(tmp_path / TWITTER, 60.0, 0, silent, 3.0)]
    factors = {(row.model, row.load, row.figure): row for row in rows if row.experiment == "cost"}
    spot = factors["LSTM-ptb", "Twitter", "SageMaker / MArk-spot"]
    assert spot.published == "6.64"
    assert spot.values["factor"] > factors["LSTM-ptb", "Twitter", "SageMaker / MArk-ondemand"].values["factor"] > 1
    assert factors["NASNet", "Twitter", "SageMaker / MArk-spot"].here == "not run"
    text = results(rows).markdown()
    assert "constructed: 250 ms on c5.large" in text
