"""Forests decide as LightGBM itself does, and text that is not a forest is refused in words."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.values.forest import MAX_TEXT, Forest
from serfer.core.errors import InputError

lightgbm = pytest.importorskip("lightgbm")
FEATURES = 5


def grown(seed=0, rows=400, trees=20, **parameters):
    """Return a model of random data, and the data."""
    draw = np.random.default_rng(seed)
    data = np.round(draw.normal(size=(rows, FEATURES)), draw.integers(0, 4))
    wanted = data[:, 0] * data[:, 1] + np.abs(data[:, 2]) + draw.normal(size=rows)
    known = {"objective": "regression", "verbosity": -1, "num_threads": 1, "min_data_in_leaf": 5, **parameters}
    return lightgbm.train(known, lightgbm.Dataset(data, wanted), trees), data


TEXT = grown()[0].model_to_string()


@settings(derandomize=True, max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 1000),
    leaves=st.integers(2, 64),
    trees=st.integers(1, 60),
    rows=st.sampled_from([6, 30, 800]),
    use_missing=st.booleans(),
)
def test_a_forest_predicts_what_lightgbm_does(seed, leaves, trees, rows, use_missing):
    model, data = grown(seed, rows, trees, num_leaves=leaves, use_missing=use_missing)
    draw = np.random.default_rng(seed)
    asked = np.vstack([data, draw.normal(scale=3.0, size=(50, FEATURES)), np.zeros((1, FEATURES))])
    forest = Forest.parse(model.model_to_string())
    assert np.abs(forest.predict(asked) - model.predict(asked)).max() <= 1e-12
    assert forest.features == FEATURES


def test_a_forest_of_single_leaves_is_a_constant():
    model, data = grown(rows=6, min_data_in_leaf=100)
    assert Forest.parse(model.model_to_string()).predict(data) == pytest.approx(model.predict(data), abs=1e-12)


def test_no_rows_have_no_values():
    assert Forest.parse(TEXT).predict(np.empty((0, FEATURES))).shape == (0,)


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "not a LightGBM model"),
        ("{}", "not a LightGBM model"),
        (TEXT.replace("version=v4", "version=v9"), "version v3 or v4"),
        (TEXT.replace("num_class=1", "num_class=3"), "one number"),
        (TEXT.replace("objective=regression", "objective=binary sigmoid:1"), "boosted regression"),
        (TEXT.replace("objective=regression", "objective=regression\naverage_output"), "boosted regression"),
        (TEXT[: len(TEXT) // 2], "torn"),
        (TEXT.partition("Tree=0")[0], "1 to 1000 trees, not 0"),
        (TEXT.replace("max_feature_idx=4", "max_feature_idx=1"), "tree 0: it splits by a feature that is not there"),
        (TEXT.replace("max_feature_idx=4", "max_feature_idx=99999"), "1 to 1000 features"),
        (TEXT.replace("num_cat=0", "num_cat=1"), "tree 0: it has categories"),
        (TEXT.replace("is_linear=0", "is_linear=1"), "tree 0: it has categories or linear leaves"),
        (TEXT.replace("num_leaves=31", "num_leaves=65"), "65 leaves: 1 to 64"),
        (TEXT.replace("decision_type=2", "decision_type=6"), "zero for missing"),
        (TEXT.replace("decision_type=2", "decision_type=1"), "splits by category"),
        (TEXT.replace("leaf_value=", "leaf_value=nan "), "leaf_value should be"),
        (TEXT.replace("leaf_value=", "leaf_value=1e999 ", 1), "leaf_value should be"),
        (TEXT.replace("threshold=", "threshold=--1e ", 1), "threshold should be"),
        (re.sub(r"left_child=\S+", "left_child=0", TEXT, count=1), "not those of a tree"),
        (TEXT.replace("left_child=", "left_child=999 ", 1), "left_child should be"),
        ("x" * (MAX_TEXT + 1), "larger than"),
    ],
)
def test_what_is_not_a_forest_is_refused_in_words(text, wrong):
    with pytest.raises(InputError, match=wrong):
        Forest.parse(text)


@settings(derandomize=True, max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_forest_is_refused_or_predicts_finite_numbers(data):
    text = grown(trees=2, num_leaves=6)[0].model_to_string()
    at = data.draw(st.integers(0, text.index("end of trees")))
    damaged = text[:at] + data.draw(st.sampled_from(["", "9", "-", " ", "=", "\n", "e", "Tree=1\n"])) + text[at + 1 :]
    try:
        forest = Forest.parse(damaged)
    except InputError:
        return
    assert np.isfinite(forest.predict(np.ones((3, forest.features)))).all()
