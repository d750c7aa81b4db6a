"""`serfer bench burst, stores, compare` on a small plan, with workers that are threads or null."""

import csv
import json
import os
import subprocess
import sys
from functools import partial

import onnx
import pytest

from serfer.core.errors import InputError, ModelError, PlanError, QueryError, UsageError
from serfer_bench.load.results import read_result
from serfer_bench.pipeline.gangs import bound_to
from tests.bench.running import rows, run
from tests.e2e.small import SIZE, small_onnx

bench = partial(run, "bench")


def burst(directory, queries, *options):
    options = ("--plan", directory, "--queries", queries, "--rounds", 1, *options)
    return rows("bench", "burst", *options)[0]["rounds"]


def test_a_burst_through_threads_beside_the_unsplit_network(directory, tmp_path):
    options = ("--queries", 12, "--rounds", 2, "--workers", "inprocess", "--system", "serfer", "--system", "unsplit")
    shown = bench("burst", "--plan", directory, *options, "--out", tmp_path / "out").output
    assert "small: a burst of 12" in shown
    result = read_result(tmp_path / "out")
    assert result.systems == ("serfer", "unsplit")
    assert [(one.sent, one.answered) for one in result.rounds] == [(12, 12)] * 4
    serfer = result.of("serfer")[0]
    assert serfer.bytes_per_query > 0 == serfer.polls_per_query
    assert serfer.usd_per_query > 0
    assert result.of("unsplit")[0].usd_per_query is None
    with (tmp_path / "out" / "queries.csv").open() as file:
        assert len(list(csv.DictReader(file))) == 48
    assert (tmp_path / "out" / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_one_function_is_the_same_network_in_one_task(directory, monkeypatch, tmp_path):
    monkeypatch.setenv("SERFER_CACHE_DIR", str(tmp_path))
    [one] = burst(directory, 3, "--workers", "inprocess", "--system", "function")
    assert (one["system"], one["answered"], one["bytes_per_query"]) == ("function", 3, 0)


def test_fair_release_answers_the_middle_of_a_burst_earlier(directory):
    """In tasks' order of arrival, every query waits for all others' first stages."""
    options = ("--workers", "null", "--service-ms", 5, "--concurrency", 4, "--order", "oldest", "--order", "arrival")
    fair, unfair = burst(directory, 60, *options)
    assert (fair["system"], unfair["system"]) == ("serfer, oldest first", "serfer, order of arrival")
    middle, late = (one["latency"]["p50"] / one["latency"]["max"] for one in (fair, unfair))
    assert middle < 0.9 * late
    assert (fair["answered"], unfair["answered"]) == (60, 60)


def test_hundreds_of_queries_through_null_workers_leave_nothing_open(directory):
    [one] = burst(directory, 300, "--workers", "null", "--service-ms", 0, "--concurrency", 50)
    assert (one["answered"], one["retries"], one["failures"]) == (300, 0, [])
    assert one["end"]["descriptors"] <= one["start"]["descriptors"]


def test_a_uniform_load_compared_with_itself(directory, tmp_path):
    options = ("--workers", "null", "--rps", 200, "--seconds", 0.2, "--pattern", "poisson", "--rounds", 3)
    bench("burst", "--plan", directory, *options, "--out", tmp_path)
    result = read_result(tmp_path)
    assert [one.sent for one in result.rounds] == [40] * 3
    lines = rows("bench", "compare", tmp_path, tmp_path)
    assert {line["verdict"] for line in lines} == {"no difference shown"}
    assert "p50 latency" in bench("compare", tmp_path, tmp_path / "result.json").output


def test_queries_that_fail_are_shown_and_end_the_command_with_an_error(directory):
    options = ("--workers", "null", "--service-ms", 2500, "--patience-s", 1, "--warm-up", 0, "--rounds", 1)
    with pytest.raises(QueryError, match="2 of 2 queries had no right answer"):
        bench("burst", "--plan", directory, "--queries", 2, *options)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        (("--system", "warp"), UsageError, "systems are serfer, unshared, poll, stepfunctions, .*, function, unsplit"),
        (("--workers", "many"), UsageError, "workers are inprocess, local or null"),
        (("--order", "arrival"), UsageError, "is for --workers null"),
        (("--workers", "null", "--order", "random"), UsageError, "the order is oldest or arrival"),
        (("--workers", "null", "--system", "unsplit"), UsageError, "null workers compute nothing"),
        (("--model", "alexnet"), UsageError, "--plan or --model, not both"),
        (("--out", "/proc/nowhere"), InputError, "--out '/proc/nowhere' is not a directory"),
        (("--plan", "/proc", "--workers", "null"), PlanError, "not a plan directory"),
    ],
)
def test_contradicting_options_are_refused(directory, arguments, error, words):
    with pytest.raises(error, match=words):
        bench("burst", "--plan", directory, *arguments)


def test_stores_are_measured_at_every_size_and_left_empty(tmp_path):
    place = tmp_path / "store"
    urls = ("--store", "memory://", "--store", f"file://{place}")
    lines = rows("bench", "stores", *urls, "--size", 10, "--size", 4096, "--rounds", 3, "--out", tmp_path / "out")
    assert len(lines) == 2 * 2 * 4
    assert {line["operation"] for line in lines} == {"put", "get", "get_many", "delete"}
    assert all(line["least_us"] <= line["median_us"] <= line["greatest_us"] for line in lines)
    assert all((line["mb_per_s"] is None) == (line["operation"] == "delete") for line in lines)
    assert all(line["stamp"]["machine"]["processors"] >= 1 for line in lines)
    assert [path for path in place.rglob("*") if path.is_file() and path.name != "#lock"] == []
    saved = json.loads((tmp_path / "out" / "result.json").read_text())
    assert len(saved["rows"]) == len(lines)
    assert (tmp_path / "out" / "rows.csv").read_text().count("\n") == len(lines) + 1


@pytest.mark.slow
def test_gangs_are_compared_with_stages_of_as_many_tiles_and_with_their_own(tmp_path):
    onnx.save(small_onnx(), tmp_path / "small.onnx")
    systems = ("one", "stages", "staged")
    options = ("--size", SIZE, "--rounds", 2, *(word for name in systems for word in ("--system", name)))
    put_in = ("--latencies", "none", "--latencies", "0,1,0")
    lines = rows("bench", "gangs", "--model", tmp_path / "small.onnx", *options, *put_in)
    assert [line["system"] for line in lines] == 2 * [*systems, "gang"]
    assert [line["latencies"] for line in lines] == 4 * ["none"] + 4 * ["0 ms, 1 ms, no limit"]
    assert lines[1]["plan"].startswith("2x1")
    assert lines[3]["gain"] == lines[3]["gain_low"] == lines[3]["gain_high"] == 1.0
    assert lines[0]["calibrated_ms"] == pytest.approx(lines[0]["median_ms"])


@pytest.fixture
def one_processor():
    """Let this process use one processor, whatever the machine has; give which."""
    whole = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(whole)})
    yield {min(whole)}
    os.sched_setaffinity(0, whole)


@pytest.mark.two_at_once
def test_a_gang_is_compared_with_one_function_of_as_many_threads(monkeypatch, settings, tmp_path, one_processor):
    monkeypatch.setenv("SERFER_CACHE_DIR", str(settings.cache_dir))
    onnx.save(small_onnx(), tmp_path / "small.onnx")
    options = ("--size", SIZE, "--gang-width", 4, "--system", "threads", "--rounds", 2, "--out", tmp_path / "out")
    shown = bench("gangs", "--model", tmp_path / "small.onnx", *options).output
    assert "members: 4, processors: 1: they took turns" in shown
    rows = json.loads((tmp_path / "out" / "result.json").read_text())["rows"]
    assert [(row["system"], row["members"], row["processors"]) for row in rows] == [("threads", 4, 1), ("gang", 4, 1)]
    assert [row["plan"] for row in rows] == ["1", "[2 x 2x2]"]
    assert rows[0]["predicted_ms"] < rows[1]["predicted_ms"]
    assert os.sched_getaffinity(0) == one_processor


def test_what_starts_while_processors_are_bound_runs_on_these():
    whole = os.sched_getaffinity(0)
    with bound_to(1) as processors:
        command = [sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"]
        started = subprocess.run(command, capture_output=True, check=True)
    assert (processors, int(started.stdout)) == (1, 1)
    assert os.sched_getaffinity(0) == whole


@pytest.mark.filterwarnings("ignore::serfer.core.errors.PlanWarning")
def test_a_network_without_such_a_gang_and_an_unknown_system_are_refused(monkeypatch, settings, tmp_path):
    monkeypatch.setenv("SERFER_CACHE_DIR", str(settings.cache_dir))
    onnx.save(small_onnx(), tmp_path / "small.onnx")
    with pytest.raises(ModelError, match=f"at {SIZE} px has no gang of 37 members"):
        bench("gangs", "--model", tmp_path / "small.onnx", "--size", SIZE, "--gang-width", 37)
    with pytest.raises(UsageError, match="unknown system nothing"):
        bench("gangs", "--system", "nothing")


@pytest.mark.parametrize("text", ["30", "30,x,75", "30,0.5,-1", "nan,0,0", "0,inf,0", ""])
def test_latencies_that_cannot_be_put_in_are_refused(text):
    with pytest.raises(UsageError, match="--latencies is none or INVOKE_MS,REQUEST_MS,MB_PER_S"):
        bench("gangs", "--latencies", text)
