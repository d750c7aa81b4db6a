"""`serfer bench maps peers`: what it says without MONAI, when time is up, and of ways side by side."""

import numpy as np
import pytest

from serfer.core.errors import MissingExtraError, UnavailableError
from serfer_bench.mapping.peers import MAP, MONAI_TORCH, WHOLE, Comparing, Way, _compared, check_monai, results


def test_a_missing_monai_is_named_with_how_to_install_it(tmp_path):
    with pytest.raises(MissingExtraError, match="pip install --no-deps --target FOLDER monai"):
        check_monai([str(tmp_path)])
    (tmp_path / "monai").mkdir()
    (tmp_path / "monai" / "__init__.py").touch()
    check_monai([str(tmp_path)])


def test_nothing_starts_when_time_is_up(tmp_path):
    ways, notes = Comparing((64, 64), 64, 1, tmp_path, 0.0, (), print).measure(["DnCNN"])
    assert ways == []
    assert "DnCNN" in notes[0]


def test_maps_are_compared_by_value_and_best_channel(tmp_path):
    whole = np.random.default_rng(0).standard_normal((3, 600, 40)).astype(np.float32)
    made = whole.copy()
    made[whole[:, 550, 7].argmax(), 550, 7] = whole.min()
    np.save(tmp_path / "whole.npy", whole)
    np.save(tmp_path / "made.npy", made)
    error, differs = _compared(tmp_path / "made.npy", tmp_path / "whole.npy")
    assert error == pytest.approx((whole[:, 550, 7].max() - whole.min()) / np.ptp(whole))
    assert differs == 1 / (600 * 40)
    np.save(tmp_path / "made.npy", made[:, 1:])
    with pytest.raises(UnavailableError, match="599"):
        _compared(tmp_path / "made.npy", tmp_path / "whole.npy")


def test_ways_are_told_as_medians_relative_to_serfer_map():
    def way(what, seconds):
        return Way("DnCNN", what, seconds, seconds / 2, 1.0, 1e-7, 0.0, 2 * 10**6, 10**6)

    ways = [way(WHOLE, 8.0), way(MAP, 4.0), way(MONAI_TORCH, 12.0), way(MAP, 2.0), way(MAP, 3.0)]
    [table] = results(ways, ["a note"]).tables
    assert [row[2:4] for row in table.body] == [("8.0", "x2.67"), ("3.0", "x1.00"), ("12.0", "x4.00")]
