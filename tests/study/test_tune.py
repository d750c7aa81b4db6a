"""`serfer study tune`: what it says of a machine is a scenario's table, as it stands."""

import tomllib

import pytest

from serfer.control.batching import Profile
from serfer.control.scenario import parse_scenario
from serfer.core.errors import InputError, PlanError, UsageError
from serfer.instance.network import Hardware
from serfer_bench.study.policies.tuning import tune
from serfer_bench.study.tune import Machine, TunedNetwork, measure

GPU = Profile(((1, 6.0), (8, 20.0), (32, 70.0)))
TUNED = TunedNetwork("alexnet", "cuda", "fp16", 60.0, GPU, tune(GPU, 60.0), 3e-4)
LAMBDA = {
    "usd_per_query": 1.5e-5,
    "latency_ms": 60,
    "cold_ms": 600,
    "concurrency": 1000,
    "memory_gb": 0.5,
    "keep_alive_s": 600,
}


def test_the_table_can_be_pasted_into_a_scenario_as_it_is():
    text = TUNED.as_toml(Machine('a "fast" one', 0.8048, 0.3, 180.0))
    scenario = parse_scenario({"slo_ms": 60, "lambda": LAMBDA, **tomllib.loads(text)})
    kind = scenario.instance
    assert (kind.name, kind.usd_per_hour, kind.spot_usd_per_hour, kind.boot_s) == ('a "fast" one', 0.8048, 0.3, 180.0)
    assert kind.qps == pytest.approx(TUNED.tuning.sustained_qps, rel=1e-4)
    assert kind.max_batch == TUNED.tuning.most == 27
    assert [kind.batch_ms(size) for size in (1, 8, 27)] == pytest.approx([6.0, 20.0, 59.583])


def test_an_unknown_price_is_left_out():
    text = TUNED.as_toml(Machine("here", None, 0.0, 180.0))
    assert "--usd-per-hour" in text
    with pytest.raises(InputError, match="lacks 'usd_per_hour'"):
        parse_scenario({"slo_ms": 60, "lambda": LAMBDA, **tomllib.loads(text)})


def test_remarks_show_the_profile_and_its_rates():
    assert TUNED.table()[2].split() == ["8", "20.0", "400.0"]
    text = "\n".join(TUNED.remarks())
    assert "N_batch 27 images, W_batch 0.4 ms" in text
    assert "serfer instance --max-batch 27" in text
    assert "3.0e-04 of the logits' range" in text
    largest = TunedNetwork("alexnet", "cuda", "fp32", 1e4, GPU, tune(GPU, 1e4), 0.0)
    assert "the largest measured: --most" in "\n".join(largest.remarks())


@pytest.mark.parametrize(("name", "price"), [("", 1.0), ("x" * 65, 1.0), ("a\nb", 1.0), ("x", 0.0), ("x", -1.0)])
def test_invalid_instance_names_and_prices_are_refused(name, price):
    with pytest.raises(UsageError, match=r"--name|--usd-per-hour"):
        Machine(name, price, 0.0, 180.0)


@pytest.mark.parametrize("wrong", [-1.0, float("inf"), float("nan"), 2e9])
def test_numbers_that_no_scenario_takes_are_refused(wrong):
    with pytest.raises(UsageError, match="--spot-usd-per-hour is 0 to"):
        Machine("x", 1.0, wrong, 180.0)
    with pytest.raises(UsageError, match="--boot-s is 0 to"):
        Machine("x", 1.0, 0.0, wrong)
    with pytest.raises(UsageError, match="--usd-per-hour is more than 0"):
        Machine("x", wrong, 0.0, 180.0)


def test_a_network_is_measured_and_tuned(directory):
    lines = []
    measured = measure(directory, Hardware("cpu", threads=1), 10_000.0, 4, 2, lines.append)
    assert [size for size, _ in measured.profile.batches] == [1, 2, 4]
    assert (measured.model, measured.device, measured.precision) == ("small", "cpu", "fp32")
    assert measured.loss < 1e-4
    assert any("batch of 4" in line for line in lines)
    assert measured.as_dict(Machine("m", None, 0.0, 1.0))["batches"][0][0] == 1


def test_wrong_input_is_found_before_anything_is_measured(directory, tmp_path):
    with pytest.raises(UsageError, match="--slo-ms"):
        measure(directory, Hardware("cpu"), 0.0, 4, 2, lambda _: pytest.fail("it measures"))
    with pytest.raises(PlanError):
        measure(tmp_path, Hardware("cpu"), 1.0, 4, 2, lambda _: pytest.fail("it measures"))
