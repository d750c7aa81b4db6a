"""Whether two results differ: intervals of paired rounds, and what is not compared at all."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from serfer.core.errors import InputError
from serfer_bench.core.workload import Sent
from serfer_bench.load.compare import compare, difference, results, warnings
from serfer_bench.load.results import Log
from tests.bench.test_results import log, result


def slower(log_, by):
    queries = [Sent(one.number, one.scheduled, one.started, one.ended + by) for one in log_.queries]
    return Log(log_.system, log_.round, tuple(queries))


def load(shift=0.0, noise=0.01, seed=0, rounds=8, system="serfer", count=100):
    """Rounds whose p50 is 50.5 ms plus `shift` s, give or take `noise` s."""
    random = np.random.default_rng(seed)
    return result(*(slower(log(system, k, count), 1 + shift + random.normal(0, noise)) for k in range(rounds)))


def named(differences, figure):
    [one] = [one for one in differences if one.figure == figure]
    return one


def test_the_interval_is_students():
    shift = difference("x", "y", [(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)], 0.95)  # differences 1, 2, 3
    reach = 4.302652729911275 / math.sqrt(3)
    assert (shift.low, shift.high) == (pytest.approx(2 - reach), pytest.approx(2 + reach))
    assert (shift.before, shift.after, shift.verdict) == (2.0, 4.0, "no difference shown")
    wider = difference("x", "y", [(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)], 0.99)
    assert wider.low < shift.low


def test_a_shift_beyond_the_noise_is_significant_with_its_sign():
    comparison = compare(load(), load(shift=0.2, seed=1))
    latency, rate = named(comparison, "p50 latency, ms"), named(comparison, "answers a second")
    assert (latency.real, latency.verdict) == (True, "more")
    assert latency.low < 200 < latency.high
    assert (rate.real, rate.verdict) == (True, "less")
    assert named(comparison, "bytes a query").verdict == "no difference shown"


def test_noise_is_seldom_significant():
    real = sum(
        named(compare(load(seed=2 * seed, count=4), load(seed=2 * seed + 1, count=4)), "p50 latency, ms").real
        for seed in range(100)
    )
    assert real <= 12  # 5 are expected


def test_rounds_are_compared_in_pairs():
    comparison = named(compare(load(rounds=1), load(shift=5, rounds=1)), "p50 latency, ms")
    assert comparison.verdict == "too few rounds to say"
    assert "too few rounds to say" in results([comparison], 0.95).text()
    assert json.loads(json.dumps(comparison.as_dict(), allow_nan=False))["low"] is None
    assert named(compare(load(rounds=8), load(rounds=5)), "p50 latency, ms").pairs == 5
    assert any("different numbers of rounds" in line for line in warnings(load(rounds=8), load(rounds=5)))
    broken = result(*(log(number=k, failing={*range(100)} if k == 0 else ()) for k in range(3)))
    whole = result(*(log(number=k) for k in range(3)))
    comparison = compare(whole, broken)
    assert named(comparison, "p50 latency, ms").pairs == 2
    assert named(comparison, "failed queries").after == pytest.approx(100 / 3)


@pytest.mark.parametrize("work", [{"model": "vgg16"}, {"queries": 7}, {"concurrency": 2}, {"workers": "null (5 ms)"}])
def test_different_work_is_refused_and_the_difference_named(work):
    with pytest.raises(InputError, match=f"different work: {next(iter(work))} is .* in A and .* in B"):
        compare(result(), result(**work))


def test_results_without_a_common_system_are_refused_unless_each_has_one():
    one, other = load(system="serfer"), load(system="unsplit")
    assert {each.system for each in compare(one, other)} == {"serfer / unsplit"}
    both = result(log("a"), log("b"))
    with pytest.raises(InputError, match="share no system: A has serfer, B has a, b"):
        compare(one, both)


def test_other_machines_and_versions_give_warnings():
    one = load()
    machine = replace(one.stamp.machine, processors=64)
    versions = tuple(replace(each, version="0") for each in one.stamp.versions)
    messages = warnings(one, replace(one, stamp=replace(one.stamp, machine=machine, versions=versions)))
    assert "different machines" in messages[0]
    assert "64 x" in messages[0]
    assert len(messages) == 1 + len(versions)
    assert warnings(one, one) == []
