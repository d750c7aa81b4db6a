"""The probe of `serfer study measure-aws` finds the constants that the local Lambda service has taken on."""

from dataclasses import replace

import pytest

from serfer.settings import load_settings
from serfer_bench.study.aws.constants import EXTENT, SETS, probed, rows_of
from serfer_bench.study.aws.probe import Extent

SMALL = replace(EXTENT, groups=(4, 16), rounds=1, small=16, large=4, packages=(12_000_000, 0), repeats=4, restored=3)
QUICK = replace(SETS["one"], init_s=1.0, invoke_tail_s=0.1, start_tail_s=0.2, restore_s=0.8, package_rate=8e6)
NONE = Extent(groups=(4, 16), rounds=1, small=2, large=1, memories=(), packages=(), restored=0)


@pytest.mark.weekly
@pytest.mark.parametrize("name", SETS)
def test_constants_that_are_put_in_are_found_within_a_tenth(name):
    """Two sets, so that no default can be what was found. Weekly, since it measures: nothing may run beside it."""
    found = probed(SETS[name], load_settings())
    ratios = {row.constant: row.found / row.put_in for row in rows_of(name, SETS[name], found)}
    assert {constant: ratio for constant, ratio in ratios.items() if abs(ratio - 1) > 0.1} == {}


@pytest.mark.slow
def test_the_kit_runs_each_step_and_finds_no_less_time_than_was_put_in():
    """A busy machine may add to times, so the exact values are weekly."""
    found = probed(QUICK, load_settings(), SMALL)
    assert found.samples.missing == []
    rows = {row.constant: row for row in rows_of("quick", QUICK, found)}
    times = ("lambda.invoke_floor", "lambda.init", "lambda.restore", "s3.request_latency")
    assert {name: rows[name].found for name in times if rows[name].found < 0.9 * rows[name].put_in} == {}
    assert [row["invocations"] for row in found.bill()] == ["20 cold", "16 warm"]


@pytest.mark.slow
def test_an_account_with_few_environments_is_measured_as_far_as_it_goes():
    constants = replace(SETS["one"], init_s=0.1, start_tail_s=0.01, restore_s=0.1, package_rate=1e9)
    found = probed(constants, load_settings(), NONE, concurrency=10)
    assert [*found.samples.groups] == [4]
    assert found.samples.missing[0] == "16 starts at once: the account has 10 environments"
