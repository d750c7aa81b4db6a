"""Model packages of bioimage.io: their maps, and what `verify` says of their tests and halos."""

import json
import re
import shutil
import zipfile

import numpy as np
import onnx
import pytest
import yaml

import serfer as package
from serfer.core.errors import ModelError, PlanWarning
from serfer.plan_directory import load_plan
from serfer.splitter.network.bioimageio import package_files
from serfer.splitter.windows import window_sessions
from tests.mapping.packages import make_package, network, sigmoid, write_unet, zipped
from tests.mapping.whole import assert_equal, read
from tests.raster.files import write

pytestmark = pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")

TEST = np.random.default_rng(1).integers(0, 4000, (1, 96, 128)).astype(np.uint16)
NEEDED = 11
"""The halo that the test network needs, by hand: see the test that counts it on tiles."""


def by_percentiles(image):
    low, high = np.percentile(image.astype(np.float64), (1, 99.8))
    return (image - low) / (high - low + 1e-6)


OLD = ("scale_range", {"mode": "per_sample", "axes": "xy", "min_percentile": 1, "max_percentile": 99.8, "eps": "1e-6"})
NEW = ("scale_range", {"axes": ["channel", "y", "x"], "min_percentile": 1, "max_percentile": 99.8})


def nuclei(folder, version="0.4", **given):
    step = OLD if version == "0.4" else NEW
    given = {"image": TEST, "wanted": by_percentiles(TEST), "preprocessing": [step], **given}
    return make_package(folder, version, postprocessing=[("sigmoid", {})], **given)


@pytest.mark.parametrize(("version", "form"), [("0.4", "zip"), ("0.5", "folder"), ("0.5", "zip of a folder")])
def test_a_package_brings_channels_normalisation_and_sigmoid(serfer, tmp_path, version, form):
    folder = nuclei(tmp_path / "nuclei", version)
    place = folder if form == "folder" else zipped(folder, tmp_path / "nuclei.zip", "n/" * (form != "zip"))
    made = serfer("map-plan", place, "--size", "120x144", "--window", 64, "--out", tmp_path / "plan")
    assert made.code == 0, made.err
    assert made.err == ""
    assert load_plan(tmp_path / "plan").model == "nuclei"
    pixels = np.random.default_rng(2).integers(100, 9000, (1, 120, 144)).astype(np.uint16)
    image = write(tmp_path / "image.tif", pixels)
    shutil.copy(folder / "weights.onnx", tmp_path / "kept.onnx")
    shutil.rmtree(folder)  # a plan needs no package
    done = serfer("map", image, "--plan", tmp_path / "plan", "--out", tmp_path / "out.tif", "--workers", "inprocess")
    assert done.code == 0, done.err
    values = by_percentiles(pixels).astype(np.float32)[None]
    assert_equal(read(tmp_path / "out.tif"), sigmoid(network(tmp_path / "kept.onnx", values))[0])


@pytest.mark.parametrize(
    ("version", "steps", "formula"),
    [
        ("0.4", [("scale_linear", {"gain": 0.5, "offset": 3, "axes": "xy"})], lambda x: x / 2 + 3),
        ("0.5", [("scale_linear", {"gain": [-1, -2], "offset": 7, "axis": "channel"})], "by channel"),
        ("0.4", [("zero_mean_unit_variance", {"mean": [900, 90], "std": [7, 8], "axes": "xy"})], "mean and std"),
        ("0.5", [("fixed_zero_mean_unit_variance", {"mean": 900, "std": 7})], lambda x: (x - 900) / 7),
        (
            "0.5",
            [("ensure_dtype", {"dtype": "float32"}), ("zero_mean_unit_variance", {"axes": ["y", "x", "channel"]})],
            lambda x: (x - x.mean()) / (x.std() + 1e-6),
        ),
        (
            "0.4",
            [OLD, ("clip", {"min": 0, "max": 1}), ("scale_linear", {"gain": 2, "offset": -1, "axes": "xy"})],
            lambda x: 2 * np.clip([by_percentiles(band) for band in x], 0, 1) - 1,
        ),
    ],
)
def test_steps_of_preprocessing_are_those_of_the_format(tmp_path, version, steps, formula):
    image = np.random.default_rng(3).integers(0, 1000, (2, 64, 80)).astype(np.float64)
    column = lambda *values: np.array(values, float)[:, None, None]  # noqa: E731 - short
    known = {
        "by channel": lambda x: x * column(-1, -2) + 7,
        "mean and std": lambda x: (x - column(900, 90)) / (column(7, 8) + 1e-6),
    }
    wanted = known.get(formula, formula)(image)
    folder = make_package(tmp_path / "net", version, channels=2, image=image, wanted=wanted, preprocessing=steps)
    package.map_plan(
        folder, [(64, 80)], tmp_path / "plan"
    )  # a wrong answer to the test would be a warning, an error here


def test_a_network_that_does_not_answer_its_own_test_is_a_warning_and_fails_verification(serfer, tmp_path):
    folder = nuclei(tmp_path / "nuclei")
    np.save(folder / "test_output.npy", np.load(folder / "test_output.npy") + np.float32(0.01))
    with pytest.warns(PlanWarning, match="in 'probabilities' is NOT the published one"):
        package.map_plan(folder, [(64, 80)], tmp_path / "plan")
    done = serfer("verify", folder)
    assert done.code == 1
    assert "100.00% of values by more than the format allows" in done.out
    assert "does not answer the package's test as it is published" in done.err


def test_the_halo_that_is_needed_is_that_of_tiles_by_count(serfer, tmp_path):
    """Tiles that begin at multiples of 4 are the whole image's if cut by the halo, and not by one pixel less."""
    file = write_unet(tmp_path / "net.onnx")
    image = np.random.default_rng(4).standard_normal((1, 1, 160, 160)).astype(np.float32)
    whole = network(file, image)[0]

    def apart(halo):
        found = 0.0
        for start in range(32, 64, 4):
            tile = network(file, image[:, :, start : start + 64, start : start + 64])[0]
            kept, inside = slice(halo, 64 - halo), slice(start + halo, start + 64 - halo)
            found = max(found, np.abs(tile[:, kept, kept] - whole[:, inside, inside]).max())
        return found / np.ptp(whole)

    assert apart(NEEDED) < 1e-5 < apart(NEEDED - 1)
    for halo, enough in ((NEEDED, True), (NEEDED - 1, False)):
        done = serfer("verify", nuclei(tmp_path / "nuclei", "0.5", halo=halo), "--json")
        assert done.code == 0, done.err
        [found] = json.loads(done.out)["halos"]
        assert (found["published"], found["needed"], found["enough"]) == ([halo] * 2, [NEEDED] * 2, enough)


def test_verify_says_in_words_that_a_halo_is_too_small_or_that_none_is_enough(serfer, tmp_path):
    small = serfer("verify", zipped(nuclei(tmp_path / "nuclei", halo=4), tmp_path / "nuclei.zip"))
    assert small.code == 0, small.err
    assert "publishes a halo of 4 for 'probabilities', and 11 are needed: its network reads 13 pixels" in small.out
    assert "Tools that cut images into tiles with it have seams" in small.out
    whole = serfer("verify", nuclei(tmp_path / "norm", norm=True))
    assert whole.code == 0, whole.err
    assert "no halo is enough: it takes statistics of the whole image" in whole.out


def test_weights_in_a_file_of_their_own_are_unpacked_beside_the_network(serfer, tmp_path):
    folder = nuclei(tmp_path / "nuclei", external=True)
    assert (folder / "weights.onnx.data").exists()
    assert serfer("verify", zipped(folder, tmp_path / "nuclei.zip")).code == 0


@pytest.mark.parametrize("external", [False, True])
def test_an_export_of_one_size_is_taken_for_others(serfer, tmp_path, external):
    folder = nuclei(tmp_path / "nuclei", fixed=TEST.shape[1:], external=external)
    done = serfer("verify", folder, "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [each["needed"] for each in found["halos"]] == [[NEEDED] * 2]
    assert found["windows"] < 1e-5
    package.map_plan(folder, [(120, 144)], tmp_path / "plan")
    assert sorted(path.name for path in folder.iterdir()) == sorted(
        ["rdf.yaml", "test_input.npy", "test_output.npy", "weights.onnx", *["weights.onnx.data"] * external]
    )


def test_each_output_has_its_own_test_and_halo(serfer, tmp_path):
    folder = nuclei(tmp_path / "two", "0.5", halo=12)
    model = onnx.load(folder / "weights.onnx")
    weight = onnx.numpy_helper.from_array(np.ones((1, 2, 1, 1), np.float32), "last")
    model.graph.initializer.append(weight)
    model.graph.node.append(onnx.helper.make_node("Conv", [model.graph.output[0].name, "last"], ["dist"]))
    model.graph.output.append(onnx.helper.make_tensor_value_info("dist", 1, ["b", 1, "y", "x"]))
    onnx.save(model, folder / "weights.onnx")
    table = yaml.safe_load((folder / "rdf.yaml").read_text())
    del table["weights"]["onnx"]["sha256"]
    other = json.loads(json.dumps(table["outputs"][0]))
    other.update(id="distances", postprocessing=[], test_tensor={"source": "distances.npy"})
    other["axes"][3]["halo"] = 4
    table["outputs"].append(other)
    (folder / "rdf.yaml").write_text(yaml.safe_dump(table))
    scores = network(folder / "weights.onnx", by_percentiles(TEST).astype(np.float32)[None])
    np.save(folder / "distances.npy", scores.sum(1, keepdims=True))
    done = serfer("verify", folder)
    assert done.code == 0, done.err
    assert "publishes a halo of 12 for 'probabilities', which is enough" in done.out
    assert "publishes a halo of 12 (rows) and 4 (columns) for 'distances', and 11 are needed" in done.out
    plan = package.map_plan(folder, [(64, 80)], tmp_path / "plan")
    assert len(plan.outputs) == 2


def test_windows_that_find_no_memory_are_named_by_their_size(serfer, tmp_path, monkeypatch):
    def run(*_):
        raise RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : std::bad_alloc")

    monkeypatch.setattr(window_sessions._Session, "run", run)
    done = serfer("verify", nuclei(tmp_path / "nuclei"))
    assert done.code == 0, done.err
    said = r"windows of it cannot be made: a window of \d+ x \d+ pixels does not run in ONNX Runtime: std::bad_alloc\n"
    assert re.search(said, done.out)


def described(**changed):
    """Return what changes keys of a description: those of its first input by `input`, of its output by `output`."""

    def change(table):
        for key, entry in (
            ("input", table["inputs"][0]),
            ("output", table["outputs"][0]),
            ("weights", table["weights"]),
        ):
            entry.update(changed.get(key, {}))
        table.update(changed.get("table", {}))
        return table

    return change


BINARY = [{"name": "binarize", "kwargs": {"threshold": 0.5}}]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (described(input={"axes": "bczyx"}), "has the axis 'z': maps are of images .* not of volumes"),
        (described(input={"axes": "byxc"}), "has the axes 'byxc', and a map needs 'bcyx'"),
        (described(input={"shape": [1]}), "does not say how many channels its input 'raw' has"),
        (described(output={"halo": [0, 0, -4, 4]}), "the halo of probabilities is -4"),
        (described(output={"postprocessing": BINARY}), "'binarize', which a map does not do: --reduce none, sigmoid"),
        (described(input={"preprocessing": BINARY}), "'binarize', which a plan's preprocessing does not do"),
        (described(input={"preprocessing": [{"name": "scale_range", "kwargs": {"axes": "x"}}]}), "other axes"),
        (described(input={"preprocessing": [{"name": "scale_linear", "kwargs": {"gain": 0}}]}), "or by 0"),
        (described(input={"preprocessing": [{"name": "scale_linear", "kwargs": {"gain": "a"}}]}), "gain is 'a'"),
        (described(input={"preprocessing": [{"name": "scale_linear", "kwargs": {"gain": 10**400}}]}), "not a number"),
        (
            described(input={"preprocessing": [{"name": "scale_range", "kwargs": {"axes": [["y"]]}}]}),
            "the axis \\['y'\\]",
        ),
        (described(table={"inputs": []}), "inputs are not a list"),
        (described(table={"format_version": "0.3.6"}), "has the format '0.3.6': formats 0.4 and 0.5 are read"),
        (described(table={"type": "dataset"}), "does not describe a model"),
        (described(table={"weights": {"pytorch_state_dict": {}}}), "no ONNX weights, but pytorch_state_dict"),
        (described(weights={"onnx": {"source": "https://x.test/weights.onnx"}}), "elsewhere: give the package as"),
        (described(weights={"onnx": {"source": "../weights.onnx"}}), "is not the name of a file in the package"),
        (described(weights={"onnx": {"source": "/etc/passwd"}}), "is not the name of a file in the package"),
        (described(weights={"onnx": {"source": "none.onnx"}}), "has no file none.onnx, which its rdf.yaml names"),
        (described(weights={"onnx": {"source": "rdf.yaml"}}), "rdf.yaml is not an ONNX model"),
        (described(weights={"onnx": {"source": "weights.onnx", "sha256": "0" * 64}}), "has the SHA-256 of: download"),
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_what_a_map_does_not_do_and_what_is_wrong_is_refused_by_its_name(tmp_path, change, why, packed):
    place = make_package(tmp_path / "net", change=change)
    if packed:
        place = zipped(place, tmp_path / "net.zip")
    with pytest.raises(ModelError, match=why):
        package.map_plan(place, [(64, 80)], tmp_path / "plan")
    assert not (tmp_path / "plan").exists()


def test_what_a_package_makes_of_its_map_can_be_left_out(tmp_path):
    place = make_package(tmp_path / "net", change=described(output={"postprocessing": BINARY}))
    plan = package.map_plan(place, [(64, 80)], tmp_path / "plan", reduce="none")
    assert plan.outputs[0].dtype == "float32"


def test_files_of_a_package_are_bounded_by_what_they_hold(tmp_path, monkeypatch):
    place = zipped(make_package(tmp_path / "net"), tmp_path / "net.zip")
    for name in ("_MOST_DESCRIPTION_BYTES", "_MOST_ONNX_BYTES", "_MOST_TEST_BYTES"):
        with monkeypatch.context() as patched:
            patched.setattr(f"serfer.splitter.network.bioimageio.package.{name}", 100)
            with pytest.raises(ModelError, match="has more than 100 bytes"):
                package.map_plan(place, [(64, 80)], tmp_path / "plan")
    monkeypatch.setattr(package_files, "_MOST_FILES", 3)
    with pytest.raises(ModelError, match="has more than 3 files"):
        package.map_plan(place, [(64, 80)], tmp_path / "plan")


def test_links_of_a_package_lead_nowhere(tmp_path):
    folder = make_package(tmp_path / "net")
    outside = shutil.move(folder / "test_input.npy", tmp_path / "outside.npy")
    (folder / "test_input.npy").symlink_to(outside)
    with pytest.raises(ModelError, match=r"test_input.npy is a link that leads out of the package"):
        package.map_plan(folder, [(64, 80)], tmp_path / "plan")
    link = zipfile.ZipInfo("weights.onnx")
    link.external_attr = 0o120777 << 16
    with zipfile.ZipFile(tmp_path / "net.zip", "w") as archive:
        archive.writestr(link, "/etc/passwd")
        archive.write(folder / "rdf.yaml", "rdf.yaml")
    with pytest.raises(ModelError, match="is encrypted, a link or a directory"):
        package.map_plan(tmp_path / "net.zip", [(64, 80)], tmp_path / "plan")


def test_nothing_of_a_package_is_executed_or_multiplied(tmp_path):
    folder = make_package(tmp_path / "net")
    np.save(folder / "test_input.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(ModelError, match="is not an array of numpy"):
        package.map_plan(folder, [(64, 80)], tmp_path / "plan")
    doubled = "".join(f"a{line + 1}: &a{line + 1} {{<<: [*a{line}, *a{line}]}}\n" for line in range(60))
    for text in ("!!python/object/apply:os.system ['true']", f"a0: &a0 {{x: 1}}\n{doubled}"):
        (folder / "rdf.yaml").write_text(text)
        with pytest.raises(ModelError, match="is not YAML"):
            package.map_plan(folder, [(64, 80)], tmp_path / "plan")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut off", b"[" * 10_000])
def test_what_is_no_package_is_said_to_be_none(tmp_path, content):
    (tmp_path / "net.zip").write_bytes(content)
    with pytest.raises(ModelError, match="cannot be read as a zip"):
        package.map_plan(tmp_path / "net.zip", [(64, 80)], tmp_path / "plan")
    (tmp_path / "rdf.yaml").write_bytes(content)
    with pytest.raises(ModelError, match=r"YAML|does not describe a model"):
        package.map_plan(tmp_path / "rdf.yaml", [(64, 80)], tmp_path / "plan")


def test_a_zip_without_a_description_is_named(tmp_path):
    (tmp_path / "net").mkdir()
    write_unet(tmp_path / "net" / "net.onnx")
    with pytest.raises(ModelError, match=r"has no bioimageio.yaml or rdf.yaml: it is not a model package"):
        package.map_plan(zipped(tmp_path / "net", tmp_path / "net.zip"), [(64, 80)], tmp_path / "plan")


def test_verify_takes_no_images_for_a_package_and_needs_its_test(serfer, tmp_path):
    folder = make_package(tmp_path / "net")
    refused = serfer("verify", folder, "--random", 3)
    assert refused.code == 2
    assert "a package is compared with its own test" in refused.err
    table = yaml.safe_load((folder / "rdf.yaml").read_text())
    del table["test_inputs"]
    (folder / "rdf.yaml").write_text(yaml.safe_dump(table))
    lacking = serfer("verify", folder)
    assert lacking.code == 3
    assert "has no test input" in lacking.err


def test_a_package_maps_images_without_a_plan_of_the_users(serfer, tmp_path, monkeypatch):
    monkeypatch.setenv("SERFER_CACHE_DIR", str(tmp_path / "cache"))
    folder = make_package(tmp_path / "net", change=described(output={"postprocessing": BINARY}))
    pixels = np.random.default_rng(2).integers(0, 4000, (1, 160, 152)).astype(np.uint16)
    command = ("map", write(tmp_path / "image.tif", pixels), "--network", folder, "--workers", "inprocess")
    command += ("--reduce", "none", "--overwrite", "--out", tmp_path / "out.tif")
    first = serfer(*command)
    assert first.code == 0, first.err
    assert_equal(read(tmp_path / "out.tif"), network(folder / "weights.onnx", pixels.astype(np.float32)[None])[0])
    again = serfer(*command)
    assert again.code == 0, again.err
    assert "planning" in first.err
    assert "planning" not in again.err
