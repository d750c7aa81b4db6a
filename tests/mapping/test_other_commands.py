"""Commands that are not `serfer map` take a map plan's query for one window, or refuse the plan."""

import json
import shutil

import numpy as np
import pytest
from PIL import Image

from serfer.core.plan.window_plan import priced_query
from serfer.plan_directory import load_plan
from tests.study.sim.worlds import TOML


def test_what_is_priced_is_the_commonest_window_and_its_own_share_of_the_work(plan):
    whole = load_plan(plan)
    [stage] = priced_query(whole).stages
    [tile] = stage.tiles
    assert whole.stages[0].tiles.index(tile) == whole.windows.first[1].tile, "three of the first image's 15"
    assert 1 < stage.inflation < 2


def test_explain_and_cost_are_of_one_window(serfer, plan, tmp_path):
    done = serfer("explain", plan, "--picture", tmp_path / "plan.svg")
    assert done.code == 0
    assert (tmp_path / "plan.svg").exists()
    [_, after] = done.out.split("the commonest window:\n")
    header = after.splitlines()[0].split()
    assert "work" in header
    assert not {"halo", "grid"} & {*header}
    assert "1 task " in after
    assert "9 tasks" not in done.out
    done = serfer("cost", plan, "--json")
    assert done.code == 0
    assert [stage["tasks"] for stage in json.loads(done.out)["query"]["stages"]] == [1]


@pytest.mark.exact
@pytest.mark.parametrize(
    "command",
    [
        ("explain", "PLAN", "--pareto"),
        ("verify", "PLAN"),
        ("study", "cluster-profile", "PLAN", "--out", "SCENARIO"),
        ("serve", "--plan", "PLAN"),
        ("serve", "--drivers", "2", "--plan", "PLAN"),
        ("serve", "--drivers", "2", "--plan", "named=PLAN"),
        ("study", "simulate", "poisson:rate=1,hours=1", "--scenario", "SCENARIO", "--plan", "PLAN"),
    ],
)
def test_commands_whose_queries_are_whole_images_refuse_a_map_plan(serfer, plan, command, tmp_path):
    (tmp_path / "scenario.toml").write_text(TOML)
    names = {"PLAN": plan, "SCENARIO": tmp_path / "scenario.toml", "named=PLAN": f"named={plan}"}
    done = serfer(*(names.get(word, word) for word in command))
    assert done.code == 3, done.err
    assert "is a map plan" in done.err
    assert "serfer map" in done.err


def test_a_map_plan_that_was_described_again_scales_pixels_by_its_new_levels(serfer, map_image, plan, tmp_path):
    """An image's map is that of its negative by the levels of the negative."""
    described, before = shutil.copytree(plan, tmp_path / "plan"), load_plan(plan)
    levels = before.preprocess.levels
    mean = ", ".join(str(value - 1) for value in levels.mean)
    (tmp_path / "negative.toml").write_text(f"scale = {-levels.scale}\nmean = [{mean}]\nstd = {list(levels.std)}")
    assert serfer("describe", described, "--preprocess", tmp_path / "negative.toml").code == 0
    assert load_plan(described).digest == before.digest
    pixels = np.random.default_rng(0).integers(0, 256, (48, 80, 3), dtype=np.uint8)
    results = []
    for name, values, used in (("image", pixels, described), ("negative", 255 - pixels, plan)):
        Image.fromarray(values).save(tmp_path / f"{name}.png")
        result = tmp_path / f"{name}.npy"
        map_image(tmp_path / f"{name}.png", used, result)
        results.append(np.load(result))
    assert np.abs(results[0] - results[1]).max() < 1e-5 * np.ptp(results[1])
