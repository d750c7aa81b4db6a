"""The bound for rules without foresight on MMPP at M, as in docs/explanation/policies.md."""

import math
import tomllib

import numpy as np
import pytest

from serfer.control.scenario import parse_scenario
from serfer_bench.study.policies.clairvoyant import optimum_usd
from tests.control.worlds import LARGE, SMALL, TWO_TYPES

LOW, HIGH, LOW_S, HIGH_S = 10.0, 100.0, 1800.0, 600.0  # queries a second, mean seconds: the generator's defaults


@pytest.mark.parametrize(("text", "floor"), [(LARGE, 1.71), (SMALL, 1.73), (TWO_TYPES, 1.77)])
def test_the_cheapest_of_three_rules_has_the_expected_ratio_to_the_clairvoyant(text, floor):
    """Stays are memoryless, so a level is always on, never, or from a burst's begin to its end: booting first."""
    world = parse_scenario(tomllib.loads(text))
    boot_s, scale = world.instance.boot_s, (LOW_S + HIGH_S) / (LOW * LOW_S + HIGH * HIGH_S)
    cheapest = 0.0
    for level in range(math.ceil(HIGH * scale)):
        low, high = (world.price_ratio * min(max(rate * scale - level, 0.0), 1.0) for rate in (LOW, HIGH))
        followed = low * LOW_S + HIGH_S + high * HIGH_S * (1 - math.exp(-boot_s / HIGH_S))
        cheapest += min(LOW_S + HIGH_S, low * LOW_S + high * HIGH_S, followed)
    chance, cycles = np.random.default_rng(0), 20_000
    stays = np.column_stack([chance.exponential(HIGH_S, cycles), chance.exponential(LOW_S, cycles)]).ravel()
    rates = np.tile([HIGH, LOW], cycles) * scale * world.instance.qps
    best = optimum_usd(world, stays.tolist(), rates.tolist()) / cycles / world.instance.usd_per_s
    assert cheapest / best == pytest.approx(floor, abs=0.015)
