import onnx
import pytest
from onnx import TensorProto, helper

from serfer.core.costs.operator_costs import Kind
from serfer.core.errors import ModelError
from serfer.splitter.plan_dir.emit import in_one_piece
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer_bench.study.profiling.whole_network import read_whole_works, whole_works
from tests.e2e.small import SIZE, small_onnx


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
