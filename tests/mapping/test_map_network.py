"""`serfer map --network`: a network's plan is made when it is first mapped with, and found afterwards."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnx
import pytest

import serfer as package
from serfer.core.errors import ModelError, UsageError
from serfer.mapping.map_network import MapNetwork, kept_map_plan
from serfer.module_digest import module_digest
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from tests.mapping.plans import PREPROCESS, assert_equal, expected, network
from tests.raster.files import pixels, write, write_scans
from tests.support.onnx_graph import Graph

WINDOW = 64
PIXELS = """
mean = [0.5, 0.4, 0.3]
std = [0.2, 0.3, 0.25]
"""


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def settings(cache, monkeypatch):
    monkeypatch.setenv("SERFER_CACHE_DIR", str(cache))
    return Settings(cache_dir=cache)


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    path = tmp_path_factory.mktemp("networks") / "dense.onnx"
    path.write_bytes(network())
    return path


@pytest.fixture(scope="module")
def aligned(tmp_path_factory):
    """A network whose weights depend on where in the image they are, so that it has no plan for any size."""
    graph = Graph()
    values = graph.op("Conv", "image", graph.normal(2, 3, 3, 3), pads=[1] * 4)
    how = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    graph.op("Resize", values, "", graph.constant(np.array([1, 1, 2, 2], np.float32)), output="map", **how)
    return graph.save(tmp_path_factory.mktemp("networks") / "aligned.onnx", {"map": 2})


@pytest.fixture
def described(tmp_path):
    """How pixels become the input of the network, and the side of its windows."""
    (tmp_path / "pixels.toml").write_text(PIXELS)
    return ("--preprocess", tmp_path / "pixels.toml", "--set", f"window={WINDOW}", "--workers", "inprocess")


@pytest.fixture
def said():
    return []


@pytest.fixture
def kept(settings, said):
    """The plan of a network for an image, and whether it was made now."""

    def find(model, sizes=((150, 170),), **options):
        del said[:]
        found = kept_map_plan(MapNetwork(model, **{"window": WINDOW, **options}), lambda: sizes, settings, said.append)
        return found, any(step.startswith("planning") for step in said)

    return find


def test_a_network_is_planned_once_for_images_of_any_size(serfer, settings, dense, described, tmp_path):
    values = pixels(150, 170)
    image, out = write(tmp_path / "image.tif", values), tmp_path / "result.npy"
    command = ("map", image, "--network", dense, "--out", out, *described)
    done = serfer(*command, "--json").ends(0)
    assert_equal(np.load(out), expected(values))
    assert f"planning {dense} for images of any size, once" in done.err
    assert f"the plan of {dense} is kept in {settings.cache_dir}/plans/dense-" in done.err
    assert "for images of any size, heights and widths of" in done.err
    other = pixels(201, 133)
    done = serfer(
        "map", write(tmp_path / "other.tif", other), "--network", dense, "--out", out, *described[:-2], "--overwrite"
    ).ends(0)
    assert_equal(np.load(out), expected(other))
    assert "planning" not in done.err


def test_the_python_functions_take_a_network(settings, dense, tmp_path):
    mapped_by = MapNetwork(str(dense), window=WINDOW, preprocess=PREPROCESS)
    values = pixels(150, 170)
    image, out = write(tmp_path / "image.tif", values), tmp_path / "result.npy"
    report = package.map(image, network=mapped_by, out=out, settings=settings)
    assert_equal(np.load(out), expected(values))
    again = package.map_many([image], network=mapped_by, out=tmp_path / "results", suffix=".npy", settings=settings)
    assert [each.plan for each in again.done] == [report.plan]
    with pytest.raises(UsageError, match="say where the result is to be"):
        package.map(image, network=mapped_by, settings=settings)


def test_a_changed_file_or_option_is_planned_again(kept, dense, tmp_path):
    first, _ = kept(dense, window=128)
    assert kept(dense, window=128) == (first, False)
    copy = tmp_path / dense.name
    copy.write_bytes(dense.read_bytes())
    assert kept(copy, window=128) == (first, False)
    for options in ({"reduce": "argmax"}, {"labels": ("sea", "land")}, {"kept_maps": "never"}):
        changed, made = kept(dense, window=128, **options)
        assert made
        assert changed.directory != first.directory
    model = onnx.load(copy)
    model.graph.initializer[0].raw_data = bytes(len(model.graph.initializer[0].raw_data))
    onnx.save(model, copy)
    assert kept(copy, window=128)[1]


@pytest.mark.usefixtures("settings")
def test_a_network_that_is_not_for_any_size_is_planned_for_the_sizes_of_a_folder(serfer, aligned, described, tmp_path):
    scans = write_scans(tmp_path / "scans", {"0": (90, 100), "1": (91, 100)})
    (scans / "no.tif").write_bytes(b"no image")
    command = ("map", scans, "--network", aligned, "--out", tmp_path / "results", *described)
    serfer(*command).ends(1, "for images of 90 or 91 x 100 pixels and not for any size: ")
    assert sorted(path.name for path in (tmp_path / "results").iterdir()) == [
        "0.tif", "1.tif", "manifest.jsonl", "retry.txt",
    ]  # fmt: skip
    again = serfer(*command)
    assert "planning" not in again.err
    assert "0 images mapped" in again.out


def test_an_image_that_is_too_small_for_the_rules_has_a_plan_of_its_own_size(kept, dense):
    small, _ = kept(dense, sizes=[(20, 30)])
    assert "that plan takes heights and widths of" in small.refused
    assert load_plan(small.directory).windows.first.rows.size == 20
    assert kept(dense, sizes=[(20, 30), (150, 170)])[0].refused == ""


def test_more_sizes_than_a_plan_is_made_for_are_refused(kept, aligned):
    with pytest.raises(UsageError, match=r"more than 16 sizes, and the network has no plan for images of any size"):
        kept(aligned, sizes=[(90 + number, 100) for number in range(17)])


def test_of_several_at_once_one_makes_the_plan(settings, dense):
    steps = []
    described = MapNetwork(dense, window=192)
    with ThreadPoolExecutor(3) as threads:
        found = [*threads.map(lambda _: kept_map_plan(described, lambda: (), settings, steps.append), range(3))]
    assert len({one.directory for one in found}) == 1
    assert sum(step.startswith("planning") for step in steps) == 1


@pytest.mark.killed
def test_an_interrupted_plan_leaves_nothing(tmp_path, dense, monkeypatch):
    def interrupted(_model, _sizes, out, **_options):
        (out / "plan.json").write_text("{")
        raise KeyboardInterrupt

    settings = Settings(cache_dir=tmp_path / "cache")
    described = MapNetwork(dense, window=128)
    monkeypatch.setattr("serfer.splitter.map_plan.map_plan", interrupted)
    with pytest.raises(KeyboardInterrupt):
        kept_map_plan(described, lambda: (), settings, lambda _: None)
    assert [path for path in (settings.cache_dir / "plans").iterdir() if path.suffix != ".lock"] == []
    monkeypatch.undo()
    assert load_plan(kept_map_plan(described, lambda: (), settings, lambda _: None).directory).windows


def test_a_module_is_known_by_its_weights_settings_and_code():
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3), torch.nn.Upsample(scale_factor=2)).eval()
    digests = [module_digest(module)]
    assert module_digest(module) == digests[0]
    module[1].scale_factor = 3
    digests.append(module_digest(module))
    module[0].weight.data[0, 0, 0, 0] += 1
    digests.append(module_digest(module))
    module[1] = torch.nn.Identity()
    digests.append(module_digest(module))
    assert len({*digests}) == len(digests)
    with pytest.raises(ModelError, match=r"list is not a torch\.nn\.Module"):
        module_digest([])
