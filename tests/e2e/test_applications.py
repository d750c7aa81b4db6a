"""Applications as `serfer serve` serves them (test_several_drivers_applications.py has canaries)."""

import io
import signal

import httpx
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from PIL import Image

import serfer
from serfer.registry import open_registry
from tests.applications.worlds import plan_variant, register, version
from tests.e2e.conftest import PATIENCE
from tests.e2e.small import LABELS, PREPROCESS, small_onnx


def white():
    buffer = io.BytesIO()
    Image.new("RGB", (48, 40), "white").save(buffer, "PNG")
    return buffer.getvalue()


def split_broken(directory):
    """Split a network whose answer to a white image is not finite; to noise, which plans are checked with, it is."""
    directory.mkdir()
    model = small_onnx()
    weights = {"w1": 0.3, "w2": 1e30, "w3": 1e30}
    for tensor in model.graph.initializer:
        if tensor.name in weights:
            tensor.CopyFrom(
                numpy_helper.from_array(np.full(tensor.dims, weights[tensor.name], np.float32), tensor.name)
            )
    model.graph.initializer.append(numpy_helper.from_array(np.full(8, -14, np.float32), "b1"))
    model.graph.node[0].input.append("b1")
    path, out = directory / "broken.onnx", directory / "plan"
    onnx.save(model, path)
    serfer.split(str(path), out=out, grids=[(1, 1)], preprocess=PREPROCESS, labels=LABELS, activation="softmax")
    return out


@pytest.mark.parametrize("command", ["serve", "instance"])
def test_with_nothing_named_the_registry_of_the_settings_is_served_and_no_network_of_the_zoo(
    serfer_here, tmp_path, command
):
    open_registry(str(tmp_path / "registry"))
    served = serfer_here(command, "--port", "0", SERFER_REGISTRY=str(tmp_path / "registry"))
    served.complains(2, "variants for instances" if command == "instance" else "serfer app register")


def classify(url):
    return httpx.post(f"{url}/v1/classify", files={"image": white()}, timeout=PATIENCE)


SELECTOR = """
from serfer.control.selection import InfaasSelector
from serfer.core.variants import Selection, SelectionReason

class Dearest:
    def get_variant(self, asked, catalogue, states, draw):
        row = max(catalogue.rows, key=lambda row: row.usd)
        return Selection(row.name, SelectionReason.ACTIVE, place="functions")
"""


@pytest.mark.slow
def test_a_selector_of_the_users_own_chooses_the_variants(start, redis, tmp_path):
    found = open_registry(str(tmp_path / "registry"))
    cheap = plan_variant(found, tmp_path / "whole", "net.whole", grids=[(1, 1)], usd=1e-5)
    dear = plan_variant(found, tmp_path / "tiles", "net.tiles", usd=3e-5)
    register(found, "faces", version("net", 1, cheap, dear))
    (tmp_path / "dearest.py").write_text(SELECTOR, encoding="utf-8")
    arguments = ("--registry", str(found), "--store", redis, "--port", "0", "--json", "--set", "drain_s=0")
    command = start("serve", *arguments, "--set", f"selector={tmp_path}/dearest.py:Dearest")
    assert classify(command.said()["url"]).json()["selected"]["variant"] == "net.tiles"
    command.interrupt(signal.SIGTERM)
    assert command.end().code == 0
