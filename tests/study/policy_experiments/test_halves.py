"""`serfer study policies halves`: MArk is tuned on the first half of a load, and judged with others on the second."""

import re

import numpy as np
import pytest

from serfer.core.errors import InputError
from serfer.cost.loads.trace import Trace
from serfer_bench.study.policies.mark.options import MarkOptions
from serfer_bench.study.policy_experiments.halves import COOLDOWNS_S, HalfOptions, halves, results, rows
from serfer_bench.study.policy_experiments.policies import Options
from serfer_bench.study.policy_experiments.sharing import Stage, simulate
from serfer_bench.study.sim.simulate import Outcome, RunOptions, prepare, run_policies
from tests.control.worlds import TWO_TYPES
from tests.study.sim.worlds import TOML, scenario


@pytest.fixture
def folder(tmp_path):
    pytest.importorskip("torch")
    (tmp_path / "two-types.toml").write_text(TOML)
    minutes = range(1000)
    waves = [int(3000 * (1.5 + np.sin(minute / 60)) + 2000 * (minute % 90 < 10)) for minute in minutes]
    rows = (f"{minute},{count}\n" for minute, count in enumerate(waves))
    (tmp_path / "waves.csv").write_text("minute,requests\n" + "".join(rows))
    return tmp_path


def outcomes(folder, *policies, spot=False):
    run_options = RunOptions(period_s=10.0, spot_losses_per_hour=0.1 if spot else 0.0)
    options = Options(policies, run_options, only=("waves",), scales=("M",))
    (case,) = halves(folder, folder, options, spot=spot)
    return case.run()


@pytest.mark.weekly
def test_mark_is_tuned_and_policies_are_judged_on_the_second_half(folder):
    found = outcomes(folder, "ski-rental", "mark")
    tuned, plain, untuned = found
    assert tuned.policy.startswith("mark (")
    assert any(f"{seconds:g} s" in tuned.policy for seconds in COOLDOWNS_S)
    assert [plain.policy, untuned.policy] == ["ski-rental", "mark"]
    assert all(one.queries == pytest.approx(60 * 30_000, rel=0.05) for one in found)  # a half, at the mean rate
    assert all(one.scale == "M" and one.history for one in found)


@pytest.mark.slow
def test_spot_instances_of_the_type_that_was_cheapest(folder):
    toml = TOML.replace("spot_usd_per_hour = 0.0", "spot_usd_per_hour = 0.15")
    (folder / "two-types.toml").write_text(toml)
    tuned, plain = outcomes(folder, "ski-rental", spot=True)
    on_demand = outcomes(folder, "ski-rental")[1]
    assert plain.cost_usd < 0.6 * on_demand.cost_usd
    assert tuned.cost_usd < on_demand.cost_usd


def test_spot_needs_a_type_that_has_a_spot_price(tmp_path):
    file = tmp_path / "two-types.toml"
    options = Options((), RunOptions(), only=("diurnal",), scales=("M",))
    file.write_text(TWO_TYPES)
    (case,) = halves(tmp_path, tmp_path, options, spot=True)
    assert case.spot
    file.write_text(re.sub("spot_usd_per_hour = .*", "spot_usd_per_hour = 0", TWO_TYPES))
    with pytest.raises(InputError, match=r"two-types\.toml has no instance type with a spot price"):
        halves(tmp_path, tmp_path, options, spot=True)


def test_settings_of_mark_reach_the_policy():
    load = Trace("a load", np.array([1200.0, 1200.0]), np.array([100.0, 0.0]))
    sim_input = prepare(load, "a world", scenario(), "none")

    def on_s(seconds):
        options = HalfOptions(mark=MarkOptions(cooldown_s=seconds))
        return next(run_policies(sim_input, ["mark"], options)).run.on_s

    assert on_s(900.0) > on_s(60.0) + 800


def outcome(policy, usd, met, load="a"):
    known = {"policy": policy, "cost_usd": usd, "slo_met": met, "launches": 0, "windows": (), "warnings": ()}
    known |= {"trace": load, "scenario": "b", "scale": "S"}
    return Outcome(**{**dict.fromkeys(Outcome.__dataclass_fields__), **known})


def test_the_summary_compares_with_mark_case_by_case():
    each = (("mark (x)", 10, 0.98), ("p", 9, 0.99), ("mark (y)", 20, 0.99), ("p", 22, 0.98))
    found = results([outcome(*one) for one in each])
    text = found.markdown()
    assert "p: 1.000 of tuned mark's dollars on average, 1.100 at worst; the SLO met by fewer queries in 1 of 2" in text


def test_seeds_of_a_load_are_one_row_from_the_least_to_the_largest():
    first, second = (f"mmpp:hours=2.5,seed={seed}" for seed in (0, 1))
    outcomes = [
        outcome("mark (seasonal)", 2.0, 1.0, first),
        outcome("ski-rental", 3.0, 0.5, first),
        outcome("mark (lstm)", 4.0, 1.0, second),
        outcome("ski-rental", 4.0, None, second),
    ]
    found = rows(outcomes)
    assert {row[0] for row in found} == {"mmpp:hours=2.5"}
    assert [row[3:] for row in found] == [
        ("mark (seasonal); mark (lstm)", "2.00 to 4.00", "1.000", "-", "100.00%"),
        ("ski-rental", "3.00 to 4.00", "1.000 to 1.500", "-", "-"),
    ]


STAGE = Stage(0.05, 1, 0.3)


def test_tasks_start_at_once_while_a_slot_is_free_or_when_a_window_ends():
    passed, sizes, billed = simulate(STAGE, [0.0, 0.01, 0.02, 1.0], 16, 0.0)
    assert sizes == [1, 2, 1]
    assert passed == pytest.approx([0.05, 0.04 + 0.0525, 0.03 + 0.0525, 0.05])
    assert billed == pytest.approx(0.05 + 0.0525 + 0.05)
    passed, sizes, _ = simulate(Stage(0.05, 10, 0.3), [0.0, 0.1, 0.5, 1.0], 2, 0.2)
    assert sizes == [2, 1, 1]
    assert passed == pytest.approx([0.1 + 0.0525, 0.0525, 0.25, 0.25])
