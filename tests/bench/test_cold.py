"""`serfer bench cold`: the parts of cold starts add up, and are compared with the cost model's."""

import types

import pytest

from bench.cold import page_cache
from bench.cold.command import measure, predict, table
from bench.cold.functions import Bench, ProbedService, ProbeLine
from bench.cold.probe import MARK, Parts
from bench.cold.query import OVERLAPPED, _step_parts
from serfer.core.costs.aws import shipped_aws
from serfer.local.servers.redis import RedisServer
from serfer.plan_directory import load_plan
from storage import open_store


def test_parts_of_functions_and_of_a_first_answer(lean, settings):
    with RedisServer() as server, open_store(server.url) as store:
        bench = Bench(load_plan(lean), lean, store, server.url, settings, page_cache.FILES)
        rows, dropped = measure(bench, rounds=1)
    assert dropped == page_cache.FILES
    ms = {(row.function, row.part): row.ms for row in rows}
    imported = {"process", "runtime", "own code", "numpy", "onnxruntime", "store client", "plan"}
    started = {"graphs", "sessions", "run", "task", "response", "weights", "store", "logger"}
    for function in ("0.0", "1.0"):
        parts = {part: value for (name, part), value in ms.items() if name == function and part in imported | started}
        assert {*parts} == imported | started
        assert all(value > 0 for value in parts.values())
        assert ms[function, "all parts"] == pytest.approx(sum(parts.values()))
        assert ms[function, "second run"] < ms[function, "all parts"] / 2
    answer = [value for (name, part), value in ms.items() if name == "query" and not part.endswith("answer")]
    assert ms["query", "first answer"] == pytest.approx(sum(answer))
    assert ms["query", "second answer"] < ms["query", "first answer"]
    assert table(rows).head == ["ms", "0.0", "1.0", "query"]


def test_predicted_parts_are_the_cost_models(lean, settings):
    plan, facts = load_plan(lean), shipped_aws().functions
    start = predict(plan, (1, 0), settings)
    assert start.process == facts.init
    assert start.sessions == plan.stages[1].functions[0].weights.bytes / facts.load_rate


def test_time_belongs_to_the_innermost_part(monkeypatch):
    now = iter((1.0, 3.0, 7.0, 8.0, 9.0))
    monkeypatch.setattr("bench.cold.probe.time", types.SimpleNamespace(monotonic=lambda: next(now)))
    parts = Parts(0.0)
    inner = parts.timed("inner", lambda: None)
    parts.timed("outer", inner)()
    assert parts.taken() == {"runtime": 2.0, "outer": 3.0, "inner": 4.0}


def test_an_environment_that_had_started_before_its_stage_is_one_part():
    late = ProbeLine("f", 1, first=1.0, now=5.0, parts={"run": 3.0})
    assert _step_parts(0.5, 6.0, [late]) == {"process": 0.5, "run": 3.0, "response": 1.0}
    assert _step_parts(2.0, 6.0, [late]) == {OVERLAPPED: 4.0}


def test_only_lines_of_the_probe_are_taken():
    probed = ProbedService()
    probed.take("name-0: something else")
    probed.take(f'name-0: {MARK}{{"pid": 1, "first": 0, "now": 1, "parts": {{}}}}')
    assert [line.function for line in probed.lines] == ["name-0"]


def test_what_cannot_be_dropped_whole_is_dropped_by_files(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(b"x")
    monkeypatch.setattr(page_cache, "_DROP", tmp_path / "missing" / "drop_caches")
    assert [page_cache.drop(mode, [tmp_path]) for mode in page_cache.MODES] == ["kept", "files", "files"]
