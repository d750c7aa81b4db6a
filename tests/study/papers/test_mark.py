"""`serfer study paper mark`: its inputs are those of the paper's text, and the experiments show what the text says."""

import numpy as np
import pytest

from serfer.control.batching import Profile
from serfer.control.policies import make_policy
from serfer_bench.study.papers.mark.evaluation import (
    MODELS,
    ON_DEMAND,
    TWITTER,
    Row,
    interruption_rows,
    mmpp_rows,
    over_seeds,
    results,
    surge_rows,
    twitter_rows,
)
from serfer_bench.study.policies.tuning import tune
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
    for ninth_ms, most in ((370.0, 9), (372.0, 8)):  # the rule as printed ends at 8 only where a ninth image jumps
        assert tune(Profile((*inception.kind("p2.xlarge").batches, (9, ninth_ms))), inception.slo_ms).most == most
    starts = inception.serverless.usd_per_query / inception.serverless.latency_ms * inception.serverless.cold_ms
    assert 7000 * starts == pytest.approx(1.0, rel=0.05)
    assert 7000 / inception.serverless.latency_ms * 1000 == pytest.approx(20_000)
    for scenario in SCENARIOS.values():
        assert scenario.warnings() == []
        assert make_policy(ON_DEMAND, scenario).observe(seen(60.0, 10.0)).total >= 0


def test_stand_ins_with_twice_the_vcpus_lower_latency_while_spot_instances_are_away():
    alike, twice = interruption_rows(0, silent, (0.8,))
    assert (alike.load, twice.load) == ("80% lost, t2.medium", "80% lost, t2.xlarge")
    assert abs(alike.values["less"]) < 0.05
    assert twice.values["less"] > 0.1
    for row in (alike, twice):
        assert row.values["slo_met"] >= 0.98
        assert row.values["meanwhile_on_lambda"] < 0.02


def test_a_surge_is_capped_by_lambda():
    rows = [*surge_rows(0, silent, (1.0,))]
    assert [row.figure for row in rows] == ["SageMaker", "MArk"]
    assert rows[1].values["late"] < 0.02
    assert rows[1].values["usd"] < rows[0].values["usd"]


def test_costs_stand_beside_the_published_factors(tmp_path):
    minutes = np.arange(11 * 1440)
    counts = (3000 + 1500 * np.sin(minutes / 1440 * 2 * np.pi)).astype(int)
    lines = "".join(f"{minute},{count}\n" for minute, count in zip(minutes, counts, strict=True))
    twitter = tmp_path / f"{TWITTER}.csv"
    twitter.write_text("minute,requests\n" + lines)
    rows = [*twitter_rows(twitter, 60.0, 0, silent, 3.0), *mmpp_rows(0, silent, 3.0, (0.5, 2))]
    factors = {(row.model, row.load, row.figure): row for row in rows if row.experiment == "cost"}
    spot = factors["LSTM-ptb", "Twitter", "SageMaker / MArk-spot"]
    assert spot.published == "6.64"
    assert spot.values["factor"] > factors["LSTM-ptb", "Twitter", "SageMaker / MArk-ondemand"].values["factor"] > 1
    assert factors["NASNet", "Twitter", "SageMaker / MArk-spot"].here == "not run"
    whole = next(
        row for row in rows if row.experiment == "latency" and row.load == "MMPP" and "MArk-spot" in row.figure
    )
    assert whole.values["p5_ms"] <= whole.values["p50_ms"] <= whole.values["p95_ms"] <= 600
    text = results(over_seeds([rows]), [0]).markdown()
    assert "constructed: 250 ms on c5.large" in text


def test_values_of_several_seeds_are_shown_from_the_least_to_the_largest():
    rows = [[Row("cost", "net", "MMPP", "a / b", "2.0", "{factor:.1f}", {"factor": one})] for one in (1.52, 1.27, 1.31)]
    (merged,) = over_seeds(rows)
    assert merged.here == "1.3 to 1.5"
    assert over_seeds(rows[1:])[0].here == "1.3"  # they are the same as they are shown
    (record,) = results([merged], range(3)).records
    assert record["values"] == {"factor": [1.52, 1.27, 1.31]}
