"""Runs of ONNX Runtime that are ended when they take too long."""

import numpy as np
import onnxruntime as ort
import pytest

from serfer.core.costs.sessions import run_within
from tests.core.loops import SIZE, loop

IMAGE = np.ones((1, *SIZE), np.float32)


def test_a_loop_without_end_is_ended_and_the_session_computes_again():
    session = ort.InferenceSession(loop(2**62))
    for _ in range(2):
        with pytest.raises(TimeoutError, match="one run takes more than"):
            run_within(ort, session, {"x": IMAGE}, 0.05)


def test_a_run_in_time_is_what_it_is_without_a_bound():
    session = ort.InferenceSession(loop(3))
    [bounded], [free] = run_within(ort, session, {"x": IMAGE}), session.run(None, {"x": IMAGE})
    assert np.array_equal(bounded, free)
