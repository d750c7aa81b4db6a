"""Access logs as loads: every request counts, in the second of its own clock."""

import gzip
import re
from collections import Counter
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.errors import InputError, UsageError
from serfer.cost.loads import access_logs, lines
from serfer.cost.loads.reading import read_load
from serfer.cost.loads.steps import silent

NOON = 1_795_608_000  # 2026-11-25 12:00 UTC
COMMON = '10.0.0.1 - - [{local:%d/%b/%Y:%H:%M:%S %z}] "POST /v1/classify HTTP/1.1" 200 12'
COMBINED = f'{COMMON} "-" "curl/8 [en]"'
BALANCER = (
    "https {answered:%FT%T}.186641Z app/lb/50dc6c495c0c9188 10.0.0.1:2817 10.0.0.2:80 0 0.1 0 200 200 34 366 "
    '"GET https://a:443/v1/classify?k=1 HTTP/1.1" "curl/7" ECDHE TLSv1.2 arn:aws:x "Root=1-5" "a" "arn:b" 1 '
    '{utc:%FT%T}.186641Z "forward" "-" "-" "10.0.0.2:80" "200" "-" "-"'
)
CLASSIC = '{utc:%FT%T}.9Z lb 10.0.0.1:2 10.0.0.2:80 0 0 0 200 200 0 2 "POST http://a:80/v1/classify HTTP/1.1"'
CLOUDFRONT = "{utc:%F\t%T}\tLAX1\t392\t192.0.2.1\tPOST\td1.cloudfront.net\t/v1/classify\t200\t-\tcurl/8\tk=1\t-"
FORMATS = [COMMON, COMBINED, f"www.example.com:443 {COMBINED}", BALANCER, CLASSIC, CLOUDFRONT, "{iso},/v1/classify"]


def read(path):
    return read_load(path, silent)


def entry(second, minutes=0, text=COMMON):
    """Return a line of a log; local times are of a zone so many minutes east of Greenwich."""
    utc = datetime.fromtimestamp(second, UTC)
    local = utc.astimezone(timezone(timedelta(minutes=minutes)))
    return text.format(utc=utc, local=local, iso=local.isoformat(), answered=utc + timedelta(seconds=7))


def written(tmp_path, *entries):
    path = tmp_path / "access.log"
    path.write_text("".join(f"{entry}\n" for entry in entries))
    return path


def counted(load):
    """Return how many requests came in which second, where some came."""
    rows = zip(load.begin_s + load.starts_s[:-1], load.durations_s, load.rates, strict=True)
    return {int(start): round(seconds * rate) for start, seconds, rate in rows if rate}


@given(
    entries=st.lists(
        st.tuples(st.integers(NOON, NOON + 5000), st.integers(-14 * 60, 14 * 60)), min_size=1, max_size=60
    ),
    kind=st.sampled_from(FORMATS),
    packed=st.booleans(),
)
def test_a_written_log_is_read_as_its_counts_in_any_order_and_zone(tmp_path_factory, entries, kind, packed):
    text = "\n".join(entry(second, minutes, kind) for second, minutes in entries).encode()
    path: Path = tmp_path_factory.mktemp("log") / ("access.log.gz" if packed else "access.log")
    path.write_bytes(gzip.compress(text) if packed else text)
    load = read(path)
    seconds = [second for second, _ in entries]
    assert counted(load) == Counter(seconds)
    assert (load.begin_s, load.seconds) == (min(seconds), max(seconds) - min(seconds) + 1)
    assert load.name == "access"


def test_logs_that_were_packed_one_by_one_can_be_joined(tmp_path):
    path = tmp_path / "all.log.gz"
    path.write_bytes(b"".join(gzip.compress(f"{entry(NOON + n)}\n".encode()) for n in (5, 0)))
    assert counted(read(path)) == {NOON: 1, NOON + 5: 1}


def test_requests_may_hold_any_bytes(tmp_path):
    path = tmp_path / "access.log"
    path.write_bytes(b"\n".join([entry(NOON).encode(), entry(NOON).encode().replace(b"POST", b"\xff\x00\x16")]))
    assert counted(read(path)) == {NOON: 2}


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ((entry(NOON), "x" * 70_000), "line 2: a line has at most 65,536 bytes"),
        (("what is this", "nor this"), "line 1: a load is the columns .*; not 'what is this'"),
        (("",), "has no rows"),
    ],
)
def test_what_cannot_be_read_is_refused_with_file_and_line(tmp_path, entries, message):
    path = written(tmp_path, *entries)
    with pytest.raises(InputError, match=message) as raised:
        read(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "wrong",
    [
        "not a request",
        entry(NOON).replace("25/Nov", "31/Feb"),
        entry(NOON).replace("Nov", "Noo"),
        entry(NOON, text=BALANCER),
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_lines_of_another_format_are_counted_and_left_out(tmp_path, wrong, place):
    entries = [entry(NOON), entry(NOON + 5)]
    entries.insert(place, wrong)
    load = read(written(tmp_path, *entries))
    if wrong.startswith("https") and place == 0:  # the first line that is known says what the file is
        assert counted(load) == {NOON: 1}
        assert load.remarks[0].startswith("2 of 3 lines are not of its format and were left out; the first is line 2,")
    else:
        assert counted(load) == {NOON: 1, NOON + 5: 1}
        assert load.remarks == (
            f"1 of 3 lines are not of its format and were left out; the first is line {place + 1}, {wrong[:60]!r}",
        )


@given(
    junk=st.lists(st.one_of(st.binary(max_size=80), st.text(max_size=80).map(str.encode)), max_size=20),
    kind=st.sampled_from(FORMATS),
    prefix=st.sampled_from([None, "/", "/v1"]),
)
def test_whatever_else_is_in_a_log_every_line_is_a_request_or_counted_as_left_out(tmp_path_factory, junk, kind, prefix):
    lines = [line for each in junk for line in each.split(b"\n")]
    path = tmp_path_factory.mktemp("log") / "access.log"
    path.write_bytes(b"\n".join([*[entry(NOON, text=kind).encode()] * 2, *lines]))
    load = read_load(path, silent, prefix)
    left_out = sum(int(remark.split()[0].replace(",", "")) for remark in load.remarks)
    own = sum(bool(line.strip()) and not line.strip().startswith(b"#") for line in lines)
    assert round(load.queries) + left_out == 2 + own
    assert round(load.queries) >= 2


def test_names_of_columns_and_cloudfronts_fields_are_not_counted_as_wrong(tmp_path):
    headed = written(tmp_path, "when,url", *(entry(NOON + n, text=FORMATS[-1]) for n in (0, 1)))
    assert (counted(read(headed)), read(headed).remarks) == ({NOON: 1, NOON + 1: 1}, ())
    fields = written(tmp_path, "#Version: 1.0", "#Fields: date time x-edge-location", entry(NOON, text=CLOUDFRONT))
    assert (counted(read(fields)), read(fields).remarks) == ({NOON: 1}, ())


@pytest.mark.parametrize(
    "row",
    [
        *("{iso}Z", "7,{iso}+00:00,cat.jpg", "{unix}", "{unix}.25;/v1/classify", "GET\t{unix}123\t200"),
        *('"a, b",{iso}Z', "{unix},200,17"),
    ],
)
def test_a_time_may_stand_in_any_column_as_a_date_or_since_1970(tmp_path, row):
    texts = [
        row.format(iso=datetime.fromtimestamp(NOON + n, UTC).strftime("%Y-%m-%dT%H:%M:%S"), unix=NOON + n)
        for n in (0, 2)
    ]
    assert counted(read(written(tmp_path, *texts))) == {NOON: 1, NOON + 2: 1}


def test_rows_of_a_date_and_numbers_alone_are_not_requests(tmp_path):
    with pytest.raises(InputError, match="line 1"):
        read(written(tmp_path, "Timestamp,Sum", "2026-11-25T12:00:00Z,60", "2026-11-25T12:01:00Z,30"))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_prefix_chooses_requests_by_the_path_of_their_url(tmp_path, kind):
    texts = (kind, kind.replace("/v1/classify", "/healthz"), kind)
    entries = [entry(NOON + n, text=text) for n, text in enumerate(texts)]
    load = read_load(written(tmp_path, *entries), silent, "/v1/")
    assert counted(load) == {NOON: 1, NOON + 2: 1}
    assert load.remarks == ("1 requests to other paths were left out",)
    with pytest.raises(InputError, match=r"access.log has 3 requests, none to a path that begins with '/v2'"):
        read_load(written(tmp_path, *entries), silent, "/v2")


@pytest.mark.parametrize("kind", FORMATS)
def test_health_checks_are_no_queries_unless_their_path_is_asked_for(tmp_path, kind):
    paths = ("/healthz", "/v2/health/ready", "/metrics", "/v1/classify", "/healthzone")
    lines = [entry(NOON + second, text=kind.replace("/v1/classify", path)) for second, path in enumerate(paths)]
    if "iso" not in kind:  # which has no method
        lines += [entry(NOON + 9, text=re.sub("POST|GET", method, kind)) for method in ("HEAD", "OPTIONS")]
    load = read(written(tmp_path, *lines))
    assert counted(load) == {NOON + 3: 1, NOON + 4: 1}
    assert load.paths == "/v1/classify (50%), /healthzone (50%)"
    assert counted(read_load(written(tmp_path, *lines), silent, "/healthz")) == {NOON: 1, NOON + 4: 1}
    with pytest.raises(InputError):
        read(written(tmp_path, *lines[:3]))


def test_a_prefix_wants_a_log_with_urls(tmp_path):
    path = written(tmp_path, "minute,requests", "0,5")
    with pytest.raises(UsageError, match=r"--path wants an access log with URLs, and .*access.log is not one"):
        read_load(path, silent, "/v1")


@pytest.mark.parametrize("cut", [12, 40])
def test_a_damaged_or_incomplete_file_of_gzip_is_refused(tmp_path, cut):
    path = tmp_path / "access.log.gz"
    path.write_bytes(gzip.compress("\n".join(entry(NOON + n) for n in range(50)).encode())[:cut])
    with pytest.raises(InputError, match=r"access\.log\.gz' cannot be read: it is damaged or incomplete"):
        read(path)


def test_what_unpacks_without_end_is_refused_at_its_first_line(tmp_path):
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(f"{entry(NOON)}\n".encode() + b"0" * 50_000_000))
    with pytest.raises(InputError, match="line 2: a line has at most"):
        read(path)


def test_a_log_is_bounded_as_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LOG_BYTES", 500)
    with pytest.raises(InputError, match="line 7: a log has at most 500 bytes"):
        read(written(tmp_path, *(entry(NOON) for _ in range(10))))


def test_a_log_of_many_seconds_is_counted_in_longer_steps(tmp_path, monkeypatch):
    path = written(tmp_path, *(entry(NOON + n) for n in (0, 1, 3, 9, 12, 61)))
    monkeypatch.setattr(access_logs, "MAX_COUNTS", 3)
    load = read(path)
    assert (load.durations_s.tolist(), load.rates.tolist()) == ([10, 10, 40, 10], [0.4, 0.1, 0, 0.1])
    monkeypatch.setattr(access_logs, "MAX_COUNTS", 1)
    with pytest.raises(InputError, match="more than 1 minutes"):
        read(path)


def test_long_logs_show_how_far_reading_is(tmp_path, monkeypatch):
    monkeypatch.setattr(access_logs, "_REPORT", 2)
    shown = []
    load = read_load(written(tmp_path, *(entry(NOON) for _ in range(5))), shown.append)
    assert shown == ["reading access.log: 2 lines", "reading access.log: 4 lines"]
    assert np.array_equal(load.rates, [5.0])
