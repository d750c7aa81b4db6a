"""Access logs as loads: every request counts, in the second of its own clock."""

import gzip
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.errors import InputError
from serfer.sim.loads import access_logs, lines
from serfer.sim.loads.reading import read_load
from serfer.sim.rates import silent

MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
NOON = 1_795_608_000  # 2026-11-25 12:00 UTC
ALB = (
    'https {answered}Z app/lb/50dc6c495c0c9188 10.0.0.1:2817 10.0.0.2:80 0 0.1 0 200 200 34 366 "GET https://a:443/ '
    'HTTP/1.1" "curl/7" ECDHE TLSv1.2 arn:aws:x "Root=1-5" "a" "arn:b" 1 {created}Z "forward" "-" "-" "10.0.0.2:80" '
    '"200" "-" "-"'
)


def read(path):
    return read_load(path, silent)


def stamp(second, minutes=0):
    """Return a second as a server writes it in a zone so many minutes east of Greenwich."""
    time = datetime.fromtimestamp(second, timezone(timedelta(minutes=minutes)))
    return f"{time.day:02}/{MONTHS[time.month - 1]}/{time:%Y:%H:%M:%S %z}"


def common(second, minutes=0):
    return f'10.0.0.1 - - [{stamp(second, minutes)}] "POST /v1/classify HTTP/1.1" 200 12'


def combined(second, minutes=0):
    return f'{common(second, minutes)} "-" "curl/8 [en]"'


def virtual_host(second, minutes=0):
    return f"www.example.com:443 {combined(second, minutes)}"


def balancer(second, minutes=0):
    del minutes
    texts = (datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%dT%H:%M:%S.186641") for time in (second + 7, second))
    return ALB.format(answered=next(texts), created=next(texts))


def classic_balancer(second, minutes=0):
    del minutes
    time = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f'{time}.9Z lb 10.0.0.1:2 10.0.0.2:80 0 0 0 200 200 0 2 "GET /"'


def written(tmp_path, *entries):
    path = tmp_path / "access.log"
    path.write_text("".join(f"{entry}\n" for entry in entries))
    return path


def counted(load):
    """Return how many requests came in which second, where some came."""
    starts = load.begin_s + load.starts_s[:-1]
    return {
        int(start): round(seconds * rate)
        for start, seconds, rate in zip(starts, load.durations_s, load.rates, strict=True)
        if rate
    }


WRITERS = (common, combined, virtual_host, balancer, classic_balancer)


@given(
    entries=st.lists(
        st.tuples(st.integers(NOON, NOON + 5000), st.integers(-14 * 60, 14 * 60)), min_size=1, max_size=60
    ),
    writer=st.sampled_from(WRITERS),
    packed=st.booleans(),
)
def test_a_written_log_is_read_as_its_counts_in_any_order_and_zone(tmp_path_factory, entries, writer, packed):
    text = "\n".join(writer(second, minutes) for second, minutes in entries).encode()
    path: Path = tmp_path_factory.mktemp("log") / ("access.log.gz" if packed else "access.log")
    path.write_bytes(gzip.compress(text) if packed else text)
    load = read(path)
    seconds = [second for second, _ in entries]
    assert counted(load) == Counter(seconds)
    assert (load.begin_s, load.seconds) == (min(seconds), max(seconds) - min(seconds) + 1)
    assert load.name == "access"


def test_logs_that_were_packed_one_by_one_can_be_joined(tmp_path):
    path = tmp_path / "all.log.gz"
    path.write_bytes(b"".join(gzip.compress(f"{common(NOON + n)}\n".encode()) for n in (5, 0)))
    assert counted(read(path)) == {NOON: 1, NOON + 5: 1}


def test_requests_may_hold_any_bytes(tmp_path):
    path = tmp_path / "access.log"
    path.write_bytes(
        f"{common(NOON)}\n".encode() + f'1.1.1.1 - - [{stamp(NOON)}] "'.encode() + b'\xff\x00\x16" 400 0\n'
    )
    assert counted(read(path)) == {NOON: 2}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (
            (common(NOON), "", "not a request"),
            r"line 3: a line of an access log has its time as \[.* not 'not a request'",
        ),
        ((common(NOON), common(NOON).replace("25/Nov", "31/Feb")), "line 2"),
        ((common(NOON), common(NOON).replace("Nov", "Noo")), "line 2"),
        ((common(NOON), balancer(NOON)), "line 2"),
        ((balancer(NOON), common(NOON)), "line 2"),
        ((common(NOON), "x" * 70_000), "line 2: a line has at most 65,536 bytes"),
        (("what is this",), "line 1: a load is the columns"),
        (("",), "has no rows"),
    ],
)
def test_a_wrong_line_is_named_with_file_and_line(tmp_path, entries, message):
    path = written(tmp_path, *entries)
    with pytest.raises(InputError, match=message) as raised:
        read(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("cut", [12, 40])
def test_a_damaged_or_incomplete_file_of_gzip_is_refused(tmp_path, cut):
    path = tmp_path / "access.log.gz"
    path.write_bytes(gzip.compress("\n".join(common(NOON + n) for n in range(50)).encode())[:cut])
    with pytest.raises(InputError, match=r"access\.log\.gz' cannot be read: it is damaged or incomplete"):
        read(path)


def test_what_unpacks_without_end_is_refused_at_its_first_line(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(f"{common(NOON)}\n".encode() + b"0" * 50_000_000))
    with pytest.raises(InputError, match="line 2: a line has at most"):
        read(path)


def test_a_log_is_bounded_as_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LOG_BYTES", 500)
    with pytest.raises(InputError, match="line 7: a log has at most 500 bytes"):
        read(written(tmp_path, *(common(NOON) for _ in range(10))))


def test_a_log_of_many_seconds_is_counted_in_longer_steps(tmp_path, monkeypatch):
    path = written(tmp_path, *(common(NOON + n) for n in (0, 1, 3, 9, 12, 61)))
    monkeypatch.setattr(access_logs, "MAX_COUNTS", 3)
    load = read(path)
    assert (load.durations_s.tolist(), load.rates.tolist()) == ([10, 10, 40, 10], [0.4, 0.1, 0, 0.1])
    monkeypatch.setattr(access_logs, "MAX_COUNTS", 1)
    with pytest.raises(InputError, match="more than 1 minutes"):
        read(path)


def test_long_logs_show_how_far_reading_is(tmp_path, monkeypatch):
    monkeypatch.setattr(access_logs, "_REPORT", 2)
    shown = []
    load = read_load(written(tmp_path, *(common(NOON) for _ in range(5))), shown.append)
    assert shown == ["reading access.log: 2 lines", "reading access.log: 4 lines"]
    assert np.array_equal(load.rates, [5.0])
