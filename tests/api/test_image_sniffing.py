import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.api.http.problems import Problem
from serfer.api.http.uploads import MOST_PIECES, MOST_SCANS, _jpeg_pieces, check_format
from tests.api.malformed import chunk, encoded

JPEG, PNG, GIF = encoded("JPEG", progressive=True), encoded("PNG"), encoded("GIF")
SCAN = JPEG[JPEG.rindex(b"\xff\xda") : -2]


def refused(data, status=422):
    with pytest.raises(Problem) as caught:
        check_format("cat", data)
    assert caught.value.status == status
    assert "cat" in caught.value.detail


def test_images_of_every_format_and_jpegs_of_every_sort_pass_and_other_formats_do_not():
    for kind in ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"):
        check_format("cat", encoded(kind))
    for start in (b"GIF87a", b"GIF89a", b"MM\0*", b"II+\0", b"MM\0+"):
        check_format("cat", start + b"x")
    for settings in ({"progressive": True}, {"restart_marker_blocks": 1}, {"exif": b"Exif\0\0" + JPEG}):
        check_format("cat", encoded("JPEG", **settings))
    refused(encoded("PPM"), 415)


def test_a_jpeg_of_many_scans_is_refused():
    scans = JPEG.count(b"\xff\xda")
    check_format("cat", JPEG[:-2] + SCAN * (MOST_SCANS - scans) + JPEG[-2:])
    refused(JPEG[:-2] + SCAN * (MOST_SCANS - scans + 1) + JPEG[-2:])


def test_bytes_after_the_end_of_a_jpeg_are_ignored():
    check_format("cat", JPEG + SCAN * 100)


@pytest.mark.parametrize(
    "data",
    [
        JPEG[:2] + b"\xff\xe5\0\2" * MOST_PIECES + JPEG[2:],
        JPEG[:2] + b"\xff\xd8" * MOST_PIECES + JPEG[2:],
        PNG[:33] + chunk(b"IDAT") * MOST_PIECES + PNG[33:],
        PNG[:-12] + chunk(b"abCd") * MOST_PIECES + PNG[-12:],
        GIF[:13] + bytes(768) + b"!\xfe\1a\0" * MOST_PIECES + b",",
        GIF[:13] + bytes(768) + b"!\xfe" + b"\1a" * MOST_PIECES + b"\0,",
        GIF[:13] + bytes(768) + b"x" * (MOST_PIECES + 1) + b",",
    ],
    ids=["segments", "begins", "chunks", "chunks after", "extensions", "blocks", "junk"],
)
def test_files_of_nothing_but_pieces_are_refused(data):
    refused(data)


@pytest.mark.hostile
@given(st.sampled_from([JPEG, PNG, GIF, b"GIF89a", b"RIFF"]), st.integers(0), st.binary(max_size=30))
def test_damaged_files_pass_or_are_refused(whole, at, junk):
    at %= len(whole)
    try:
        check_format("cat", whole[:at] + junk + whole[at + len(junk) :])
    except Problem as problem:
        status = problem.status
    else:
        return
    assert status in {415, 422}


@pytest.mark.exact
@given(
    st.lists(st.sampled_from([b"\xff", b"\xda", b"\x01", b"\x00\x02", SCAN, b"\xff\xff\xda", b"\xff\x00"]), max_size=80)
)
def test_a_small_jpeg_passes_exactly_if_its_scans_are_few(parts):
    """Small files are not looked through piece by piece where counting bytes suffices: no more may pass by that."""
    data = b"\xff\xd8\xff\xe0\x00\x02" + b"".join(parts)
    scans = sum(piece == "scan" for piece in _jpeg_pieces(data))
    try:
        check_format("cat", data)
        assert scans <= MOST_SCANS
    except Problem:
        assert scans > MOST_SCANS
