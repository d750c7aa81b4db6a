"""Plans whose stages pass on several tensors: every piece is at its stated place, and every answer is exact."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
from onnx import TensorProto
from onnx.external_data_helper import load_external_data_for_tensor

from serfer.core.errors import ModelError
from serfer.core.geometry import Span
from serfer.core.plan import IMAGE
from serfer.splitter.network.graph import INLINE_BYTES
from serfer.splitter.network.source import load
from serfer.splitter.plan_dir.check import check_exact
from serfer.splitter.plan_dir.weights import WeightsFile
from serfer.splitter.split import split
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer.splitter.tiling.onnx_builder import Slice
from tests.once import one_each
from tests.splitter.models import Net, check_bytes_written, plan_error, split_and_check, split_two_stages

SIZE = (13, 10)


def residual(net):
    """Two residual blocks; return the output and the names of its operators' outputs by what they are."""
    head = net.op("Relu", net.conv("x", 3, 4, 3))
    names = {"head": head}
    for block in ("one", "two"):
        first = net.op("Relu", net.conv(head, 4, 6, [5, 3], pads=[2, 1, 2, 1]))
        second = net.conv(first, 6, 4, 3)
        head = net.op("Relu", net.op("Add", second, head))
        names |= {f"{block} first": first, f"{block} second": second, f"{block} end": head}
    return net.linear(net.flat(net.op("MaxPool", head, kernel_shape=[3, 2], strides=[3, 2])), 4 * 4 * 5, 6), names


def branching(net):
    """Three branches that are joined; the first is read again after that."""
    x = net.op("Relu", net.conv("x", 3, 4, 3))
    one = net.conv(x, 4, 2, 3)
    two = net.op("Sigmoid", net.conv(x, 4, 3, [1, 5], pads=[0, 2, 0, 2]))
    three = net.op("MaxPool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    joined = net.op("Concat", one, two, three, axis=1)
    narrow = net.conv(joined, 9, 2, 3)
    last = net.op("Add", narrow, one)
    names = {"x": x, "one": one, "two": two, "three": three, "joined": joined, "narrow": narrow}
    return net.linear(net.flat(last), 2 * 13 * 10, 6), names


CASES = [
    (residual, ["one first"], [2, 1]),
    (residual, ["one second"], [2, 1]),
    (residual, ["one first", "one second"], [2, 1, 1]),
    (residual, ["one first", "two first"], [2, 2, 1]),
    (residual, ["head", "one first", "one second", "one end"], [1, 1, 1, 1, 1]),
    (branching, ["one"], [2, 1]),
    (branching, ["two"], [3, 1]),
    (branching, ["three"], [3, 1]),
    (branching, ["one", "two", "three"], [2, 1, 1, 1]),
    (branching, ["x", "two", "joined", "narrow"], [1, 2, 1, 1, 1]),
    (branching, ["x", "one", "two", "three", "joined", "narrow"], [1, 1, 1, 1, 1, 1, 1]),
]


@pytest.mark.exact
@one_each("grids", ["2x2", "3x2", "mixed"], (("make", "after", "outputs"), CASES))
def test_cuts_inside_blocks_are_exact(tmp_path, make, after, outputs, grids):
    net = Net(3, *SIZE)
    output, names = make(net)
    if grids == "mixed":
        grids = [*(["2x2", "1", "1x3", "3x2"] * 2)[: len(after)], "1"]
    elif len(after) == 1 or isinstance(grids, list):
        grids = [*[grids] * len(after), "1"]
    plan = split_and_check(net, output, tmp_path / "plan", grids, cuts=tuple(names[name] for name in after))
    assert [len(stage.outputs) for stage in plan.stages] == outputs


def reads(plan):
    return [[source.stage for source in stage.inputs] for stage in plan.stages]


def test_a_tensor_read_two_stages_later_is_written_once(tmp_path):
    net = Net(3, *SIZE)
    output, names = residual(net)
    after, batch = tuple(names[name] for name in ("head", "one first", "one second")), net.batch_of(2)
    plan = split_and_check(net, output, tmp_path / "plan", ["2x2", "2x2", "3x2", "1"], batch=batch, cuts=after)
    assert reads(plan) == [[IMAGE], [0], [1], [0, 2]]
    assert [len(stage.outputs) for stage in plan.stages] == [1, 1, 1, 1]
    origins = {piece.stage for tile in plan.stages[3].tiles for piece in tile.pieces}
    assert origins == {0, 2}
    check_bytes_written(plan, tmp_path / "plan", batch)


def test_a_stage_may_read_nothing_of_the_one_before(tmp_path):
    net = Net(3, *SIZE)
    output, names = branching(net)
    after = tuple(names[name] for name in ("x", "one", "two"))
    plan = split_and_check(net, output, tmp_path / "plan", ["2x2", "1x3", "3x2", "1"], cuts=after)
    assert reads(plan) == [[IMAGE], [0], [0], [0, 1, 2]]
    assert {piece.stage for tile in plan.stages[2].tiles for piece in tile.pieces} == {0}


@pytest.mark.parametrize("grid", ["4x4", "2x2"])
def test_a_tile_without_readers_writes_nothing(tmp_path, grid):
    net = Net(1, 8, 8)
    x = net.op("MaxPool", "x", kernel_shape=[2, 2], strides=[2, 2])
    y = net.op("Relu", net.conv(x, 1, 2, 1, strides=[3, 3]))
    plan = split_and_check(net, net.flat(y), tmp_path / "plan", [grid, "2x2", "1"], cuts=(x, y))
    assert sum(not tile.cells for tile in plan.stages[0].tiles) == {"4x4": 12, "2x2": 0}[grid]


def test_the_network_in_a_plan_directory_can_be_split_itself(tmp_path):
    """As `register` does: names that the first plan gave to parts of tensors are taken in the second."""
    net = Net(3, 10, 10)
    x = net.conv("x", 3, 4, 3)
    apart = net.conv(x, 4, 4, 1, strides=[2, 2])  # reads less than the convolution beside it
    both = net.op("Add", apart, net.conv(x, 4, 4, 3, strides=[2, 2]))
    output = net.linear(net.flat(net.op("GlobalAveragePool", both)), 4, 5)
    path = net.save(tmp_path, output)
    for directory in ("first", "second", "third"):
        plan = split(path, out=tmp_path / directory, stages=1)
        path = tmp_path / directory / plan.unsplit.path
    assert plan_error(net, output, plan, tmp_path / "third") < 1e-6


BATCH = np.random.default_rng(4).standard_normal((2, 3, 8, 8), dtype=np.float32)


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    home = tmp_path_factory.mktemp("net")
    plan, directory = split_two_stages(home)
    return plan, directory, load(home / "net.onnx", BATCH)[0]


def complaint(plan, directory, source, rounding=0.0):
    graph = replace(from_onnx(source.onnx, 8, 8, source.outputs), rounding=rounding)
    with pytest.raises(ModelError) as caught:
        check_exact(plan, directory, source, BATCH, graph)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("exported", "words"), [(True, "as exported to ONNX"), (False, "as read from the ONNX file")])
@pytest.mark.parametrize("rounding", [0.0, 1e-2])
def test_only_modules_exported_by_split_are_reported_as_exported(parts, exported, words, rounding):
    plan, directory, source = parts
    other = replace(source, run=lambda batch: source.run(batch * 2), exported=exported)
    message = complaint(plan, directory, other, rounding)
    assert words in message
    assert exported == ("export" in message)


def test_a_model_that_mixes_images_or_takes_one_is_told_from_a_misread_one(parts):
    plan, directory, source = parts

    def run(batch):
        if len(batch) > 1:
            raise ValueError("one image, please\nat most")
        return source.run(batch)

    mixing = replace(source, run=lambda batch: source.run(batch + 0 * batch) + 3 * (len(batch) - 1))
    assert "mixes the images of a batch or depends on their number" in complaint(plan, directory, mixing)
    text = complaint(plan, directory, replace(source, run=run))
    assert "does not run on a batch of 2 images: ValueError: one image" in text


def test_a_part_that_cannot_run_is_not_attributed_to_the_batch_size(parts, tmp_path):
    plan, directory, source = parts
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    (tmp_path / plan.stages[0].tiles[0].graph).write_bytes(b"\x08\x0a")
    message = complaint(plan, tmp_path, source)
    assert "a part of the split network does not run in ONNX Runtime" in message
    assert "images" not in message


RANDOM = np.random.default_rng(0)
CONSTANTS = {
    "large": RANDOM.standard_normal((30, 41), dtype=np.float32),
    "small": RANDOM.standard_normal(INLINE_BYTES // 4, dtype=np.float32),
    "just": RANDOM.standard_normal(INLINE_BYTES // 4 + 1, dtype=np.float32),
    "whole": np.arange(500),
    "turned": RANDOM.standard_normal((50, 20), dtype=np.float32).T,
}


@pytest.fixture
def file():
    return WeightsFile("weights-3.bin", CONSTANTS, frozenset({"large", "small"}))


def test_references_point_to_the_written_weights(file, tmp_path):
    (tmp_path / "stage-1").mkdir()
    file.write(tmp_path / "stage-1" / file.name)
    assert (tmp_path / "stage-1" / file.name).stat().st_size == file.bytes
    for key in ("large", "just", "whole", "turned"):
        tensor = file.reference(key, "name", "stage-1/weights-3.bin")
        assert tensor.name == "name"
        offset = next(int(entry.value) for entry in tensor.external_data if entry.key == "offset")
        assert offset % 64 == 0
        load_external_data_for_tensor(tensor, str(tmp_path))
        kind = {"large": np.float16, "whole": np.int64}.get(key, np.float32)
        stored = np.frombuffer(tensor.raw_data, kind).reshape(tensor.dims)
        assert np.array_equal(stored, CONSTANTS[key].astype(kind))
        assert (tensor.data_type == TensorProto.FLOAT16) == (key == "large") == file.is_half(key)
    assert "small" not in file  # it stays in the graph
    assert not file.is_half("small")
    values = {"w": np.ones(1024, np.float32)}
    assert [WeightsFile("w", values, frozenset(half)).bytes for half in ((), ("w",))] == [4096, 2048]
    empty = WeightsFile("weights-0.bin", {}, frozenset())
    empty.write(tmp_path / empty.name)
    assert (tmp_path / empty.name).stat().st_size == empty.bytes == 0


def test_a_file_knows_which_parts_of_a_constant_it_holds():
    value = np.arange(1200, dtype=np.float32).reshape(20, 60)
    parts = [Slice("w|b", 1, Span(0, 20)), Slice("w|b", 1, Span(20, 60)), Slice("v", 0, Span(3, 10))]
    file = WeightsFile("weights-0.bin", {part.name: part.of(value) for part in parts} | {"u": value}, frozenset())
    assert [file.slices_of(base) for base in ("w|b", "v", "u", "w")] == [parts[:2], parts[2:], [], []]
    assert np.array_equal(parts[1].of(value), value[:, 20:60])
    assert np.array_equal(parts[2].of(value), value[3:10])
    assert [Slice.parse(name) for name in ("plain", "a|b|c|d", "|||", "1|2|3", "a|0|1|-2")] == [None] * 5
