"""Pooling in the head's place loses no more than the paper allows, on real digits."""

import json

import numpy as np
import pytest

from serfer.core.errors import ModelError
from serfer_bench.study.papers.serfer import gap

pytestmark = pytest.mark.weekly


def test_pooling_loses_no_more_than_allowed_on_real_digits():
    result = gap.measure(seeds=(0, 1))
    assert result.before > 0.95
    assert result.drop_points <= gap.ALLOWED_POINTS
    for trial in result.trials:
        assert trial.fit.bytes_after * 100 < trial.fit.bytes_before


def test_digits_in_a_folder_are_read_as_npm_has_them(tmp_path):
    for digit in range(10):
        values = [digit / 10] * (784 * (digit + 1))
        (tmp_path / f"{digit}.json").write_text(json.dumps({"data": values}))
    images, labels = gap._folder(tmp_path)
    assert images.shape == (55, 1, 28, 28)
    assert images.dtype == np.float32
    assert np.allclose(images[:, 0, 0, 0], labels / 10)


def test_a_folder_without_digits_is_refused(tmp_path):
    (tmp_path / "0.json").write_text('{"data": [1, 2, 3]}')
    with pytest.raises(ModelError, match="holds no digits"):
        gap.measure(tmp_path)


def test_drops_are_in_points():
    trials = tuple(gap.GapTrial(seed, 0.99, after, 0.9, None) for seed, after in enumerate((0.98, 0.99)))
    result = gap.GapResult("digits", 40, 10, trials, 1.0)
    assert trials[0].drop_points == pytest.approx(1.0)
    assert result.drop_points == pytest.approx(0.5)
