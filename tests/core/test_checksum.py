"""Checksums of stored values: any alteration is detected, and a value is bound to its key and its place."""

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.checksum import checksum, protect, verified
from serfer.core.errors import AlteredPieceError

KEY = "serfer:" + "0" * 32 + ":1:2"


@given(st.binary(max_size=64), st.data())
def test_any_flipped_bits_within_four_bytes_are_detected(value, data):
    """CRC-32 finds every burst of up to 32 bits, wherever it lies: in the value or in the checksum."""
    stored = bytearray(protect(value, KEY))
    place = data.draw(st.integers(0, len(stored) - 4))
    burst = data.draw(st.binary(min_size=4, max_size=4).filter(any))
    for offset, bits in enumerate(burst):
        stored[place + offset] ^= bits
    with pytest.raises(AlteredPieceError, match=KEY):
        verified(bytes(stored), KEY)


@given(st.binary(max_size=64), st.integers(1, 64))
def test_a_truncated_or_extended_value_is_detected(value, change):
    stored = protect(value, KEY)
    for other in (stored[: max(0, len(stored) - change)], stored + bytes(change)):
        with pytest.raises(AlteredPieceError):
            verified(other, KEY)


@given(st.binary(max_size=64))
def test_a_checksum_is_bound_to_its_key_and_cell(value):
    assert bytes(verified(protect(value, KEY, 7), KEY, 7)) == value
    for key, cell in ((KEY[:-1] + "3", 0), (KEY, 1)):
        with pytest.raises(AlteredPieceError):
            verified(protect(value, KEY), key, cell)


def test_the_checksum_is_the_crc_of_key_cell_and_value():
    """The layout is part of the plan's format: this number may change with FORMAT only."""
    assert checksum(b"value", KEY, 7) == zlib.crc32(KEY.encode() + b"#7" + b"value")
