"""Retries end with the attempts or the time, wait longer each time, and are all seen by a hook; nothing sleeps."""

import asyncio

import pytest

from serfer.core.retry import NO_JITTER, Backoff, RetryPolicy, observe_retries, retry, retry_async

POLICY = RetryPolicy("it", ValueError, Backoff(1.0, 4.0), attempts=4)


@pytest.mark.parametrize(("failures", "full"), [(1, 0.05), (2, 0.1), (3, 0.2), (6, 1.6), (7, 2.0), (100, 2.0)])
@pytest.mark.parametrize("draw", [0.0, 0.3, 0.999])
def test_waits_double_up_to_the_longest_and_at_least_half_is_kept(failures, full, draw):
    backoff = Backoff(base=0.05, longest=2.0)
    assert full / 2 <= backoff.wait(failures, draw) <= full
    assert backoff.wait(failures, 0.0) == full / 2
    assert backoff.wait(failures, NO_JITTER) == backoff.wait(failures) == full


def test_the_factor_can_be_chosen_and_any_number_of_failures_has_a_wait():
    backoff = Backoff(base=0.01, longest=0.05, factor=1.5)
    assert [backoff.wait(failures) for failures in range(1, 6)] == pytest.approx([0.01, 0.015, 0.0225, 0.03375, 0.05])
    assert backoff.wait(10**9) == 0.05
    assert Backoff(base=0.004, longest=0.25, factor=1000.0).wait(10**9) == 0.25


def blocking(call, policy, *more):
    waits = []
    return retry(call, policy, waits.append, *more), waits


def on_a_loop(call, policy, *more):
    waits = []

    async def called():
        return call()

    async def sleep(seconds):
        waits.append(seconds)

    return asyncio.run(retry_async(called, policy, sleep, *more)), waits


@pytest.fixture(params=[blocking, on_a_loop])
def run(request):
    return request.param


def failing(*errors):
    """Return a call that raises these, one at each attempt, and then returns its attempts' number."""
    left = [*errors]

    def call():
        if left:
            raise left.pop(0)
        return len(errors) + 1

    return call


def test_a_call_is_repeated_until_it_succeeds_and_hooks_see_why(run):
    first, second, seen = ValueError("1"), ValueError("2"), []
    with observe_retries(lambda *event: seen.append(event)):
        result, waits = run(failing(first, second), POLICY)
    assert result == 3
    assert [0.5 <= waits[0] <= 1.0, 1.0 <= waits[1] <= 2.0, len(waits)] == [True, True, 2]
    assert seen == [("it", 1, first), ("it", 2, second)]
    run(failing(ValueError()), POLICY)
    assert len(seen) == 2


def test_the_last_error_is_raised_when_the_attempts_are_used_up(run):
    errors, seen = [ValueError(number) for number in range(5)], []
    with observe_retries(lambda *event: seen.append(event)), pytest.raises(ValueError, match="3"):
        run(failing(*errors), POLICY)
    assert [attempt for _, attempt, _ in seen] == [1, 2, 3]


def test_another_error_is_not_retried(run):
    with pytest.raises(TypeError):
        run(failing(ValueError(), TypeError(), ValueError()), POLICY)


def test_no_wait_goes_past_the_time_that_is_left(run):
    times = iter([60.0, 0.4])
    with pytest.raises(ValueError, match="second"):
        run(failing(ValueError("first"), ValueError("second")), POLICY, lambda: next(times))


def test_what_the_callee_asks_for_is_waited_with_the_backoff_on_top():
    assert POLICY.wait(2, ValueError(), after_s=20.0, draw=0.5) == 21.5
    assert POLICY.wait(2, ValueError(), left_s=21.5, after_s=20.0, draw=0.5) is None
    assert POLICY.wait(1, TypeError()) is None
