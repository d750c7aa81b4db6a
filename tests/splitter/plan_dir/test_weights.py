import numpy as np
import pytest
from onnx import TensorProto
from onnx.external_data_helper import load_external_data_for_tensor

from serfer.core.geometry import Span
from serfer.splitter.network.graph import INLINE_BYTES
from serfer.splitter.plan_dir.weights import WeightsFile
from serfer.splitter.tiling.onnx_builder import Slice

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
    parts = [Slice("w", 1, Span(0, 20)), Slice("w", 1, Span(20, 41))]
    values = {part.name: part.of(CONSTANTS["large"]) for part in parts}
    other = {Slice("v", 0, Span(0, 300)).name: np.ones(300, np.float32)}
    file = WeightsFile("weights-0.bin", {**values, **other}, frozenset())
    assert file.slices_of("w") == parts
    assert file.slices_of("v") == [Slice("v", 0, Span(0, 300))]
    assert file.slices_of("x") == []
    assert "w" not in file


def test_a_slice_is_parsed_from_its_name():
    part = Slice("a|b", 1, Span(3, 7))
    assert Slice.parse(part.name) == part
    for name in ("plain", "a|b|c|d", "|||", "1|2|3", "a|0|1|-2"):
        assert Slice.parse(name) is None
    value = np.arange(80).reshape(8, 10)
    assert np.array_equal(part.of(value), value[:, 3:7])
    assert np.array_equal(Slice("a", 0, Span(3, 7)).of(value), value[3:7])
