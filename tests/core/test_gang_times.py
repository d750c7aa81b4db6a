from dataclasses import replace

import pytest

from serfer.core.plan import Gang
from serfer.core.plan.gang_times import compute_limit_s, function_timeout_s, patience_s
from serfer.wiring.options import TASK_TIMEOUT_S
from tests.core.plans import small_plan


@pytest.mark.parametrize("predicted_ms", [0.0, 20.0, 300.0, 2_000.0, 5_000.0, 60_000.0])
def test_a_function_outlives_the_patience_of_its_members(predicted_ms):
    gang = Gang(0, 2, compute_s=compute_limit_s(predicted_ms))
    plan = replace(small_plan(), gangs=(gang,))
    assert patience_s(gang) >= 10 + min(predicted_ms, 7_500) * 4 / 1000
    assert patience_s(gang) + 5 <= function_timeout_s(plan, 0, TASK_TIMEOUT_S) <= TASK_TIMEOUT_S
    assert function_timeout_s(plan, 1, TASK_TIMEOUT_S) == function_timeout_s(plan, 0, TASK_TIMEOUT_S)


def test_a_gang_that_is_predicted_to_be_fast_is_stopped_early():
    plan = replace(small_plan(), gangs=(Gang(0, 2, compute_s=compute_limit_s(50.0)),))
    assert function_timeout_s(plan, 0, TASK_TIMEOUT_S) == 17
    assert function_timeout_s(small_plan(), 0, TASK_TIMEOUT_S) == TASK_TIMEOUT_S
