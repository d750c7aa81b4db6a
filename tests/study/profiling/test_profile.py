"""Operators are measured as they run in a task; the work of whole networks."""

import json
import time
from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from serfer.core.costs.operator_costs import Kind, dump_profiles, parse_profiles
from serfer.core.errors import ModelError
from serfer.core.geometry import Grid
from serfer.lambdas import sessions
from serfer.splitter.plan_dir.emit import in_one_piece
from serfer.splitter.planning import ort_kernels
from serfer.splitter.tiling.cuts import cut_points
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.tiling.global_pooling import with_tile_pools
from serfer.splitter.tiling.grids import ONE
from serfer_bench.study.profiling import profile
from serfer_bench.study.profiling.profile import Meter, given_to, measure, stage_tasks, worker_session
from serfer_bench.study.profiling.synthetic_models import synthetic_models
from serfer_bench.study.profiling.whole_network import read_whole_works, whole_works
from tests.e2e.small import SIZE, small_onnx

_REORDERS = (Kind.REORDER_INPUT, Kind.REORDER_OUTPUT, Kind.REORDER_TASK_INPUT)
_FREE = ("Flatten", "Reshape", "Identity")


@pytest.fixture(autouse=True)
def cold(monkeypatch):
    monkeypatch.setattr(profile, "_WARM_UP_SECONDS", 0.02)


def executed(task, tmp_path):
    """Return the operators that ONNX Runtime reports, as (kind, shape read, shape written)."""
    session = worker_session(task.model(), events=tmp_path / "events")
    session.run(None, given_to(session))
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    steps = [event["args"] for event in events if event["name"].endswith("_kernel_time")]
    return [
        (
            step["op_name"],
            next(iter(step["input_type_shape"][0].values())),
            next(iter(step["output_type_shape"][0].values())),
        )
        for step in steps
        if step["op_name"] not in _FREE
    ]


def tasks_of(graph):
    graph = with_tile_pools(graph)
    cuts = cut_points(graph)
    spans = [(0, len(cuts) - 1), (0, len(cuts) // 2), (len(cuts) // 3, len(cuts) // 2)]
    for start, stop in spans:
        for grid in (ONE, Grid(2, 2)):
            yield from stage_tasks(graph, cuts[start], cuts[stop], grid)[:1]


@pytest.mark.parametrize(
    "name",
    ["squeezenet", *(pytest.param(name, marks=pytest.mark.slow) for name in ("resnet18", "mobilenet-v2", "googlenet"))],
)
def test_modelled_fusion_reorders_and_slices_nearly_match_onnx_runtime(zoo, tmp_path, monkeypatch, name):
    """Nearly: each operator is taken by itself, and sums of what a task is given may stay out of blocks.

    Blocks have 16 channels where processors have AVX-512, which is what plans are predicted for, and 8 elsewhere.
    """
    if "avx512f" not in Path("/proc/cpuinfo").read_text(encoding="utf-8"):
        monkeypatch.setattr(ort_kernels, "BLOCK", 8)
    for task in tasks_of(zoo(name)[2]):
        ran, works = executed(task, tmp_path), task.works
        sliced = sum(prod(written) for kind, _, written in ran if kind == "Slice")
        assert sum(one.written for one in works if one.kind == Kind.CROP) == sliced
        reordered = sum(prod(read) for kind, read, _ in ran if kind.startswith("Reorder"))
        ours = sum(one.read for one in works if one.kind in _REORDERS) + sum(one.reordered for one in works)
        assert ours == pytest.approx(reordered, rel=0.4, abs=6000)  # it pads channels to whole blocks
        operators = sum(not kind.startswith("Reorder") for kind, _, _ in ran)
        assert sum(one.kind not in _REORDERS for one in works) == pytest.approx(operators, abs=3)


def test_sessions_are_built_as_workers_build_them(monkeypatch, tmp_path):
    seen = []

    class Options(profile.ort.SessionOptions):
        def add_session_config_entry(self, key, value):
            seen.append((key, value))
            super().add_session_config_entry(key, value)

    monkeypatch.setattr(profile.ort, "SessionOptions", Options)
    model = next(synthetic_models(np.random.default_rng(0), 1))
    options = worker_session(model).get_session_options()
    ours, seen[:] = list(seen), []
    cache = sessions.SessionCache(tmp_path, threads=1)
    (tmp_path / "graph").write_bytes(model.SerializeToString())
    (tmp_path / "weights").write_bytes(b"")
    function = type("F", (), {"weights": type("W", (), {"path": "weights", "bytes": 0})})
    theirs = cache._build(function, "graph").get_session_options()
    assert ours == seen
    for name in ("intra_op_num_threads", "inter_op_num_threads", "graph_optimization_level", "execution_mode"):
        assert getattr(options, name) == getattr(theirs, name)


def test_profiles_are_measured_fitted_and_read_again(monkeypatch):
    monkeypatch.setattr(profile, "_MOST_SECONDS", 0.05)
    monkeypatch.setattr(profile, "_DISTURBED", 100.0)  # however busy the machine is
    monkeypatch.setattr(profile, "_WAITED", 100.0)
    progress = []
    profiles = measure(progress.append, networks=(), drawn_rounds=1)
    assert parse_profiles(dump_profiles(profiles)).kinds.keys() == profiles.kinds.keys()
    assert all(one.samples and min(one.coefficients_ns.values()) >= 0 for one in profiles.kinds.values())
    assert "drawn" in progress[0]


def test_a_meter_repeats_until_an_undisturbed_run_or_the_time_limit(monkeypatch):
    meter = Meter()
    repeated = meter.repeat(lambda: 1.0, most_s=0.0)
    assert len(repeated.times) == profile._LEAST_ROUNDS
    assert repeated.best == 1.0
    monkeypatch.setattr(profile, "_DISTURBED", 100.0)

    def wait():
        time.sleep(0.01)
        return 0.01

    assert Meter().repeat(wait, most_s=0.0).quiet == 0


def test_the_network_of_a_plan_directory_has_the_work_of_the_model(tmp_path):
    graph = from_onnx(small_onnx(), SIZE, SIZE)
    onnx.save(in_one_piece(graph).model({}), tmp_path / "unsplit.onnx")
    works = read_whole_works(tmp_path / "unsplit.onnx", SIZE, SIZE)
    assert sorted(map(repr, works)) == sorted(map(repr, whole_works(graph)))
    assert sum(work.kind == Kind.REDUCE for work in works) == 1
    assert sum(work.macs for work in works) == sum(work.macs for work in whole_works(graph)) > 0


def test_a_whole_map_is_not_cropped_where_a_pool_leaves_its_last_row():
    value = helper.make_tensor_value_info
    nodes = [
        helper.make_node("MaxPool", ["input"], ["half"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["half"], ["flat"]),
    ]
    inputs, outputs = value("input", TensorProto.FLOAT, ["N", 3, 9, 9]), value("flat", TensorProto.FLOAT, ["N", 48])
    model = helper.make_model(
        helper.make_graph(nodes, "odd", [inputs], [outputs]), opset_imports=[helper.make_opsetid("", 20)], ir_version=10
    )
    assert [work.kind for work in whole_works(from_onnx(model, 9, 9))] == [Kind.POOL]


def test_what_is_not_a_network_is_refused(tmp_path):
    (tmp_path / "unsplit.onnx").write_bytes(b"none")
    with pytest.raises(ModelError, match=r"unsplit\.onnx is not an ONNX model"):
        read_whole_works(tmp_path / "unsplit.onnx", SIZE, SIZE)
