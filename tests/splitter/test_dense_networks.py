"""Segmentation, super-resolution and depth: networks as PyTorch exports them, every operator in tiles."""

import numpy as np
import pytest

import serfer
from serfer.core.exactness import relative_error
from serfer.splitter.network.source import load
from serfer.splitter.plan_dir.check import run_tiles
from serfer.splitter.tiling import operators
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.tiling.global_pooling import with_tile_pools
from tests.splitter.dense_networks import LARGE, NETWORKS, network
from tests.splitter.models import cut

EXACT = 1e-5
GRIDS = ("1", "2x2", "3x2", "1x4", "4x4")
STAGES = {1: ("4x4",), 2: ("4x4", "2x3"), 3: ("2x2", "4x3", "1"), 4: ("3x4", "4x4", "1x4", "2x2")}
WHOLE_MAPS = (
    *("unet_instance_norm", "unet_group_norm"),
    *("lraspp_mobilenet_v3_large", "deeplabv3_resnet50", "deeplabv3_mobilenet_v3_large"),
)
"""They need a map's sums, which end a stage: a stage has its grid where it can, and one tile where it cannot."""
ONE_STAGE = ("edsr",)
"""The image itself is read at its end, so there is nothing to cut."""
WEEKLY = {
    *("unet_nearest", "unet_group_norm", "depth_nearest", "labels"),  # which are like another one
    *("fcn_resnet50", "deeplabv3_resnet50", "deeplabv3_mobilenet_v3_large"),
}


def check(name, directory, grids=GRIDS):
    net, size = network(name)
    batch = np.random.default_rng(1).standard_normal((2, 3, *size)).astype(np.float32)
    source, _ = load(net, batch[:1])
    graph = with_tile_pools(from_onnx(source.onnx, *size))
    assert [node.name for node in graph.nodes if not operators.tileable(graph, node)] == []
    expected = source.run(batch)
    assert expected.shape[2:] == graph.shapes[graph.output][2:]
    for grid in grids:
        plan = cut(source.onnx, size, directory / grid, grid)
        assert {str(stage.grid) for stage in plan.stages} == {grid}
        compare(run_tiles(plan, directory / grid, batch), expected, grid)


def compare(got, expected, where):
    """The values, and the best class wherever the best two differ by more than is allowed."""
    assert relative_error(got, expected) <= EXACT, where
    if expected.ndim == 4 and expected.shape[1] > 1 and expected.dtype.kind == "f":
        second, best = np.sort(expected, axis=1)[:, -2:].swapaxes(0, 1)
        clear = best - second > EXACT * np.ptp(expected)
        assert clear.any()
        assert (got.argmax(axis=1) == expected.argmax(axis=1))[clear].all(), where


@pytest.mark.exact
def test_a_dense_network_equals_its_module(tmp_path):
    check("espcn", tmp_path, ("2x2", "3x4"))


@pytest.mark.exact
@pytest.mark.slow
@pytest.mark.parametrize("name", [*NETWORKS, *(pytest.param(name, marks=pytest.mark.weekly) for name in LARGE)])
def test_dense_networks_equal_their_modules_on_every_grid(tmp_path, name):
    check(name, tmp_path)


@pytest.mark.exact
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no stage can be spread")  # of networks of more norms than stages
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.weekly if name in WEEKLY else ()) for name in (*NETWORKS, *LARGE)]
)
def test_dense_networks_of_one_to_four_stages_equal_their_modules_through_worker_and_store(tmp_path, name):
    net, size = network(name)
    batch = np.random.default_rng(2).standard_normal((2, 3, *size)).astype(np.float32)
    source, _ = load(net, batch[:1])
    expected = source.run(batch)
    for count, grids in STAGES.items():
        if name in ONE_STAGE and count > 1:
            continue
        plan = cut(source.onnx, size, tmp_path / str(count), grids[0] if name in WHOLE_MAPS else grids, count)
        assert len(plan.stages) == count
        with serfer.open(tmp_path / str(count)) as pipeline:
            compare(pipeline.run(batch), expected, grids)
