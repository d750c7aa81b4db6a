"""Commands that are not `serfer map` take a map plan's query for one window, or refuse the plan."""

import json

import pytest

from serfer.core.plan.window_plan import priced_query
from serfer.plan_directory import load_plan
from tests.sim.worlds import TOML


def test_what_is_priced_is_the_commonest_window_and_its_own_share_of_the_work(plan):
    whole = load_plan(plan)
    [stage] = priced_query(whole).stages
    [tile] = stage.tiles
    assert whole.stages[0].tiles.index(tile) == whole.windows.first[1].tile, "three of the first image's 15"
    assert 1 < stage.inflation < 2


def test_explain_shows_one_window(serfer, plan):
    done = serfer("explain", plan)
    assert done.code == 0
    [_, after] = done.out.split("the commonest window:\n")
    header = after.splitlines()[0].split()
    assert "halo" not in header
    assert "grid" not in header
    assert "work" in header
    assert "1 task " in after
    assert "9 tasks" not in done.out


def test_explain_draws_one_window(serfer, plan, tmp_path):
    assert serfer("explain", plan, "--picture", tmp_path / "plan.svg").code == 0
    assert (tmp_path / "plan.svg").exists()


def test_cost_prices_one_window(serfer, plan):
    done = serfer("cost", plan, "--json")
    assert done.code == 0
    assert [stage["tasks"] for stage in json.loads(done.out)["query"]["stages"]] == [1]


@pytest.mark.parametrize(
    "command",
    [
        ("explain", "PLAN", "--pareto"),
        ("verify", "PLAN"),
        ("cost", "PLAN", "--cluster-profile", "SCENARIO"),
        ("serve", "--plan", "PLAN"),
        ("up", "--plan", "PLAN"),
        ("up", "--plan", "named=PLAN"),
        ("simulate", "poisson:rate=1,hours=1", "--scenario", "SCENARIO", "--plan", "PLAN"),
    ],
)
def test_commands_whose_queries_are_whole_images_refuse_a_map_plan(serfer, plan, command, tmp_path):
    (tmp_path / "scenario.toml").write_text(TOML)
    names = {"PLAN": plan, "SCENARIO": tmp_path / "scenario.toml", "named=PLAN": f"named={plan}"}
    done = serfer(*(names.get(word, word) for word in command))
    assert done.code == 3, done.err
    assert "is a map plan" in done.err
    assert "serfer map" in done.err
