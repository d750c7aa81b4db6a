"""Calibrations: measured from queries that ran, written, read back, and refused where invalid."""

import json

import numpy as np
import pytest

import serfer
from serfer.core.errors import InputError, UsageError
from serfer_bench.study.sim.calibration import LocalRun, read_calibration, summary_of, write_calibration
from tests.e2e.gangs import split_gang
from tests.e2e.small import split_small
from tests.study.sim.worlds import calibration


def test_a_calibration_is_read_back(tmp_path):
    made = calibration()
    write_calibration(made, tmp_path / "c.json")
    assert read_calibration(tmp_path / "c.json") == made


def test_a_run_through_a_pipeline_measures_every_task(tmp_path):
    with serfer.open(split_small(tmp_path), store="memory://", workers="inprocess") as pipeline:
        run = LocalRun(pipeline)
        with pytest.raises(UsageError, match="--queries"):
            run.calibration("a test", "2026-11-22")
        run.take(12)
        made = run.calibration("a test", "2026-11-22")
        stages, digest = pipeline.plan.stages, pipeline.plan.digest
    assert made.tiles == tuple(stage.grid.tiles for stage in stages)
    assert (made.plan, made.source, made.tag) == (digest, "measured", "M")
    assert np.array(made.service_ms).shape == np.array(made.overhead_ms).shape == (12, made.tasks)
    summary = summary_of(made)
    assert (summary.queries, summary.tasks) == (12, made.tasks)
    assert 0 < summary.p50_ms <= summary.p99_ms
    assert "measured (M, 2026-11-22)" in made.label


def test_a_gang_is_measured_by_what_its_members_do_in_each_stage(tmp_path):
    with serfer.open(split_gang(tmp_path), store="memory://", workers="inprocess") as pipeline:
        run, took = LocalRun(pipeline), []
        for _ in range(8):
            run.take(1)
            took.append(pipeline.last.answered - pipeline.last.split[0])
        made = run.calibration("a test", "2026-11-22")
        tiles = tuple(stage.grid.tiles for stage in pipeline.plan.stages)
    assert (made.tiles, made.gangs) == (tiles, ((0, len(tiles)),))
    assert np.median(made.latencies_s) == pytest.approx(np.median(took), rel=0.35, abs=0.003)
    write_calibration(made, tmp_path / "c.json")
    assert read_calibration(tmp_path / "c.json") == made


def test_latencies_are_those_of_the_queries_that_were_measured(tmp_path):
    with serfer.open(split_small(tmp_path), store="memory://", workers="inprocess") as pipeline:
        run = LocalRun(pipeline)
        took = []
        for _ in range(6):
            run.take(1)
            took.append(pipeline.last.answered - pipeline.last.split[0])
        made = run.calibration("a test", "2026-11-22")
    # A stage's end is seen a little after its last task's.
    assert made.latencies_s == pytest.approx(took, rel=0.25, abs=0.003)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "not a calibration of format 1, but '2'"),
        ({"service_ms": []}, "as many queries"),
        ({"driver_ms": [], "service_ms": [], "overhead_ms": []}, "1 at least"),
        ({"cold_ms": []}, "one cold start"),
        ({"cold_ms": [-1]}, "times are 0 to"),
        ({"cold_ms": ["x"]}, "cold_ms"),
        ({"functions": [[0, 0], [0], [0]]}, "a memory for each stage"),
        ({"functions": [[0], [0]]}, "2 tasks"),
        ({"functions": [[0, -1], [0]]}, "numbers from 0"),
        ({"extra": 1}, "extra"),
        ({"gangs": [[0, 1]]}, "two stages or more"),
        ({"gangs": [[0, 3]]}, "two stages or more"),
        ({"gangs": [[0, 2]], "memory_mb": [1024, 2048]}, "one memory"),
    ],
)
def test_a_wrong_value_is_named_with_its_file(tmp_path, change, message):
    path = tmp_path / "c.json"
    write_calibration(calibration(), path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=message) as raised:
        read_calibration(path)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "null", '{"format": 1}', "NaN"])
def test_a_file_that_is_not_a_calibration_is_refused(tmp_path, text):
    path = tmp_path / "c.json"
    path.write_text(text)
    with pytest.raises(InputError):
        read_calibration(path)


def test_nan_is_refused(tmp_path):
    path = tmp_path / "c.json"
    write_calibration(calibration(), path)
    path.write_text(path.read_text().replace("500.0", "NaN"))
    with pytest.raises(InputError, match="times are 0 to"):
        read_calibration(path)
