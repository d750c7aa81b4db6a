"""What was learnt is taken back only whole, and only by its owner."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.control.saved import state as state_module
from serfer.control.saved.state import StateOwner, decode_state, encode_state
from serfer.core.errors import InputError

OWNER = StateOwner("alexnet", "break-even", "0" * 64)
SNAPSHOT = {"version": 1, "numbers": [0.1, 1 / 3, 2e-300], "text": "ü\n"}
DATA = encode_state(OWNER, 1.7e9, SNAPSHOT)


def test_a_state_comes_back_as_it_was():
    assert decode_state(DATA, OWNER) == SNAPSHOT


@settings(derandomize=True, max_examples=200)
@given(length=st.integers(0, len(DATA) - 1))
def test_a_torn_state_is_refused(length):
    with pytest.raises(InputError):
        decode_state(DATA[:length], OWNER)


@settings(derandomize=True, max_examples=200)
@given(at=st.integers(DATA.index(b"\n") + 1, len(DATA) - 1), bit=st.integers(0, 7))
def test_an_altered_snapshot_is_refused(at, bit):
    with pytest.raises(InputError, match="SHA-256"):
        decode_state(DATA[:at] + bytes([DATA[at] ^ 1 << bit]) + DATA[at + 1 :], OWNER)


@settings(derandomize=True, max_examples=200)
@given(data=st.binary(max_size=300))
def test_anything_else_is_refused(data):
    with pytest.raises(InputError):
        decode_state(data, OWNER)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (StateOwner("resnet", "break-even", "0" * 64), "about the load of 'alexnet', not of 'resnet'"),
        (StateOwner("alexnet", "ski-rental", "0" * 64), "of the policy 'break-even', not of 'ski-rental'"),
        (StateOwner("alexnet", "break-even", "1" * 64), "other prices or speeds"),
    ],
)
def test_another_owners_state_is_refused_by_name(other, words):
    with pytest.raises(InputError, match=words):
        decode_state(DATA, other)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "newer version, 2"),
        ({"version": "x"}, "another version"),
        ({"format": "x"}, "not a policy's state"),
        ({"bytes": 1}, "torn"),
        ({"bytes": None}, "bytes should be a whole number"),
        ({"more": 1}, "unknown 'more'"),
    ],
)
def test_other_first_lines_are_refused(changes, words):
    first, body = DATA.split(b"\n", 1)
    with pytest.raises(InputError, match=words):
        decode_state(json.dumps({**json.loads(first), **changes}).encode() + b"\n" + body, OWNER)


def test_what_is_no_json_or_too_large_is_not_kept(monkeypatch):
    with pytest.raises(ValueError, match="JSON"):
        encode_state(OWNER, 0.0, {"a": float("nan")})
    monkeypatch.setattr(state_module, "MAX_SNAPSHOT_BYTES", 10)
    with pytest.raises(ValueError, match="larger than 10"):
        encode_state(OWNER, 0.0, SNAPSHOT)
