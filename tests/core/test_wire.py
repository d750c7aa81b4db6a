import base64
import json
import math
from dataclasses import replace

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.core import wire
from serfer.core.errors import InputError
from serfer.core.keys import (
    INPUT_STAGE,
    MOST_RESULT_TTL_S,
    ResultPlace,
    StoreCounts,
    check_query_id,
    input_key,
    output_key,
    query_id,
    query_keys,
    reply_key,
    stage_of,
)
from serfer.core.plan import Levels
from serfer.core.wire import (
    Crop,
    Membership,
    Report,
    Task,
    TaskError,
    decode_report,
    decode_reports,
    decode_task,
    decode_tasks,
    encode_report,
    encode_reports,
    encode_task,
    encode_tasks,
    is_shared,
)

QUERY = "0123456789abcdef" * 2
TASK = Task("d" * 64, QUERY, 1, 2, 3, 60.0, Crop("uint8", b"\0\xff\x80"), inline=True, parts=(b"\0\xfe", None, b""))
REPORT = Report("env", 0.0, 1.5, 2.5, 3.5, 8.0, 1, 4, StoreCounts(1, 2, 3, 4, 5), b"\0\0\x80?")
PLAIN = ["d" * 64, QUERY, 1, 2, 3, 60.0, None, False, [], None, "request-1", None]

FINITE = st.floats(0, allow_infinity=False)
COUNT = st.integers(0, 2**63 - 1)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=40)
    | st.binary(max_size=40)
)
ANYTHING = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.text(max_size=8) | st.binary(max_size=3), inner),
)


LEVELS = st.integers(0, 3).flatmap(
    lambda channels: st.builds(
        Levels,
        st.floats(1e-9, 1e9),
        st.tuples(*[st.floats(-1e9, 1e9)] * channels),
        st.tuples(*[st.floats(1e-9, 1e9)] * channels),
    )
)


def _are_errors(value):
    """Return whether a value is what a worker answers whose tasks have all failed: pairs of error type and message."""
    pairs = isinstance(value, list) and all(isinstance(each, list) and len(each) == 2 for each in value)
    return bool(value) and pairs and all(isinstance(part, str) for pair in value for part in pair)


def packed(field, value):
    return {field: base64.b64encode(msgpack.packb(value)).decode()}


def sent(task):
    return json.loads(encode_task(task))


def plain_report(**changes):
    value = {name: getattr(REPORT, name) for name in Report.__annotations__}
    return {**value, "counts": {"bytes_put": 1, "bytes_get": 2, "puts": 3, "gets": 4, "exists": 5}, **changes}


@given(
    st.builds(
        Task,
        plan=st.text(max_size=64),
        query=st.from_regex(r"[0-9a-f]{32}", fullmatch=True),
        stage=st.integers(0, 1000),
        tile=st.integers(0, 1000),
        batch=st.integers(1, wire.MAX_BATCH),
        ttl=st.floats(0, 24 * 3600.0, exclude_min=True),
        crop=st.none()
        | st.builds(
            Crop, st.sampled_from(["uint8", "float32"]), st.none() | st.binary(max_size=100), st.none() | LEVELS
        ),
        inline=st.booleans(),
        parts=st.lists(st.none() | st.binary(max_size=100), max_size=20).map(tuple),
        result=st.none()
        | st.builds(
            ResultPlace,
            st.from_regex(r"[0-9a-f]{64}|local", fullmatch=True),
            st.from_regex(r"[0-9a-f]{32}", fullmatch=True),
            st.floats(1, MOST_RESULT_TTL_S),
        ),
        size=st.none() | st.tuples(st.integers(1, 1 << 16), st.integers(1, 1 << 16)),
    )
)
def test_a_task_survives_the_trip(task):
    assert decode_task(sent(task)) == task


@given(
    st.builds(
        Report,
        environment=st.text(max_size=20),
        init_ms=FINITE,
        read_ms=FINITE,
        compute_ms=FINITE,
        write_ms=FINITE,
        total_ms=FINITE,
        weight_loads=COUNT,
        sessions=COUNT,
        counts=st.builds(StoreCounts, COUNT, COUNT, COUNT, COUNT, COUNT),
        output=st.none() | st.binary(max_size=100),
        shared=st.integers(1, wire.MAX_BATCH),
    )
)
def test_a_report_survives_the_trip(report):
    assert decode_report(json.loads(json.dumps(encode_report(report)))) == report


@pytest.mark.hostile
@pytest.mark.parametrize(
    "levels",
    [
        [1.0, [0.0], [1.0, 1.0]],
        [1.0, [0.0] * 4, [1.0] * 4],
        [0.0, [0.0], [1.0]],
        [1.0, [0.0], [0.0]],
        [1.0, [float("nan")], [1.0]],
        [1.0, ["0"], [1.0]],
        [1, [0.0], [1.0]],
        None,
    ],
)
def test_malformed_levels_are_refused(levels):
    plain = [*PLAIN[:6], ["uint8", b"", levels], *PLAIN[7:]]
    with pytest.raises(InputError, match="crop is malformed"):
        decode_task(packed("task", plain))


PLACE = ["local", "f" * 32, 60.0]


@pytest.mark.parametrize(
    "more",
    [
        *[[[*PLACE[:2], ttl]] for ttl in (60, 0.0, math.nan, 1e9)],
        *[[PLACE[:1]], [["local", "../" + "f" * 29, 60.0]], [["other:", *PLACE[1:]]], ["local"], [PLACE, None, None]],
    ],
)
def test_result_that_is_no_place_is_refused(more):
    with pytest.raises(InputError):
        decode_task(packed("task", [*PLAIN, *more]))


@pytest.mark.hostile
@pytest.mark.parametrize("size", [[8], [8, 8, 8], [8, 0], [-8, 8], [8.0, 8], [True, 8], "88", {"8": 8}])
def test_a_malformed_size_is_refused(size):
    with pytest.raises(InputError, match="size"):
        decode_task(packed("task", [*PLAIN, None, size]))


def test_values_travel_from_views_as_they_are():
    value = memoryview(bytes(range(100)))
    assert decode_task(sent(replace(TASK, crop=Crop("uint8", value[:3])))).crop == Crop("uint8", bytes(range(3)))
    assert decode_task(sent(replace(TASK, parts=(value[3:7], None)))).parts == (bytes(range(3, 7)), None)
    assert decode_report(encode_report(replace(REPORT, output=value[:8]))).output == bytes(range(8))
    assert decode_task(sent(replace(TASK, ttl=60))) == TASK
    assert decode_report(encode_report(replace(REPORT, init_ms=0, total_ms=8))) == REPORT
    [plain] = json.loads(encode_task(TASK).decode("ascii")).values()
    assert len(msgpack.unpackb(base64.b64decode(plain))) == len(PLAIN), "a result is sent where there is one"
    assert TASK.payload_bytes == 5
    assert replace(TASK, crop=Crop("uint8", None), parts=(None,)).payload_bytes == 0
    assert replace(TASK, crop=None, parts=(memoryview(b"abc"), b"d")).payload_bytes == 4


def test_members_of_gangs_and_reports_on_later_stages_survive_the_trip():
    task = replace(TASK, gang=Membership(5, 1.5))
    assert decode_task(sent(task)) == task
    later = (replace(REPORT, wait_ms=0.5), replace(REPORT, output=b"last"))
    report = replace(REPORT, output=None, wait_ms=0.25, fetch_ms=4.0, later=later)
    assert decode_report(encode_report(report)) == report
    nested = replace(REPORT, later=(replace(REPORT, later=(REPORT,)),))
    assert decode_report(encode_report(nested)).later[0].later == ()


@settings(max_examples=50)
@given(ANYTHING, st.binary(max_size=200))
def test_any_payload_raises_only_input_error(value, data):
    text = base64.b64encode(data).decode()
    for decode, field in ((decode_task, "task"), (decode_report, "report")):
        for payload in (value, packed(field, value), {field: text}):
            with pytest.raises(InputError):
                decode(payload)


@pytest.mark.hostile
@settings(max_examples=60)
@given(st.integers(0, len(PLAIN) - 1), ANYTHING)
def test_a_task_with_one_malformed_field_is_refused_or_well_typed(place, value):
    plain = list(PLAIN)
    plain[place] = value
    try:
        task = decode_task(packed("task", plain))
    except InputError:
        return
    types = [type(item) for item in (task.plan, task.query, task.stage, task.tile, task.batch)]
    assert types == [str, str, int, int, int]
    assert task.stage >= 0
    assert task.tile >= 0
    assert 1 <= task.batch <= wire.MAX_BATCH
    assert 0 < task.ttl <= 24 * 3600
    assert task.crop is None or task.crop.dtype in wire.DTYPES
    assert type(task.inline) is bool
    assert {type(part) for part in task.parts} <= {bytes, type(None)}


@pytest.mark.hostile
@settings(max_examples=60)
@given(st.sampled_from([*Report.__annotations__, "unknown"]), ANYTHING)
def test_a_report_with_one_malformed_field_is_refused_or_well_typed(name, value):
    try:
        report = decode_report(packed("report", plain_report(**{name: value})))
    except InputError:
        return
    assert type(report.environment) is str
    for time in (report.init_ms, report.read_ms, report.compute_ms, report.write_ms, report.total_ms):
        assert type(time) in (int, float)
        assert math.isfinite(time)
        assert time >= 0
    assert type(report.weight_loads) is type(report.sessions) is type(report.shared) is int
    assert 1 <= report.shared <= wire.MAX_BATCH
    assert isinstance(report.counts, StoreCounts)
    assert report.output is None or type(report.output) is bytes


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *[(2, -1), (2, True), (2, 1.0), (3, -1), (3, False), (4, 0), (4, -1), (4, 1025), (4, True)],
        *[(5, 0.0), (5, -1.0), (5, math.nan), (5, math.inf), (5, 24 * 3600 + 1.0), (5, True), (5, "60")],
        *[(0, b"d"), (1, "x"), (1, QUERY + "0"), (1, QUERY.encode())],
        *[(6, []), (6, ["uint8"]), (6, ["int64", b""]), (6, ["uint8", "text"]), (6, ["uint8", b"", 1]), (6, 0)],
        *[(11, 0), (11, [1, 1.0]), (11, [2, 0.0]), (11, [2, 1]), (11, [2, float("nan")]), (11, [True, 1.0]), (11, "x")],
        *[(7, 0), (7, None), (8, None), (8, b""), (8, ["text"]), (8, [[b""]]), (8, [b"", 0]), (8, {})],
    ],
)
def test_a_task_out_of_bounds_is_refused(place, value):
    plain = list(PLAIN)
    plain[place] = value
    with pytest.raises(InputError):
        decode_task(packed("task", plain))


@pytest.mark.parametrize(
    "changes",
    [
        *[{name: value} for name in ("init_ms", "total_ms") for value in (-1.0, math.nan, math.inf, "1", None, True)],
        *[{name: value} for name in ("weight_loads", "sessions") for value in (-1, 1.0, "1", True)],
        *[{"output": value} for value in ("text", 1, [])],
        *[{"shared": value} for value in (0, -1, 1025, 1.0, True, None)],
        *[{"counts": value} for value in (None, {"moves": 1}, [1, 2, 3, 4, 5])],
        *[
            {"counts": {"bytes_put": bad, "bytes_get": 2, "puts": 3, "gets": 4, "exists": 5}}
            for bad in (-1, 1.5, "x", True)
        ],
        {"environment": b"env"},
        {"more": 1},
        {"sessions": ...},
    ],
)
def test_report_out_of_bounds_is_refused(changes):
    plain = {name: value for name, value in plain_report(**changes).items() if value is not ...}
    with pytest.raises(InputError):
        decode_report(packed("report", plain))


HUGE = "A" * (16 * 1024 * 1024 + 1)


@pytest.mark.parametrize(
    "text", ["", "!", "AA=A", "é", "A" * 5, base64.b64encode(b"\xdd\xff\xff\xff\xff").decode(), HUGE]
)
@pytest.mark.parametrize(
    ("decode", "field"), [(decode_task, "task"), (decode_report, "report"), (decode_tasks, "tasks")]
)
def test_text_without_a_packed_value_is_refused(decode, field, text):
    with pytest.raises(InputError):
        decode({field: text})


class TestShared:
    """Several tasks in one payload, and what became of each in one answer."""

    def others(self, count, **changes):
        return [replace(TASK, query=f"{number:032x}", **changes) for number in range(count)]

    def test_tasks_survive_the_trip_in_their_order(self):
        tasks = [TASK, *self.others(3, batch=5, crop=None, inline=False, parts=(memoryview(b"abc"), None))]
        payload = json.loads(encode_tasks(tasks))
        assert payload.keys() == {"tasks"}
        assert decode_tasks(payload) == tasks
        assert is_shared(payload)
        several = [TASK, replace(TASK, tile=0)]
        assert decode_tasks(json.loads(encode_tasks(several))) == several
        assert not is_shared(sent(TASK))
        tasks = [replace(TASK, request=name, tile=tile) for tile, name in enumerate("bab")]
        assert wire.requests_in(json.loads(encode_tasks(tasks))) == ["a", "b"]
        assert wire.requests_in(json.loads(encode_task(tasks[0]))) == ["b"]
        assert wire.requests_in({"task": "x"}) == []

    def test_reports_and_errors_survive_the_trip_in_their_order(self):
        results = [replace(REPORT, shared=2), TaskError("MissingKeyError", "größer"), replace(REPORT, output=None)]
        response = json.loads(json.dumps(encode_reports(results)))
        assert decode_reports(response, 3) == results
        for count in (0, 2, 4):
            with pytest.raises(InputError, match=f"not a list of {count} reports"):
                decode_reports(response, count)

    @pytest.mark.parametrize(
        "tasks",
        [
            [],
            [TASK, replace(TASK, plan="e" * 64)],
            [TASK, replace(TASK, stage=2)],
            [replace(TASK, gang=Membership(5, 1.0))],
        ],
    )
    def test_tasks_that_share_no_invocation_are_refused(self, tasks):
        with pytest.raises(InputError):
            decode_tasks(json.loads(encode_tasks(tasks)))

    def test_the_images_of_all_tasks_together_are_bounded(self):
        most = self.others(4, batch=wire.MAX_BATCH // 4)
        assert len(decode_tasks(json.loads(encode_tasks(most)))) == 4
        with pytest.raises(InputError, match="more than 1024 images"):
            decode_tasks(json.loads(encode_tasks([*most, TASK])))
        with pytest.raises(InputError, match="too many"):
            decode_tasks(json.loads(encode_tasks(self.others(wire.MAX_BATCH + 1, batch=1))))

    @pytest.mark.hostile
    @pytest.mark.parametrize("request_id", ["a b", "x" * 65, "a\n"])
    def test_malformed_request_ids_are_refused(self, request_id):
        with pytest.raises(InputError, match="request id"):
            decode_task(packed("task", [*PLAIN[:10], request_id, None]))

    @pytest.mark.hostile
    def test_one_malformed_task_refuses_the_payload(self):
        with pytest.raises(InputError, match="out of bounds"):
            decode_tasks(packed("tasks", [PLAIN, [*PLAIN[:4], 0, *PLAIN[5:]]]))

    @settings(max_examples=50)
    @given(ANYTHING)
    def test_any_value_raises_only_input_error(self, value):
        for payload in (value, packed("tasks", value), packed("tasks", [value]), packed("tasks", [PLAIN, value])):
            with pytest.raises(InputError):
                decode_tasks(payload)
        reports = [each for each in (value, [value, value]) if not _are_errors(each)]
        for payload in (value, *(packed("reports", each) for each in reports)):
            with pytest.raises(InputError):
                decode_reports(payload, 2)


@pytest.mark.parametrize("ttl", [10**400, -(10**400), float("inf"), float("nan"), 0])
def test_a_steps_time_to_live_is_bounded_before_it_is_converted(ttl):
    step = {"plan": "d" * 64, "query": "{0}", "stage": 1, "tile": 0, "batch": 1, "ttl": ttl, "dtype": "uint8"}
    with pytest.raises(InputError, match="out of bounds"):
        decode_task({"step": step})


@pytest.mark.parametrize(
    "query", ["", "x" * 32, QUERY[:-1], QUERY + "0", QUERY.upper(), QUERY + "\n", "../" + QUERY[3:]]
)
def test_other_text_is_refused_as_a_query_id(query):
    with pytest.raises(InputError, match="32 hex digits"):
        check_query_id(query)
    assert check_query_id(QUERY) == QUERY


def test_every_output_and_input_of_a_query_has_its_own_key():
    keys = {output_key(QUERY, stage, tile) for stage in range(12) for tile in range(12)}
    keys |= {input_key(QUERY, tile) for tile in range(12)}
    assert len(keys) == 12 * 13
    assert all(QUERY in key for key in keys)
    keys = query_keys(QUERY, [2, 3], [1], [1])
    assert keys == [input_key(QUERY, 1), *(output_key(QUERY, 1, tile) for tile in range(3))]
    assert query_keys(QUERY, [2, 3], [], []) == []


@pytest.mark.parametrize("one_slot", [False, True])
def test_the_writing_stage_is_read_from_a_key(one_slot):
    query = check_query_id(query_id(one_slot=one_slot))
    assert [stage_of(output_key(query, stage, 12)) for stage in (0, 7, 15)] == [0, 7, 15]
    assert stage_of(input_key(query, 3)) == INPUT_STAGE
    assert stage_of(reply_key(query, 2, 0, 1)) is None


@pytest.mark.parametrize(
    "key",
    [
        *("", "other", f"serfer:{QUERY}:2", f"serfer:{QUERY}:2:", f"serfer:{QUERY}:-2:0", f"serfer:{QUERY}:2:0\n"),
        *(f"serfer:{QUERY[1:]}:2:0", f"serfer:{{{QUERY}:2:0", f"x:serfer:{QUERY}:2:0", f"serfer:{QUERY}:\u0662:0"),
    ],
)
def test_keys_not_written_by_a_tile_have_no_stage(key):
    assert stage_of(key) is None
