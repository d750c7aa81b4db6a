"""Whether a cold plan is used: by what was chosen, by the concurrency, by a deployment."""

from dataclasses import replace

import pytest

from serfer.cli.shared.service_options import least_concurrency, plans_of
from serfer.core.errors import PlanError
from serfer.plan_directory import COLD_DIRECTORY, load_plan
from serfer.settings import Settings
from serfer.wiring.deployed import deployed_names
from serfer.wiring.open_pipeline import deployed_cold_plan, find_cold_plan
from serfer.wiring.options import Choices
from tests.core.plans import write_plan
from tests.core.test_plan import COLD, PLAN, with_cold_plan
from tests.wiring.test_deployed import FOUND

LOCAL = Choices(None, "local", "push")
NEEDED = 2 + 3  # two tiles of the cold plan, three environments of the other one


@pytest.fixture
def directory(tmp_path):
    with_cold_plan(write_plan(tmp_path))
    return tmp_path


def test_it_is_used_where_functions_have_cold_starts_and_room(directory):
    assert find_cold_plan(directory, PLAN, LOCAL, Settings()) == (COLD, "")
    aws = Choices("s3://b", "aws", "push")
    assert find_cold_plan(directory, PLAN, aws, Settings(local_concurrency=1)) == (COLD, "")


def test_without_one_there_is_nothing_to_say(tmp_path):
    assert find_cold_plan(write_plan(tmp_path), PLAN, LOCAL, Settings(cold_plan="never")) == (None, "")
    assert find_cold_plan(tmp_path, PLAN, LOCAL, Settings()) == (None, "")


@pytest.mark.parametrize(
    ("choices", "settings", "words"),
    [
        (replace(LOCAL, workers="inprocess"), {}, "no cold starts"),
        (replace(LOCAL, driver="poll"), {}, "not poll"),
        (replace(LOCAL, driver="stepfunctions"), {}, "not stepfunctions"),
        (replace(LOCAL, cold_plan="never"), {}, "turned off"),
        (LOCAL, {"cold_plan": "never"}, "turned off"),
        (LOCAL, {"local_concurrency": NEEDED - 1}, f"needs {NEEDED} invocations at once, the concurrency is"),
    ],
)
def test_where_it_is_not_used_a_sentence_says_why(directory, choices, settings, words):
    cold, reason = find_cold_plan(directory, PLAN, choices, Settings(**settings))
    assert cold is None
    assert words in reason
    assert reason.endswith(".")


def test_a_choice_goes_before_the_setting(directory):
    chosen = replace(LOCAL, cold_plan="auto")
    assert find_cold_plan(directory, PLAN, chosen, Settings(cold_plan="never"))[0] == COLD


@pytest.mark.hostile
def test_a_cold_plan_that_is_damaged_is_refused_unless_it_is_turned_off(directory):
    (directory / COLD_DIRECTORY / "plan.json").unlink()
    with pytest.raises(PlanError):
        find_cold_plan(directory, PLAN, LOCAL, Settings())
    assert find_cold_plan(directory, PLAN, LOCAL, Settings(cold_plan="never"))[0] is None


def test_a_deployment_without_its_functions_does_without_it():
    both = replace(FOUND, plans=(PLAN.digest[:12], COLD.digest[:12]))
    assert deployed_cold_plan(COLD, both) == (COLD, "")
    cold, reason = deployed_cold_plan(COLD, FOUND)
    assert cold is None
    assert COLD.digest[:12] in reason


def test_functions_of_both_plans_have_names_in_a_stack():
    names = deployed_names(PLAN, Settings(function_prefix="demo"), COLD)
    assert {*names} == {plan.function(*part) for plan in (PLAN, COLD) for part in plan.functions}
    assert names[COLD.function(0, 0)] == f"demo-{COLD.digest[:12]}-0-0"


def test_a_service_has_the_functions_of_both_and_room_for_them(directory):
    assert plans_of([directory], Settings()) == [(PLAN, directory), (COLD, directory / COLD_DIRECTORY)]
    assert plans_of([directory], Settings(cold_plan="never")) == [(PLAN, directory)]
    assert least_concurrency([directory], Settings()) == NEEDED
    assert least_concurrency([directory], Settings(cold_plan="never")) == load_plan(directory).widest_gang
