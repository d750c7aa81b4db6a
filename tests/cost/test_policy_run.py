"""A policy over a load at the level of rates, beside the study's simulator of the same."""

import numpy as np
import pytest

from serfer.control.policies import DEFAULT, make_policy
from serfer.cost.loads.steps import silent
from serfer.cost.loads.trace import Trace
from serfer.cost.policy_run import run_policy
from serfer_bench.study.sim.rates import run_rates
from tests.control.worlds import QPS, scenario


@pytest.mark.parametrize("seed", range(5))
def test_policy_run_costs_what_the_study_simulates(seed):
    rng = np.random.default_rng(seed)
    world = scenario(5.0, boot_s=40.0)
    load = Trace("random", rng.uniform(3.0, 90.0, 60), rng.gamma(0.5, 4 * QPS, 60))
    marks = sorted(rng.uniform(0.0, load.seconds / 2, 3).tolist(), reverse=True)
    run = run_policy(load, world, make_policy(DEFAULT, world), 5.0, marks, silent)
    expected = run_rates(load, world, make_policy(DEFAULT, world), period_s=5.0, marks=sorted(marks))
    assert run.cost_usd == pytest.approx(expected.cost_usd, rel=1e-9)
    assert expected.launches > 0
    for mark, begin in zip(marks, run.marks, strict=True):
        _, begin_s, launches = expected.resume(mark, load.seconds)
        assert (begin.time_s, [*begin.launches]) == (pytest.approx(begin_s), launches)
