"""GET /v1/models tells how each model is split, where its tiles lie, and what was predicted, as its plan has it."""

from dataclasses import asdict, replace

import pytest

from serfer.api.routes.models import _anatomy
from serfer.core.plan import dump_plan, parse_plan
from serfer.plan_directory import load_plan
from tests.e2e.small import LABELS, SIZE


@pytest.fixture
def plan(small_plan):
    return load_plan(small_plan)


@pytest.fixture
def small(http):
    return http.get("/v1/models/small").raise_for_status().json()


def area(box):
    return box["width"] * box["height"]


def inside(inner, outer, slack=1e-4):
    return (
        inner["left"] >= outer["left"] - slack
        and inner["top"] >= outer["top"] - slack
        and inner["left"] + inner["width"] <= outer["left"] + outer["width"] + slack
        and inner["top"] + inner["height"] <= outer["top"] + outer["height"] + slack
    )


def test_models_are_listed_with_their_plans_and_one_is_the_default(http, plan):
    [model] = http.get("/v1/models").raise_for_status().json()["models"]
    assert (model["name"], model["default"], model["plan"]) == ("small", True, plan.digest)
    assert model["input"] == {"height": SIZE, "width": SIZE, "channels": 3}
    assert (model["grids"], model["tasks"]) == (["2x2", "2x2", "1"], 9)


@pytest.mark.parametrize(
    ("path", "status", "words"), [("/large", 404, "small"), ("?verbose=1", 422, "verbose"), ("/small?a=1", 422, "'a'")]
)
def test_what_there_is_not_is_a_problem_that_names_it(lasting_http, path, status, words):
    answer = lasting_http.get(f"/v1/models{path}")
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    assert words in answer.json()["detail"]


def test_every_prediction_is_called_predicted_and_is_the_plans_own(small, plan):
    assert small["predicted_ms"] == pytest.approx(sum(stage.predicted_ms for stage in plan.stages), abs=0.01)
    assert small["predicted_cost_usd"] == pytest.approx(sum(stage.predicted_usd for stage in plan.stages))
    for shown, stage in zip(small["stages"], plan.stages, strict=True):
        assert (shown["predicted_ms"], shown["predicted_cost_usd"]) == (stage.predicted_ms, stage.predicted_usd)
        assert shown["output"] == stage.path
        assert shown["memory_mb"] == stage.memory_mb
        assert not {"ms", "usd", "cost_usd", "latency_ms"} & shown.keys()


def test_alternatives_are_listed_with_unsplit_networks_apart(small, plan):
    assert len(small["competitors"]) == len(plan.alternatives)
    assert [one["verdict"] for one in small["competitors"]].count("chosen") == 1
    assert small["unsplit"]
    assert all(one["tasks"] == 1 and "one function" in one["stages"] for one in small["unsplit"])
    times = [one["predicted_ms"] for one in small["unsplit"]]
    assert times == sorted(times)
    (own,) = (one for one in small["competitors"] if one["verdict"] == "chosen")
    assert plan.cold_share == 0.02
    assert own["predicted_ms"] == pytest.approx(small["predicted_ms"], abs=0.01)
    assert own["predicted_cost_usd"] == pytest.approx(small["predicted_cost_usd"], rel=1e-6)


def test_own_regions_partition_the_image_within_input_regions(small):
    tiled = [stage for stage in small["stages"] if stage["spread"] == "map"]
    assert len(tiled) == 2
    whole = {"left": 0, "top": 0, "width": 1, "height": 1}
    for stage in tiled:
        assert sum(area(tile["own"]) for tile in stage["tiles"]) == pytest.approx(1, abs=1e-3)
        assert sum(area(tile["reads"]) for tile in stage["tiles"]) == pytest.approx(1 + stage["halo"], abs=0.01)
        for tile in stage["tiles"]:
            assert inside(tile["own"], tile["reads"], 0.03)  # maps of odd sizes are stretched over the picture
            assert inside(tile["reads"], whole)


def test_later_stages_input_regions_are_traced_back_to_pixels(small):
    first, second, last = small["stages"]
    assert all(tile["pixels"] is None for tile in first["tiles"])  # it reads pixels itself
    for tile in second["tiles"]:
        assert area(tile["pixels"]) > area(tile["own"])
    assert (last["spread"], last["tiles"]) == ("none", [])


def test_the_page_gets_the_fit_and_the_number_of_classes(small):
    assert small["fit"] == {"resize": 36, "interpolation": "bilinear", "pad": None}
    assert small["classes"] == len(LABELS)


def test_what_a_plan_has_not_is_not_shown_and_untrained_weights_are_reported(plan):
    def shown(plan):
        return asdict(_anatomy("small", plan, default=True))

    for words, untrained in (("random (seed 0): answers mean nothing", True), ("ImageNet (pretrained)", False)):
        assert shown(replace(plan, weights=words))["untrained"] is untrained
    few = shown(replace(plan, alternatives=(), preprocess=None))
    assert (few["competitors"], few["unsplit"], few["fit"]) == ((), (), None)
    bare = shown(parse_plan(dump_plan(plan)))
    assert (bare["predicted_ms"], bare["predicted_cost_usd"], bare["competitors"]) == (0, 0, ())
    assert "explanation.json is missing" in bare["why"]
