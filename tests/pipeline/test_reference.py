import numpy as np
import pytest

from serfer.core.errors import PlanError
from serfer.core.exactness import difference, finite_share
from serfer.pipeline.reference import normalised, unsplit
from serfer.plan_directory import load_plan
from tests.e2e.small import CLASSES, PREPROCESS, SIZE, batch, split_small

WHOLE = np.array([[0.0, 10.0, 5.0], [3.0, 1.0, 2.0]], dtype=np.float32)


@pytest.mark.exact
def test_another_first_class_of_any_image_is_not_exact_however_small_the_error():
    whole = np.array([[0.0, 1.0, 1.0 - 5e-5]], dtype=np.float32)
    split = np.array([[0.0, 1.0 - 5e-5, 1.0]], dtype=np.float32)
    delta = difference(split, whole)
    assert delta.error < 1e-4
    assert (delta.same_top, delta.exact) == (False, False)


@pytest.mark.parametrize(
    ("split", "whole", "error", "same_top", "exact"),
    [
        (WHOLE, WHOLE, 0.0, True, True),
        (WHOLE + np.float32(0.1), WHOLE, pytest.approx(0.01, rel=1e-3), True, False),  # relative to the range
        (WHOLE * 1000 + 1, WHOLE * 1000, pytest.approx(1e-4, rel=1e-2), True, True),
        (np.full((1, 3), 2.5), np.full((1, 3), 2.0), 0.5, True, False),  # of constants: to their size
        (np.array([[0, 1 - 5e-6, 1]], np.float32), np.array([[0, 1, 1 - 5e-6]], np.float32), None, True, True),  # a tie
    ],
)
def test_difference_of_answers(split, whole, error, same_top, exact):
    delta = difference(split, whole)
    assert (error is None or delta.error == error, delta.same_top, delta.exact) == (True, same_top, exact)


def test_empty_answers_are_equal_and_nothing_equals_nan():
    empty = {"boxes": np.zeros((1, 0, 4), dtype=np.float32)}
    assert difference(empty, empty).exact
    assert finite_share(empty) == 1
    broken = WHOLE.copy()
    broken[0, 0] = np.nan
    assert difference(broken, WHOLE).error == float("inf")
    assert not difference(broken, WHOLE).exact
    assert not difference(WHOLE, broken).exact


def test_nan_and_infinities_equal_themselves_at_the_same_places():
    broken = WHOLE.copy()
    broken[0] = [np.nan, np.inf, -np.inf]
    assert difference(broken, broken).exact
    assert difference(broken + np.float32([[0], [1]]), broken).error == pytest.approx(0.5)  # of what is finite
    other = broken.copy()
    other[0, 1:] = -np.inf, np.inf
    assert not difference(other, broken).exact
    nothing = np.full_like(WHOLE, np.nan)
    assert difference(nothing, nothing).exact
    assert (finite_share(nothing), finite_share(broken), finite_share(WHOLE)) == (0, 0.5, 1)


def test_a_class_with_an_infinite_score_is_the_first():
    whole = np.array([[1.0, -np.inf, 2.0], [0.0, np.inf, 1.0]], dtype=np.float32)
    assert difference(whole, whole).same_top
    other = np.array([[2.0, -np.inf, 1.0], [0.0, np.inf, 1.0]], dtype=np.float32)
    assert not difference(other, whole).same_top


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return split_small(tmp_path_factory.mktemp("small"))


def test_pixels_and_their_normalised_floats_give_the_same(directory):
    plan = load_plan(directory)
    pixels = np.random.default_rng(0).integers(0, 256, (2, SIZE, SIZE, 3), dtype=np.uint8)
    values = normalised(plan, pixels)
    channel = (pixels[1, 5, 7, 2] / 255 - PREPROCESS.mean[2]) / PREPROCESS.std[2]
    assert values[1, 2, 5, 7] == pytest.approx(channel, rel=1e-5)
    run = unsplit(plan, directory)
    assert np.array_equal(run(pixels), run(values))
    assert run(batch(3)).shape == (3, CLASSES)


def test_pixels_need_a_description(tmp_path):
    plan = load_plan(split_small(tmp_path, grids=(1, 1), preprocess=None))
    with pytest.raises(PlanError, match="how an image becomes its input"):
        normalised(plan, np.zeros((1, SIZE, SIZE, 3), dtype=np.uint8))
