"""Models and records travel as files that are bounded, versioned, and refused where they are another scenario's."""

import json
import re

import numpy as np
import pytest

from serfer.control.values.features import NAMES, LevelFacts
from serfer.control.values.load_history import MAX_SLOTS
from serfer.control.values.load_record import LoadRecord
from serfer.control.values.value_model import MAX_MODEL_BYTES, ValueModel, model_bytes
from serfer.core.errors import InputError
from tests.control.values.worlds import step

FACTS = LevelFacts(10.0, 13.0, 120.0)
DATA = model_bytes(FACTS, 500, step("rate 0 ago", 0.0, -1.0, 2.0), step("level", 0.5, 3.0, -4.0))


def changed(**fields):
    return json.dumps({**json.loads(DATA), **fields}).encode()


def test_a_model_decides_by_its_two_forests():
    rows = np.zeros((4, len(NAMES)))
    rows[:, NAMES.index("rate 0 ago")] = [0.0, 1.0, 0.0, 1.0]  # keeping saves -1 or 2
    rows[:, NAMES.index("level")] = [0.0, 1.0, 1.0, 0.0]  # starting saves 3 or -4
    model = ValueModel.read(DATA, FACTS)
    assert model.on(rows, np.full(4, fill_value=False)).tolist() == [True, False, False, True]
    assert model.on(rows, np.full(4, fill_value=True)).tolist() == [True, True, False, True]


@pytest.mark.parametrize(
    ("data", "wrong"),
    [
        (b"{", "not JSON"),
        (b"[]", "should be an object"),
        (b"{}", "lacks 'format'"),
        (changed(format="other"), "not a value model"),
        (changed(version=9), "newer layout"),
        (changed(features=["a"]), "other features"),
        (changed(facts=[10.0, 14.0, 120.0]), "other prices or speeds"),
        (changed(keep="tree"), "keep: it is not a LightGBM"),
        (changed(start=step("level", 0.5, 3.0, -4.0).replace(f"idx={len(NAMES) - 1}", "idx=99")), "has 100 features"),
        (b" " * (MAX_MODEL_BYTES + 1), "larger than"),
    ],
)
def test_what_is_not_a_model_for_the_scenario_is_refused(data, wrong):
    with pytest.raises(InputError, match=wrong):
        ValueModel.read(data, FACTS)


def test_a_record_is_the_same_after_its_journey():
    record = LoadRecord(np.array([0.0, 1.5, 1e6], np.float32), 1234.5, FACTS)
    other = LoadRecord.decode(record.encode())
    assert other.rates.tolist() == record.rates.tolist()
    assert (other.end_s, other.facts) == (1234.5, FACTS)


@pytest.mark.parametrize(
    ("damage", "wrong"),
    [
        (lambda data: data[:-1], "torn"),
        (lambda data: data[:-4] + b"\0\0\xc0\x7f", "finite"),
        (lambda data: data.replace(b'"version":1', b'"version":2'), "newer"),
        (lambda data: re.sub(rb'"slots":\d+', b'"slots":%d' % (MAX_SLOTS + 1), data), "slots should be"),
        (lambda _: b"", "not JSON"),
    ],
)
def test_a_damaged_record_is_refused(damage, wrong):
    data = LoadRecord(np.array([0.0, 1.5], np.float32), 0.0, FACTS).encode()
    with pytest.raises(InputError, match=wrong):
        LoadRecord.decode(damage(data))
