"""Model packages as bioimage.io has them: a small U-Net in ONNX, its description in either format, and its test."""

import hashlib
import zipfile

import numpy as np
import onnxruntime
import yaml
from onnx import TensorProto, helper, numpy_helper, save_model


def write_unet(path, channels=1, classes=2, *, norm=False, external=False, fixed=None):
    """A U-Net of two halvings: a pixel of its output reads up to 13 around it."""
    random, nodes, constants = np.random.default_rng(0), [], []

    def op(kind, *inputs, **attributes):
        nodes.append(helper.make_node(kind, [*inputs], [f"t{len(nodes)}"], **attributes))
        return nodes[-1].output[0]

    def weights(*shape):
        name, scale = f"w{len(constants)}", 1 / np.sqrt(np.prod(shape[1:]))
        constants.append(numpy_helper.from_array((random.standard_normal(shape) * scale).astype(np.float32), name))
        return name

    def conv(x, before, after):
        y = op("Conv", x, weights(after, before, 3, 3), pads=[1] * 4, kernel_shape=[3, 3])
        if norm:
            scale, shift = (weights(after) for _ in range(2))
            y = op("InstanceNormalization", y, scale, shift)
        return op("Relu", y)

    def up(x, before, after):
        return op("ConvTranspose", x, weights(before, after, 2, 2), kernel_shape=[2, 2], strides=[2, 2])

    pool = {"kernel_shape": [2, 2], "strides": [2, 2]}
    first = conv("raw", channels, 4)
    second = conv(op("MaxPool", first, **pool), 4, 6)
    third = conv(op("MaxPool", second, **pool), 6, 8)
    second = conv(op("Concat", second, up(third, 8, 6), axis=1), 12, 6)
    first = conv(op("Concat", first, up(second, 6, 4), axis=1), 8, 4)
    last = op("Conv", first, weights(classes, 4, 1, 1), kernel_shape=[1, 1])
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", count, *(fixed or (f"{name}y", f"{name}x"))])
        for name, count in (("raw", channels), (last, classes))
    ]
    graph = helper.make_graph(nodes, "unet", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=7)
    save_model(model, path, save_as_external_data=external, location="weights.onnx.data", size_threshold=0)
    return path


def network(path, values):
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"raw": values})[0]


def sigmoid(values):
    return 1 / (1 + np.exp(-values.astype(np.float64)))


def old_description(channels, preprocessing, postprocessing, halo, sha256):
    """Format 0.4."""
    return {
        "format_version": "0.4.10",
        "type": "model",
        "name": "Nuclei",
        "inputs": [
            {
                "name": "raw",
                "axes": "bcyx",
                "data_type": "float32",
                "shape": {"min": [1, channels, 64, 64], "step": [0, 0, 4, 4]},
                "preprocessing": [{"name": name, "kwargs": given} for name, given in preprocessing],
            }
        ],
        "outputs": [
            {
                "name": "probabilities",
                "axes": "bcyx",
                "data_type": "float32",
                "shape": {"reference_tensor": "raw", "scale": [1, 1, 1, 1], "offset": [0, 0, 0, 0]},
                "halo": [0, 0, halo, halo],
                "postprocessing": [{"name": name, "kwargs": given} for name, given in postprocessing],
            }
        ],
        "test_inputs": ["test_input.npy"],
        "test_outputs": ["test_output.npy"],
        "weights": {"onnx": {"source": "weights.onnx", "opset_version": 12, "sha256": sha256}},
    }


def new_description(channels, preprocessing, postprocessing, halo, sha256):
    """Format 0.5."""
    side = [{"type": "space", "id": name, "size": {"min": 64, "step": 4}} for name in "yx"]
    cropped = [
        {"type": "space", "id": name, "halo": halo, "size": {"tensor_id": "raw", "axis_id": name}} for name in "yx"
    ]
    names = [f"channel{number}" for number in range(channels)]
    return {
        "format_version": "0.5.3",
        "type": "model",
        "name": "Nuclei",
        "inputs": [
            {
                "id": "raw",
                "axes": [{"type": "batch"}, {"type": "channel", "channel_names": names}, *side],
                "data": {"type": "float32"},
                "preprocessing": [{"id": name, "kwargs": given} for name, given in preprocessing],
                "test_tensor": {"source": "test_input.npy"},
            }
        ],
        "outputs": [
            {
                "id": "probabilities",
                "axes": [{"type": "batch"}, {"type": "channel", "channel_names": ["inside", "border"]}, *cropped],
                "postprocessing": [{"id": name, "kwargs": given} for name, given in postprocessing],
                "test_tensor": {"source": "test_output.npy"},
            }
        ],
        "weights": {"onnx": {"source": "weights.onnx", "opset_version": 12, "sha256": sha256}},
    }


DESCRIPTIONS = {"0.4": old_description, "0.5": new_description}


def make_package(  # noqa: PLR0913 - what packages differ in, by name
    folder,
    version="0.4",
    *,
    channels=1,
    image=None,
    wanted=None,
    preprocessing=(),
    postprocessing=(),
    halo=24,
    change=lambda table: table,
    **given,
):
    """Write a package: `wanted` is what its preprocessing makes of the test's `image`; `change` alters its table."""
    folder.mkdir(parents=True, exist_ok=True)
    file = write_unet(folder / "weights.onnx", channels, **given)
    image = (
        np.random.default_rng(1).integers(0, 4000, (channels, 96, 128)).astype(np.uint16) if image is None else image
    )
    answer = network(file, (image if wanted is None else wanted).astype(np.float32)[None])
    if ("sigmoid", {}) in postprocessing:
        answer = sigmoid(answer)
    np.save(folder / "test_input.npy", image[None].astype(np.float32))
    np.save(folder / "test_output.npy", answer.astype(np.float32))
    sha256 = hashlib.sha256(file.read_bytes()).hexdigest()
    table = change(DESCRIPTIONS[version](channels, preprocessing, postprocessing, halo, sha256))
    (folder / "rdf.yaml").write_text(yaml.safe_dump(table))
    return folder


def zipped(folder, place, around=""):
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, f"{around}{file.name}")
    return place
