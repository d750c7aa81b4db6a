"""CloudWatch's exports as loads: every point counts, and in periods that CloudWatch leaves out nothing came."""

import gzip
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serfer.core.errors import InputError
from serfer.cost.loads.steps import silent
from serfer_bench.study.sim.simulate import read_load

NOON = 1_795_608_000  # 2026-11-25 12:00 UTC


def read(path):
    return read_load(path, silent)


def iso(second):
    return datetime.fromtimestamp(second, UTC).isoformat()


def metric_data(points):
    times, values = [iso(second) for second, _ in points], [value for _, value in points]
    pieces = [(times[:2], values[:2], "PartialData"), (times[2:], values[2:], "Complete")]
    fields = ("Timestamps", "Values", "StatusCode")
    results = [{"Id": "m1", "Label": "Invocations", **dict(zip(fields, piece, strict=True))} for piece in pieces]
    return json.dumps({"MetricDataResults": results, "Messages": []}, indent=4)


def one_line(points):
    return json.dumps(json.loads(metric_data(points)))


def statistics(points):
    rows = [{"Timestamp": iso(second), "Sum": value, "Unit": "Count"} for second, value in points]
    return json.dumps({"Label": "RequestCount", "Datapoints": rows})


def console(points):
    head = '"Full label","Invocations"\n"Label","Invocations"\n"Statistic","Sum"\n"Period","60"\n'
    return head + "".join(f'"{datetime.fromtimestamp(s, UTC):%Y/%m/%d %H:%M:%S}","{value}"\n' for s, value in points)


def bare(points):
    return "Timestamp,Sum\r\n" + "".join(f"{iso(second)},{value}\r\n" for second, value in points)


WRITERS = (metric_data, one_line, statistics, console, bare)


@given(
    counts=st.dictionaries(st.integers(0, 500), st.integers(1, 10**6), min_size=1, max_size=30),
    writer=st.sampled_from(WRITERS),
    packed=st.booleans(),
    data=st.data(),
)
def test_a_written_export_is_read_as_its_counts_in_any_order(tmp_path_factory, counts, writer, packed, data):
    counts = {0: 1, 1: 2, **counts}  # so that the period is known
    points = data.draw(st.permutations([(NOON + 60 * minute, value) for minute, value in counts.items()]))
    path = tmp_path_factory.mktemp("export") / ("requests.json.gz" if packed else "requests.json")
    path.write_bytes(gzip.compress(writer(points).encode()) if packed else writer(points).encode())
    load = read(path)
    starts = (load.starts_s[:-1] + load.begin_s).tolist()
    found = {int(start - NOON) // 60: round(rate * 60) for start, rate in zip(starts, load.rates, strict=True) if rate}
    assert found == counts
    assert (load.begin_s, load.seconds, load.name) == (NOON, 60 * (max(counts) + 1), "requests")


def test_a_single_line_may_be_long_and_times_are_those_of_their_zones(tmp_path):
    path = tmp_path / "long.json"
    path.write_text(one_line([(NOON + 60 * n, 1) for n in range(5000)]))
    assert read(path).queries == pytest.approx(5000)
    path = tmp_path / "zones.csv"
    path.write_text("Timestamp,Sum\n2026-11-25T13:00:00+01:00,60\n2026-11-25T12:05:00Z,30\n2026-11-25 12:10:00,\n")
    load = read(path)
    assert (load.begin_s, load.durations_s.tolist(), load.rates.tolist()) == (NOON, [300] * 3, [0.2, 0.1, 0.0])


@pytest.mark.parametrize(("period", "seconds"), [("300", 300), ("5 minutes", 300), ("1 Hour", 3600), ("1 day", 86400)])
def test_the_period_is_what_the_file_says(tmp_path, period, seconds):
    path = tmp_path / "period.csv"
    path.write_text(f"Label,Invocations\nPeriod,{period}\n2026-11-25 12:00:00,600\n")
    assert (read(path).seconds, read(path).queries) == (seconds, 600)


def results(*rows):
    return json.dumps({"MetricDataResults": rows})


ONE = {"Id": "m1", "Label": "x", "Timestamps": [iso(NOON), iso(NOON + 60)], "Values": [1, 2]}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"MetricDataResults": [\n{"Id": ]}', r"line 2: Expecting value: CloudWatch's exports are"),
        ("{}", "neither MetricDataResults nor Datapoints"),
        ("[" * 100_000, "line 1: a load is"),
        ('{"a": ' + "[" * 100_000, "nested too deeply"),
        (results(ONE, {**ONE, "Id": "m2"}), r"has 2 metrics: m1 \(x\), m2 \(x\): export one"),
        (results(), "has 0 metrics: export one"),
        (results(7), "a list of objects"),
        (results({**ONE, "StatusCode": "PartialData"}), "StatusCode is PartialData"),
        (results({**ONE, "Values": [1]}), "as many Timestamps as Values"),
        (results({**ONE, "Values": [1, -2]}), r"MetricDataResults\[0\], point 1: a value is a number from 0"),
        (results({**ONE, "Values": [1, float("nan")]}), "point 1: a value is a number"),
        (results({**ONE, "Values": [1, True]}), "point 1: a value is a number"),
        (results({**ONE, "Timestamps": [iso(NOON), "noon"]}), "point 1: a time is as in"),
        (results({**ONE, "Timestamps": [iso(NOON), 1e300]}), "point 1: a time is as in"),
        (results({**ONE, "Timestamps": [iso(NOON)] * 2}), "point 1: its time comes twice"),
        (results({**ONE, "Timestamps": [], "Values": []}), "has no points"),
        (results({**ONE, "Timestamps": [iso(NOON)], "Values": [1]}), "does not say how long its period is"),
        ('{"Datapoints": [{"Timestamp": "2026-11-25T12:00:00Z", "Average": 1}]}', r"Datapoints\[0\] has no Sum"),
        ("Statistic,Average\n2026-11-25 12:00:00,1\n", "its statistic is average"),
        ("Timestamp,Maximum\n2026-11-25 12:00:00,1\n", "its statistic is maximum"),
        ("Period,soon\n2026-11-25 12:00:00,1\n", "a period is seconds"),
        ("Period,0\n2026-11-25 12:00:00,1\n", "does not say how long"),
        ("Label,a,b\n2026-11-25 12:00:00,1,2\n", "line 2: a row is a time and the value of one metric, not 2 values"),
        ("Label,a\n2026-11-25 12:00:00,1\nTotal,7\n", "line 3: a time is as in"),
        ("Label,a\n2026-11-25 12:00:00,many\n", "line 2: a value is a number"),
        ("Period,60\n2026-11-25 12:00:00,1\n2026-11-25 12:00:30,1\n", "line 3: its time is not a multiple"),
        ("Label,a\nnoon,1\n", "line 1: a load is"),
    ],
)
def test_a_wrong_export_is_named_with_its_place(tmp_path, text, message):
    path = tmp_path / "export"
    path.write_text(text)
    with pytest.raises(InputError, match=message) as raised:
        read(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)
