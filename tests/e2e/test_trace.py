"""`serfer classify --trace`, and a trace of concurrent queries."""

import json

import pytest

import serfer
from serfer.pipeline.trace import trace_events
from tests.e2e.small import batch


def spans(trace, name):
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["name"].startswith(name)]


def test_trace_shows_stages_and_tasks_of_every_image(serfer_here, lean, examples, tmp_path):
    images = [examples / "rocket.jpg", examples / "coffee.png"]
    path = tmp_path / "out.json"
    result = serfer_here("classify", "--plan", lean, *images, "--json", "--trace", path)
    assert (result.code, result.err.startswith(f"wrote {path}: open it in chrome://tracing")) == (0, True)
    trace, answers = json.loads(path.read_bytes()), list(map(json.loads, result.lines))
    queries = [spans(trace, str(image))[0] for image in images]
    assert [span["dur"] / 1000 for span in queries] == pytest.approx([one["latency_ms"] for one in answers], abs=0.002)
    stages = [stage for answer in answers for stage in answer["stages"]]
    alone = [span for span in spans(trace, "stage-") if "serfer.tasks" in span["args"] and ".." not in span["name"]]
    shown = [span["dur"] / 1000 for span in alone]
    assert shown == pytest.approx([stage["ms"] for stage in stages if stage["gang"] is None], abs=0.002)
    tasks = sum(stage["tasks"] for stage in stages)
    for name in ("task ", "read", "compute", "write"):
        assert len(spans(trace, name)) >= tasks, name
    cold = sum(stage["cold"] for stage in stages)
    assert len(spans(trace, "cold start")) == cold > 0
    assert len({span["args"].get("serfer.environment") for span in spans(trace, "task ")}) >= cold
    assert len(spans(trace, "decode")) == len(images)


def test_trace_shows_the_queries_that_were_answered(serfer_here, plan, examples, tmp_path):
    common = ("classify", "--plan", plan, "--workers", "inprocess", "nowhere.jpg")
    path = tmp_path / "out.json"
    assert serfer_here(*common, examples / "rocket.jpg", "--trace", path).code == 3
    assert len(spans(json.loads(path.read_bytes()), "decode")) == 1
    before = path.read_bytes()
    serfer_here(*common, "--trace", path).complains(3, "nowhere.jpg")
    assert path.read_bytes() == before


@pytest.mark.two_at_once
def test_concurrent_queries_are_traced_together(plan, settings):
    with serfer.open(plan, workers="inprocess", settings=settings) as pipeline:
        results = [future.result() for future in [pipeline.submit(batch(seed=seed)) for seed in range(8)]]
        events = trace_events([(f"query {number}", result) for number, result in enumerate(results)])
    shown = {"traceEvents": events}
    assert {span["name"] for span in spans(shown, "query ")} == {f"query {number}" for number in range(8)}
    for result in results:
        came, cut = result.split
        assert came <= cut <= result.answer.started <= result.answer.ended <= result.answered
    compute = sum(report.compute_ms for result in results for run in result.answer.stages for report in run.reports)
    assert sum(span["args"]["ms"] for span in spans(shown, "compute")) == pytest.approx(compute)
