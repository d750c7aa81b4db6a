"""Checksums: of values, and of chunks against Google's own."""

import zlib

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.checksum import checksum, protect, verified
from serfer.core.crc32c import crc32c, crc32c_joined, crc32c_with_zeros
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


RANDOM = bytes((7 * number * number) & 0xFF for number in range(70_001)) * 16


@pytest.mark.parametrize(
    ("data", "crc"), [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)]
)
def test_values_of_the_rfc(data, crc):
    assert crc32c(data) == crc


@given(
    st.sampled_from([0, 1, 3, 2048, 4099, 100_000, 1 << 20]),
    st.integers(0, 20),
    st.sampled_from([bytes, bytearray, memoryview]),
)
def test_parts_of_any_kind_have_the_checksum_of_the_whole(length, start, kind):
    data = RANDOM[start : start + length]
    first, second = data[: length // 3], data[length // 3 :]
    assert crc32c(kind(second), crc32c(kind(first))) == crc32c(data) == google_crc32c.value(data)


@given(st.sampled_from([0, 1, 3, 2048, 4099, 100_000]), st.sampled_from([0, 1, 3, 4, 2049, 70_000]))
def test_checksums_of_two_parts_make_that_of_both(first, second):
    one, other = RANDOM[:first], RANDOM[first : first + second]
    assert crc32c_joined(crc32c(one), crc32c(other), second) == google_crc32c.value(one + other)
    assert crc32c_with_zeros(crc32c(one), second) == google_crc32c.value(one + bytes(second))
