"""What a load found: numbers, files, reading them again, and whether two results differ."""

import csv
import io
import json
import math
import re
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import pytest

from serfer.core.errors import InputError, UnavailableError, UsageError
from serfer.core.keys import StoreCounts
from serfer_bench.core.charts_figure import charts_figure
from serfer_bench.core.processes import Held, held
from serfer_bench.core.results import check_directory
from serfer_bench.core.stamp import make_stamp
from serfer_bench.core.system import System, Totals
from serfer_bench.core.workload import Sent
from serfer_bench.load.burst import Uniform
from serfer_bench.load.compare import compare, difference, warnings
from serfer_bench.load.compare import results as compared
from serfer_bench.load.results import FORMAT, Log, Result, Work, make_round, queries_csv, read_result, write_result
from serfer_bench.load.rounds import HEAD, Plan, measure_rounds, remarks, rows, summaries
from tests.bench.test_workload import EXAMPLE, RIGHT, answered

HELD = Held(100 << 20, 200 << 20, 3, 11)


def log(system="serfer", number=0, count=100, failing=()):
    """`count` queries at 0.01 s from each other, the k-th answered after k + 1 ms."""
    queries = [
        Sent(k, k / 100, k / 100 + 0.0005, k / 100 + (k + 1) / 1000, *(("Oops", f"at {k}") if k in failing else ()))
        for k in range(count)
    ]
    return Log(system, number, tuple(queries))


def result(*logs, **work):
    spent = Totals(3000, 1000, 0, 0.5, 4, 2, 1)
    rounds = tuple(make_round(each, spent, HELD, HELD) for each in logs or (log(),))
    wanted = replace(Work("alexnet", "3x224x224", "a burst of 100", 100, 16, "local", 120.0), **work)
    stamp = make_stamp(["bench", "burst", "--out", "a b"], datetime(2026, 1, 2, tzinfo=UTC))
    return Result(FORMAT, stamp, wanted, 8, rounds)


def test_a_rounds_numbers():
    round_ = make_round(log(), Totals(3000, 1000, 200, 0.5, 4, 2, 1), HELD, HELD)
    assert (round_.sent, round_.answered, round_.failures) == (100, 100, ())
    assert (round_.latency.p50, round_.latency.max) == (pytest.approx(50.5), pytest.approx(100.0))
    assert round_.latency.p50 < round_.latency.p90 < round_.latency.p95 < round_.latency.p99 < round_.latency.max
    assert round_.lag_ms == pytest.approx(0.5)
    assert round_.seconds == pytest.approx(1.09)
    assert round_.throughput == pytest.approx(100 / 1.09)
    assert (round_.bytes_per_query, round_.polls_per_query, round_.usd_per_query) == (40, 2, 0.005)
    assert (round_.cold, round_.retries, round_.hedges) == (4, 2, 1)


def test_failures_are_counted_by_error_and_leave_latencies_alone():
    round_ = make_round(log(failing={3, 98, 99}), Totals(), HELD, HELD)
    assert (round_.sent, round_.answered) == (100, 97)
    assert [(one.error, one.count, one.example) for one in round_.failures] == [("Oops", 3, "at 3")]
    assert round_.latency.max == pytest.approx(98.0)
    nothing = make_round(log(count=2, failing={0, 1}), Totals(), HELD, HELD)
    assert (nothing.latency, nothing.throughput, nothing.answered) == (None, 0.0, 0)
    assert rows(result(log(count=2, failing={0, 1})))[0][1] == "-"


def test_every_query_has_its_line():
    lines = list(csv.DictReader(io.StringIO(queries_csv([log(failing={1}), log("un,split", 1, 2)]))))
    assert len(lines) == 102
    head = ["system", "round", "query", "scheduled_s", "started_s", "ended_s", "latency_ms", "error"]
    cells = ["serfer", "0", "1", "0.010000", "0.010500", "0.012000", "2.000", "Oops"]
    assert lines[1] == dict(zip(head, cells, strict=True))
    assert (lines[-1]["system"], lines[-1]["round"], lines[-1]["error"]) == ("un,split", "1", "")


def test_a_result_is_read_as_it_was_written(tmp_path):
    written = result(log(failing={5}), log("unsplit", 0, count=3, failing={0, 1, 2}))
    check_directory(tmp_path / "a" / "b")
    write_result(tmp_path / "a" / "b", written, [log()])
    assert read_result(tmp_path / "a" / "b") == read_result(tmp_path / "a" / "b" / "result.json") == written
    assert written.systems == ("serfer", "unsplit")
    assert written.stamp.command == "serfer bench burst --out 'a b'"
    assert written.stamp.date == "2026-01-02T00:00:00Z"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda _: "", "is not JSON"),
        (lambda _: "[" * 100_000, "is not JSON"),
        (lambda _: "[]", "is not a result of serfer bench"),
        (lambda _: '{"format": 99}', "another version"),
        (lambda _: '{"format": 1}', "lacks 'rounds'"),
        (lambda text: re.sub(r'"p50": [\d.]+', '"p50": "fast"', text), r"rounds\[0\]\.latency\.p50 should be a number"),
    ],
)
def test_an_invalid_altered_or_missing_result_is_refused_with_the_place(tmp_path, change, words):
    write_result(tmp_path, result(), [])
    (tmp_path / "result.json").write_text(change((tmp_path / "result.json").read_text()))
    with pytest.raises(InputError, match=rf"result\.json.*{words}"):
        read_result(tmp_path)
    with pytest.raises(InputError, match=r"result\.json cannot be read: No such file"):
        read_result(tmp_path / "none" / "result.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is not a directory"):
        check_directory(tmp_path / "file")


def test_the_summary_names_systems_failures_and_machine_and_the_picture_has_a_line_for_each_round():
    loaded = result(log(failing={5}), log("unsplit"))
    assert [dict(zip(HEAD, row, strict=True))["failed"] for row in rows(loaded)] == ["1", "0"]
    text = "\n".join(remarks(loaded))
    for words in ("1 x Oops: at 5", "alexnet: a burst of 100", "8 to warm up", "descriptors 11 to 11", "Python 3."):
        assert words in text
    assert [line.partition(":")[0] for line in summaries(loaded)] == ["serfer", "unsplit"]
    logs = [log(), log("unsplit"), log("serfer", 1, failing={*range(100)})]
    loaded = result(*logs)
    charts = Uniform(5, 20).charts(logs)
    with pytest.raises(UsageError, match="even or poisson, not 'bursty'"):
        Uniform(1, 1, "bursty")
    figure = charts_figure("title", charts, summaries(loaded), loaded.stamp.lines)
    _, shares = figure.axes
    assert len({line.get_color() for line in shares.lines}) == len(shares.lines) == 2


class Fake(System):
    """Answers at once, and records its turn."""

    def __init__(self, name, turns, logits=RIGHT):
        self.name, self._turns, self._logits, self._puts = name, turns, logits, 0

    def submit(self, _pixels):
        self._turns.append(self.name)
        self._puts += 1
        return answered(self._logits)

    def counts(self):
        return StoreCounts(bytes_put=10 * self._puts, bytes_get=5 * self._puts, exists=self._puts)

    def close(self):
        pass


def test_systems_take_turns_warming_up_counts_nowhere_and_one_without_answers_is_refused():
    turns = []
    systems = [Fake("a", turns), Fake("b", turns)]
    rounds, logs = measure_rounds(systems, [EXAMPLE], Plan(((0.0,) * 2,) * 3, 4, 60))
    assert "".join(turns) == "aaaabbbb" + "aabb" + "bbaa" + "aabb"
    assert [(one.system, one.round) for one in rounds] == [("a", 0), ("b", 0), ("b", 1), ("a", 1), ("a", 2), ("b", 2)]
    assert [(log.system, log.round) for log in logs] == [(one.system, one.round) for one in rounds]
    assert all((one.sent, one.answered, one.bytes_per_query, one.polls_per_query) == (2, 2, 15, 1) for one in rounds)
    assert all((one.usd_per_query, one.cold, one.hedges) == (None, None, None) for one in rounds)
    with pytest.raises(UnavailableError, match="broken answers no query: WrongAnswerError"):
        measure_rounds([Fake("broken", [], RIGHT * -1)], [EXAMPLE], Plan(((0.0,),), 2, 60))


def test_held_descriptors_are_counted_and_unreported_counts_stay_unknown(tmp_path):
    before = held()
    with (tmp_path / "x").open("w"):
        assert held().descriptors == before.descriptors + 1
    assert held().descriptors == before.descriptors
    assert before.driver_bytes > 1 << 20
    assert Totals(5, 6, 7, 0.5, 3, 2, 1) - Totals(1, 1, 1, 0.25, 1, 1, 1) == Totals(4, 5, 6, 0.25, 2, 1, 0)
    assert Totals(5) - Totals(2) == Totals(3)


def load(shift=0.0, seed=0, rounds=8, system="serfer"):
    """Rounds whose p50 is 50.5 ms plus `shift` s, give or take 10 ms."""
    late_s, logs = 1 + shift + np.random.default_rng(seed).normal(0, 0.01, rounds), []
    for number, by in enumerate(late_s):
        one = log(system, number)
        logs.append(replace(one, queries=tuple(replace(query, ended=query.ended + by) for query in one.queries)))
    return result(*logs)


def compared_by_figure(before, after):
    return {one.figure: one for one in compare(before, after)}


def test_the_interval_is_students():
    shift = difference("x", "y", [(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)], 0.95)  # differences 1, 2, 3
    reach = 4.302652729911275 / math.sqrt(3)
    assert (shift.low, shift.high) == (pytest.approx(2 - reach), pytest.approx(2 + reach))
    assert (shift.before, shift.after, shift.verdict) == (2.0, 4.0, "no difference shown")
    assert difference("x", "y", [(1.0, 2.0), (2.0, 4.0), (3.0, 6.0)], 0.99).low < shift.low


def test_a_shift_beyond_the_noise_is_significant_with_its_sign():
    found = compared_by_figure(load(), load(shift=0.2, seed=1))
    verdicts = {"p50 latency, ms": "more", "answers a second": "less", "bytes a query": "no difference shown"}
    assert {figure: found[figure].verdict for figure in verdicts} == verdicts
    assert found["p50 latency, ms"].low < 200 < found["p50 latency, ms"].high


def test_rounds_are_compared_in_pairs():
    comparison = compared_by_figure(load(rounds=1), load(shift=5, rounds=1))["p50 latency, ms"]
    assert comparison.verdict == "too few rounds to say"
    assert "too few rounds to say" in compared([comparison], 0.95).text()
    assert json.loads(json.dumps(comparison.as_dict(), allow_nan=False))["low"] is None
    assert compared_by_figure(load(rounds=8), load(rounds=5))["p50 latency, ms"].pairs == 5
    assert any("different numbers of rounds" in line for line in warnings(load(rounds=8), load(rounds=5)))
    broken = result(*(log(number=k, failing={*range(100)} if k == 0 else ()) for k in range(3)))
    whole = result(*(log(number=k) for k in range(3)))
    found = compared_by_figure(whole, broken)
    assert found["p50 latency, ms"].pairs == 2
    assert found["failed queries"].after == pytest.approx(100 / 3)


@pytest.mark.parametrize("work", [{"model": "vgg16"}, {"queries": 7}, {"concurrency": 2}, {"workers": "null (5 ms)"}])
def test_different_work_is_refused_and_the_difference_named(work):
    with pytest.raises(InputError, match=f"different work: {next(iter(work))} is .* in A and .* in B"):
        compare(result(), result(**work))


def test_results_without_a_common_system_are_refused_unless_each_has_one():
    one, other = load(system="serfer"), load(system="unsplit")
    assert {each.system for each in compare(one, other)} == {"serfer / unsplit"}
    both = result(log("a"), log("b"))
    with pytest.raises(InputError, match="share no system: A has serfer, B has a, b"):
        compare(one, both)


def test_other_machines_and_versions_give_warnings():
    one = load()
    machine = replace(one.stamp.machine, processors=64)
    versions = tuple(replace(each, version="0") for each in one.stamp.versions)
    messages = warnings(one, replace(one, stamp=replace(one.stamp, machine=machine, versions=versions)))
    assert "different machines" in messages[0]
    assert "64 x" in messages[0]
    assert len(messages) == 1 + len(versions)
    assert warnings(one, one) == []
