"""`serfer bench cold`: the parts of cold starts add up, and are compared with the cost model's."""

import types
from dataclasses import replace
from unittest.mock import Mock

import onnx
import pytest

from serfer.core.costs.aws import shipped_aws
from serfer.core.errors import UsageError
from serfer.local.servers.redis import RedisServer
from serfer.plan_directory import load_plan
from serfer.splitter.split import split
from serfer.storage import open_store
from serfer_bench.cold import page_cache, pairs
from serfer_bench.cold.command import MeasuredStart, PartTime, measure, predict, predicted_by_others, table
from serfer_bench.cold.functions import Bench, ProbedService, ProbeLine
from serfer_bench.cold.probe import MARK, Parts
from serfer_bench.cold.query import OVERLAPPED, _step_parts
from tests.bench.running import run
from tests.e2e.small import slow_starts, small_onnx


@pytest.mark.slow
def test_parts_of_functions_and_of_a_first_answer(single, settings):
    with RedisServer() as server, open_store(server.url) as store:
        bench = Bench(load_plan(single), single, store, server.url, settings, page_cache.FILES)
        rows, dropped = measure(bench, rounds=1)
    assert dropped == page_cache.FILES
    ms = {(row.function, row.part): row.ms for row in rows}
    imported = {"process", "runtime", "own code", "numpy", "onnxruntime", "plan"}
    started = {"graphs", "sessions", "run", "task", "response", "weights", "store"}
    parts = {part: value for (name, part), value in ms.items() if name == "0.0" and part in imported | started}
    assert {*parts} == imported | started
    assert ("0.0", "logger") not in ms  # a worker without a line to write imports none
    assert all(value > 0 for value in parts.values())
    assert ms["0.0", "all parts"] == pytest.approx(sum(parts.values()))
    assert ms["0.0", "second run"] < ms["0.0", "all parts"] / 2
    answer = [value for (name, part), value in ms.items() if name == "query" and not part.endswith("answer")]
    assert ms["query", "first answer"] == pytest.approx(sum(answer))
    assert ms["query", "second answer"] < ms["query", "first answer"]
    assert table(rows).head == ["ms", "0.0", "query"]


def test_predictions_are_the_cost_models_and_by_others_and_stand_beside_what_was_measured(lean, settings):
    plan, facts = load_plan(lean), shipped_aws().functions
    start = predict(plan, (1, 0), settings)
    assert start.process == facts.init
    assert start.sessions == plan.stages[1].functions[0].weights.bytes / facts.load_rate
    parts = ("process and imports", "fetching", "graphs and sessions", "first run")
    small = MeasuredStart(100, dict(zip(parts, (0.3, 0.1, 0.2, 0.0), strict=True)))
    large = MeasuredStart(300, dict(zip(parts, (0.5, 0.3, 0.2, 0.4), strict=True)))
    expected = dict(zip(parts, (0.4, 0.2, 0.2, 0.2), strict=True))
    assert predicted_by_others([small, large], 200) == pytest.approx(expected)
    assert predicted_by_others([], 200) == {}
    assert predicted_by_others([replace(small, weight_bytes=0)], 200) == {"process and imports": 0.3}
    row = PartTime("0.0", "graphs and sessions", 200.0, 190.0, 210.0, 3, 300.0, 150.0)
    assert table([row]).body == [
        ["graphs and sessions", "200.0 (190.0 to 210.0, predicted 300 +50%, by others 150 -25%)"]
    ]
    short = PartTime("0.0", "fetching", 0.5, 0.5, 0.5, 3, 0.0)
    assert table([short]).body == [["fetching", "0.5 (0.5 to 0.5, predicted 0)"]]


def test_time_belongs_to_the_innermost_part_or_to_one_that_had_started_before(monkeypatch):
    now = iter((1.0, 3.0, 7.0, 8.0, 9.0))
    monkeypatch.setattr("serfer_bench.cold.probe.time", types.SimpleNamespace(monotonic=lambda: next(now)))
    parts = Parts(0.0)
    inner = parts.timed("inner", lambda: None)
    parts.timed("outer", inner)()
    assert parts.taken() == {"runtime": 2.0, "outer": 3.0, "inner": 4.0}
    late = ProbeLine("f", 1, first=1.0, now=5.0, parts={"run": 3.0})
    assert _step_parts(0.5, 6.0, [late]) == {"process": 0.5, "run": 3.0, "response": 1.0}
    assert _step_parts(2.0, 6.0, [late]) == {OVERLAPPED: 4.0}


@pytest.fixture(scope="module")
def two_plans(tmp_path_factory):
    path = tmp_path_factory.mktemp("network") / "net.onnx"
    onnx.save(small_onnx(), path)
    options = {"weights": "fetched", "cold_plan": "always", "cold_environments": 3, "gang": "never"}
    split(path, out=path.with_name("plan"), facts=slow_starts(), **options)
    return path.with_name("plan")


@pytest.mark.slow
def test_first_answers_of_both_plans_are_measured_in_alternated_pairs(two_plans, settings, monkeypatch):
    measured = Mock(wraps=pairs.measure_first_answer)
    monkeypatch.setattr(pairs, "measure_first_answer", measured)
    with RedisServer() as server, open_store(server.url) as store:
        whole = Bench(load_plan(two_plans), two_plans, store, server.url, settings, page_cache.FILES)
        other, place = pairs.other_plan(two_plans, whole.plan, None)
        result = pairs.measure_pairs(whole, replace(whole, plan=other, directory=place), 2)
    assert [call.args[0].directory.name for call in measured.call_args_list] == ["plan", "cold", "cold", "plan"]
    assert [row.plan for row in result.rows] == [whole.plan.digest, other.digest]
    assert result.whole.earlier is None
    assert result.split.earlier.least <= result.split.earlier.times <= result.split.earlier.greatest
    for row in result.rows:
        assert 0 < row.second_ms < row.ms
        assert row.usd > 0 < row.predicted_usd
        assert row.environments == load_plan(two_plans if row.what == "whole" else place).tasks
    assert [row.shown["times earlier"] != "" for row in result.rows] == [False, True]


@pytest.mark.parametrize("options", [("--model", "vgg16", "--model", "alexnet"), ("--against", "somewhere")])
def test_what_is_for_pairs_is_refused_without_them(options):
    with pytest.raises(UsageError, match="give --pairs too"):
        run("bench", "cold", *options)


def test_a_plan_to_compare_with_is_of_the_same_network(two_plans, lean):
    plan = load_plan(two_plans)
    assert pairs.other_plan(two_plans, plan, two_plans / "cold")[1] == two_plans / "cold"
    with pytest.raises(UsageError, match="of one network"):
        pairs.other_plan(two_plans, plan, lean)
    with pytest.raises(UsageError, match="--set cold_plan=always"):
        pairs.other_plan(lean, load_plan(lean), None)


def test_only_lines_of_the_probe_are_taken():
    probed = ProbedService()
    probed.take("name-0: something else")
    probed.take(f'name-0: {MARK}{{"pid": 1, "first": 0, "now": 1, "parts": {{}}}}')
    assert [line.function for line in probed.lines] == ["name-0"]


def test_what_cannot_be_dropped_whole_is_dropped_by_files(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"x")
    monkeypatch.setattr(page_cache, "_DROP", tmp_path / "missing" / "drop_caches")
    assert [page_cache.drop(mode, [tmp_path]) for mode in page_cache.MODES] == ["kept", "files", "files"]
