"""Features are the same for a whole load and slot by slot, and know only the past."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.values.features import NAMES, Bursts, LevelFacts, burst_features, level_features, load_features
from serfer.control.values.load_history import SLOT_S

LEVELS = 3


@st.composite
def loads(draw):
    """Draw bursts and calms, in instances."""
    rows = draw(
        st.lists(st.tuples(st.integers(1, 300), st.sampled_from([0.0, 0.05, 0.4, 1.5, 2.9])), min_size=1, max_size=6)
    )
    return np.concatenate([np.full(slots, share) for slots, share in rows])


def facts(boot_s=120.0):
    return LevelFacts(qps=1.0, price_ratio=10.0, boot_s=boot_s)


def batch(known, shares, level):
    slots = np.arange(len(shares))
    load = load_features(known, shares, slots, (slots + 1) * SLOT_S)
    return level_features(load, burst_features(known, shares, level, slots), level)


@settings(derandomize=True, max_examples=30, deadline=None)
@given(shares=loads(), boot_s=st.sampled_from([0.0, 45.0, 240.0, 5000.0]), data=st.data())
def test_features_are_the_same_slot_by_slot(shares, boot_s, data):
    known, bursts = facts(boot_s), Bursts(facts(boot_s))
    bursts.grow(LEVELS)
    asked = data.draw(st.integers(0, len(shares) - 1))
    for share in shares[: asked + 1]:
        bursts.add(share)
    load = load_features(known, shares[: asked + 1], np.array([asked]), np.array([(asked + 1) * SLOT_S]))
    rows = level_features(load, bursts.features(shares[: asked + 1]), np.arange(LEVELS, dtype=float))
    assert rows.shape == (LEVELS, len(NAMES))
    for level in range(LEVELS):
        np.testing.assert_allclose(rows[level], batch(known, shares, level)[asked], rtol=1e-9, atol=1e-9)


@settings(derandomize=True, max_examples=30, deadline=None)
@given(shares=loads(), other=loads(), data=st.data())
def test_features_know_only_the_past(shares, other, data):
    seen = data.draw(st.integers(1, len(shares)))
    changed = np.concatenate([shares[:seen], other])
    for level in range(LEVELS):
        assert np.array_equal(batch(facts(), shares, level)[:seen], batch(facts(), changed, level)[:seen])


def test_a_level_that_was_never_reached_before_has_been_calm():
    bursts = Bursts(facts())
    for _ in range(50):
        bursts.add(0.0)
    bursts.grow(1)
    bursts.add(0.9)
    busy = np.array([0.0] * 50 + [0.9])
    found = bursts.features(busy)
    assert np.array_equal(found[0], burst_features(facts(), busy, 0, np.array([50]))[0])
