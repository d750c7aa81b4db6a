"""A plan that takes images of many sizes, over HTTP: the protocol's open sizes, and pictures at their own size."""

import base64
import io

import httpx
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from PIL import Image
from tritonclient.http import InferenceServerClient

import serfer
from serfer.api.http.body import ApiLimits
from serfer.api.routes.inference import signature_of
from serfer.plan_directory import load_plan
from serfer.splitter.profiling import part_costs
from serfer.splitter.whole import whole_plan
from tests.splitter.models import Net
from tests.support.served import png, served
from tests.support.tensors import triton_input

CROPPED = serfer.Preprocess(None, "bilinear", "RGB", 1 / 255, (0.0,) * 3, (1.0,) * 3)
SIZES = "8..40x8..64,multiple=8,pixels=1024"


def mask():
    """A convolution, and a map of one channel at the size of the image."""
    net = Net(3, "H", "W")
    x = net.op("Sigmoid", net.conv("x", 3, 1, [3, 3], pads=[1, 1, 1, 1]))
    return net.model(x, dims=("N", 1, "H", "W"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    home = tmp_path_factory.mktemp("many")
    onnx.save(mask(), home / "net.onnx")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(part_costs, "measured", lambda *_: (0.001, 1 << 20))
        whole_plan(home / "net.onnx", out=home / "plan", sizes=SIZES, preprocess=CROPPED)
    return home / "plan"


@pytest.fixture(scope="module")
def url(directory):
    with served({"net": directory}) as url:
        yield url


def asked(url, array, name="x", *, binary=True):
    with InferenceServerClient(url.removeprefix("http://")) as client:
        answer = client.infer("net", triton_input(array, name, binary=binary))
        return answer.as_numpy(answer.get_response()["outputs"][0]["name"])


def noise(count, rows, columns):
    return np.random.default_rng(rows + columns).random((count, 3, rows, columns), dtype=np.float32)


def test_metadata_leave_sizes_open(url):
    document = httpx.get(f"{url}/v2/models/net").json()
    assert {tensor["name"]: tensor["shape"] for tensor in document["inputs"]} == {
        "x": [-1, 3, -1, -1],
        "image": [-1, -1, -1, 3],
    }
    assert document["outputs"][0]["shape"] == [-1, 1, -1, -1]


@pytest.mark.parametrize("size", [(8, 64), (40, 24), (32, 32)])
@pytest.mark.parametrize("binary", [True, False])
def test_tensors_of_any_of_the_sizes_are_answered(url, directory, size, binary):
    batch = noise(2, *size)
    [expected] = ort.InferenceSession(directory.parent / "net.onnx").run(None, {"x": batch})
    answer = asked(url, batch, binary=binary)
    assert answer.shape == (2, 1, *size)
    np.testing.assert_allclose(answer, expected, rtol=1e-5, atol=1e-6)


def test_pixels_have_their_own_size_too(url):
    assert asked(url, np.zeros((1, 16, 24, 3), np.uint8), "image").shape == (1, 1, 16, 24)


@pytest.mark.parametrize("shape", [(1, 3, 8, 12), (1, 3, 40, 64), (1, 4, 8, 8), (0, 3, 8, 8)])
def test_other_shapes_are_refused_by_name(url, shape):
    document = {"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, "data": []}]}
    answer = httpx.post(f"{url}/v2/models/net/infer", json=document)
    assert answer.status_code == 400
    assert "8 to 40 (multiples of 8) rows" in answer.text or "images" in answer.text


def test_the_bounds_hold_for_every_size(directory):
    plan = load_plan(directory)
    [tensor, pixels] = signature_of(plan, ApiLimits()).takes
    sizes = [
        (rows, columns)
        for rows in range(8, 41, 8)
        for columns in range(8, 65, 8)
        if (rows, columns) in plan.sizes.input
    ]
    assert max(3 * rows * columns for rows, columns in sizes) <= tensor.elements
    assert max(1 + 3 + 3 * rows for rows, _ in sizes) <= tensor.lists
    assert max(1 + rows + rows * columns for rows, columns in sizes) <= pixels.lists


@pytest.mark.slow  # starts decoders
def test_pictures_are_answered_at_their_own_size_and_a_request_has_one(url):
    def predicted(*pictures):
        files = [("image", (f"{number}.png", data)) for number, data in enumerate(pictures)]
        return httpx.post(f"{url}/v1/predict", files=files, timeout=30)

    answer = predicted(png(24, 17), png(25, 16))
    assert answer.status_code == 200, answer.text
    for image in answer.json()["images"]:
        with Image.open(io.BytesIO(base64.b64decode(image["outputs"][0]["png"]))) as drawn:
            assert drawn.size == (24, 16)
    refused = predicted(png(24, 16), png(64, 8))
    assert refused.status_code in (400, 422)
    assert "1.png is an input of 8 x 64 pixels, the first image one of 16 x 24" in refused.json()["detail"]
    assert predicted(png(64, 8)).status_code == 200
