"""`serfer study policies sharing`: both rules of shared invocations on tasks whose batches are known."""

import pytest

from serfer_bench.study.policy_experiments.sharing import Stage, measure, simulate

STAGE = Stage(0.05, 1, 0.3)


def test_a_task_starts_at_once_while_a_slot_is_free_and_what_waits_goes_together():
    passed, sizes, billed = simulate(STAGE, [0.0, 0.01, 0.02, 1.0], 16, 0.0)
    assert sizes == [1, 2, 1]
    assert passed == pytest.approx([0.05, 0.04 + 0.0525, 0.03 + 0.0525, 0.05])
    assert billed == pytest.approx(0.05 + 0.0525 + 0.05)


def test_a_window_ends_when_the_batch_is_full_or_its_time_is_over():
    passed, sizes, _ = simulate(Stage(0.05, 10, 0.3), [0.0, 0.1, 0.5, 1.0], 2, 0.2)
    assert sizes == [2, 1, 1]
    assert passed == pytest.approx([0.1 + 0.0525, 0.0525, 0.25, 0.25])


def test_within_its_range_a_window_keeps_the_time_and_bills_less():
    at_once, *windows = measure(Stage(0.05, 1000, 0.3), [50.0], 60.0)
    assert at_once.billed_ms == pytest.approx(50.0, abs=0.1)
    for row in windows:
        assert row.p99_ms <= 300.0
        assert row.billed_ms < at_once.billed_ms
        assert row.p50_ms > at_once.p50_ms
