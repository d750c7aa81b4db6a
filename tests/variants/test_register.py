"""What register refuses and leaves behind, what it decides by figures, and where its parts come from."""

import copy
import json
import shutil
from dataclasses import replace

import numpy as np
import onnx
import pytest
from PIL import Image

import serfer
from serfer.cli.main import app
from serfer.cli.shared.terminal import _exit_code, _Interrupt
from serfer.core.errors import ImageError, InputError, ModelError, PlanError, UsageError
from serfer.core.exactness import relative_error
from serfer.core.variants import Accuracy, Place
from serfer.images import Recipe
from serfer.instance.network import Hardware, open_network
from serfer.pipeline.labelled.labels import read_labelled
from serfer.plan_directory import check_artefacts, load_plan
from serfer.splitter.network.description import read_labels, read_preprocess
from serfer.splitter.profiling import part_costs
from serfer.variants import making
from serfer.variants import register as registering
from serfer.variants.child import BatchFigures, InstanceFigures
from serfer.variants.images import ImageFiles, calibration_images, write_images
from serfer.variants.instances import InstanceMeasurement, InstanceType, busy, instance_type, instance_variants, why_not
from serfer.variants.plans import network_digest
from serfer.variants.quantising import with_quantised
from serfer.variants.register_options import RegisterOptions
from tests.e2e.detector import CLASSES as DETECTED
from tests.e2e.detector import SIZE as DETECTOR_SIZE
from tests.e2e.detector import detector_onnx, suppressed_onnx
from tests.e2e.small import PREPROCESS
from tests.variants.digits import CLASSES, LABELS, as_input, digits, recurrent, trained, write_onnx


@pytest.fixture
def register(files, settings, tmp_path):
    def run(network=files.networks["small"], app="digits", **more):
        given = {
            "validation": files.validation,
            "registry": str(tmp_path / "registry"),
            "preprocess": read_preprocess(files.preprocess),
            "labels": read_labels(files.labels),
            "activation": "softmax",
            "settings": settings,
        }
        return serfer.register(network, app, **(given | more))

    return run


@pytest.fixture
def validation(files, tmp_path):
    return shutil.copytree(files.validation, tmp_path / "validation")


@pytest.fixture(scope="module")
def plan(files, tmp_path_factory):
    directory = tmp_path_factory.mktemp("plan") / "plan"
    described = {"preprocess": read_preprocess(files.preprocess), "labels": LABELS, "activation": "softmax"}
    serfer.split(files.networks["medium"], out=directory, precision="fp32", grids=[(1, 1)], stages=1, **described)
    return directory


def figures(times, correct=90, device="cpu"):
    batches = {str(size): BatchFigures(ms, ms, ms, 80.0) for size, ms in times.items()}
    return InstanceFigures(device, 100.0, Accuracy(correct, 100), batches)


@pytest.fixture
def measured(monkeypatch):
    """Have figures of instances without a process that measures them, for what does not depend on them."""
    monkeypatch.setattr(making, "measure_instance", lambda _: figures({1: 1.0}))


def test_what_cannot_be_registered_leaves_no_registry(register, validation, tmp_path):
    (validation / "seven").rename(validation / "sieben")
    with pytest.raises(InputError, match="'sieben': it knows 'zero', 'one', 'two' and 7 more"):
        register(validation=validation)
    with pytest.raises(InputError, match="nowhere does not exist"):  # before the network is read
        register("no network at all", validation=tmp_path / "nowhere", name="none")
    with pytest.raises(InputError, match=r"no\.onnx"):
        register("no.onnx")
    assert not (tmp_path / "registry").exists()


@pytest.mark.usefixtures("measured")
def test_another_version_of_a_network_or_of_its_images_waits_to_be_promoted(register, kept, tmp_path):
    other = copy.deepcopy(trained("small"))
    other[-1].bias.data += 0.01
    write_onnx(other, tmp_path / "other.onnx")
    first = register(most=2)
    assert (first.version.version, first.live) == (1, True)
    with pytest.raises(InputError, match=r"small names its classes in another way, application digits has 10"):
        register(labels=tuple(reversed(LABELS)))
    second = register(tmp_path / "other.onnx", name="small", most=2)
    assert (second.version.version, second.live) == (2, False)
    assert kept().known("digits").live_release.networks == {"small": 1}
    assumed = register(name="small", most=1, preprocess=None)
    assert (assumed.version.version, assumed.made) == (3, True)
    assert assumed.version.remarks[0].startswith("assumed: images of small are stretched to 32 x 32 pixels, grey")
    assert not any("assumed" in remark for remark in second.version.remarks)


@pytest.mark.parametrize("output", ["boxes", pytest.param("none", marks=pytest.mark.slow)])
def test_a_network_that_does_not_classify_is_registered_without_images(output, settings, kept, tmp_path, monkeypatch):
    monkeypatch.setattr(part_costs, "measured", lambda *_: (0.001, 1 << 20))
    model = detector_onnx() if output == "boxes" else suppressed_onnx(gathered=True)  # sized by the image
    onnx.save(model, tmp_path / "net.onnx")
    described = {"activation": output, "labels": DETECTED if output == "boxes" else (), "preprocess": PREPROCESS}
    place = {"registry": str(tmp_path / "registry"), "settings": settings}
    registered = serfer.register(tmp_path / "net.onnx", "found", most=2, **place, **described)
    version = registered.version
    assert {(variant.place, variant.precision, variant.accuracy) for variant in version.variants} == {
        (Place.FUNCTIONS, "fp32", None)
    }
    assert any(remark.startswith("accuracy is not known") for remark in version.remarks)
    assert kept().known("found").classes == (len(DETECTED) if output == "boxes" else 1)
    assert not serfer.register(tmp_path / "net.onnx", "found", most=2, **place, **described).made
    given = serfer.split(tmp_path / "net.onnx", out=tmp_path / "given", grids="1", **described)
    image = np.random.default_rng(0).integers(0, 256, (1, DETECTOR_SIZE, DETECTOR_SIZE, 3), dtype=np.uint8)
    directory = kept().directory(version.variants[0].artefact, tmp_path / "fetched")
    plan = load_plan(directory)
    assert (plan.detection, plan.labels, plan.output_tensors) == (given.detection, given.labels, given.output_tensors)
    answers = []
    for place_of_plan in (directory, tmp_path / "given"):
        with serfer.open(place_of_plan, workers="inprocess") as pipeline:
            answers.append(pipeline.run(image))
    assert relative_error(*answers) < 1e-5
    with pytest.raises(PlanError, match=r"does not classify whole images: .*; register it without them"):
        serfer.register(tmp_path / "net.onnx", "other", _folder(tmp_path), **place, **described)


def _folder(place):
    (place / "labelled" / "0").mkdir(parents=True)
    Image.new("RGB", (8, 8)).save(place / "labelled" / "0" / "black.png")
    return place / "labelled"


@pytest.mark.usefixtures("measured")
def test_a_plan_directory_is_the_network_that_it_was_made_from(register, files, plan):
    given = register(plan, name="medium", most=2, preprocess=None, labels=(), activation=None)
    again = register(files.networks["medium"], most=2)
    assert given.version.source == again.version.source
    assert given.version.version == again.version.version
    assert not again.made


@pytest.mark.slow
def test_a_network_that_cannot_be_split_is_registered_and_the_version_says_so(register, tmp_path):
    onnx.save(recurrent(), tmp_path / "rows.onnx")
    made = register(tmp_path / "rows.onnx", most=2, max_loss=1.0).version
    assert "what cannot be split of the network runs as it is, in one task" in made.remarks[0]
    assert {variant.place for variant in made.variants} >= {Place.FUNCTIONS}
    assert all(variant.accuracy.share < 0.5 for variant in made.variants)


def test_verify_reports_the_accuracy_of_the_plan_and_of_the_network_as_given(files, plan, capsys):
    arguments = ["verify", str(plan), "--validation", str(files.validation)]
    assert _exit_code(app, [*arguments, "--json"], _Interrupt()) == 0
    accuracy = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert accuracy["accuracy"] == accuracy["accuracy_as_given"]
    share = accuracy["accuracy"]
    assert share["images"] == 200
    assert 0.8 < share["low"] < share["share"] < share["high"] < 1
    assert _exit_code(app, arguments, _Interrupt()) == 0
    assert f"accuracy, the plan: {share['share']:.2%} of 200 images" in capsys.readouterr().out


@pytest.mark.hostile
def test_a_damaged_image_is_named_and_a_failure_ends_the_registration_and_the_next_goes_on(
    register, validation, kept, monkeypatch
):
    damaged = next((validation / "seven").iterdir())
    whole = damaged.read_bytes()
    damaged.write_bytes(b"not an image")
    with pytest.raises(ImageError, match=damaged.name):
        register(validation=validation, most=2)
    assert kept().applications() == []
    damaged.write_bytes(whole)

    def fails(_job):
        raise serfer.UnavailableError("no process can be started")

    with monkeypatch.context() as patched:
        patched.setattr(making, "measure_instance", fails)
        with pytest.raises(serfer.UnavailableError):
            register(validation=validation, most=2)
    assert kept().applications() == []
    steps = []
    registered = register(validation=validation, progress=steps.append, most=2)
    assert (registered.made, registered.version.version) == (True, 1)
    assert not any("making a plan" in step for step in steps)


@pytest.mark.usefixtures("measured")
def test_a_network_that_was_registered_with_plans_of_another_format_is_registered_again(register, monkeypatch):
    with monkeypatch.context() as before:
        before.setattr(registering, "FORMAT", registering.FORMAT - 1)
        assert register(most=2).version.version == 1
    again = register(most=2)
    assert (again.made, again.version.version, again.live) == (True, 2, False)
    assert not register(most=2).made


@pytest.mark.slow
def test_what_is_in_8_bits_is_measured_again_on_a_processor_of_another_kind(register, monkeypatch):
    here = ("avx2",)

    def measured(job):
        quick = job.precision == "int8"
        return replace(figures({1: 1.0 if quick else 2.0}), measured_on=here)

    monkeypatch.setattr(making, "measure_instance", measured)
    monkeypatch.setattr(registering, "instruction_sets", lambda _: here)

    def int8():
        registered = register(most=4)
        [variant] = [variant for variant in registered.version.variants if variant.precision == "int8"]
        return registered.made, registered.version.version, variant.measured_on

    assert int8() == (True, 1, here)
    here = ("avx2", "avx512_vnni")
    assert int8() == (True, 2, here)
    assert int8() == (False, 2, here)
    here = ("avx2",)
    assert int8() == (False, 1, here)


def test_what_loses_more_than_allowed_or_is_not_faster_is_left_out():
    def why(*measured):
        return why_not(InstanceMeasurement("int8", "a", "p", figures(*measured)), figures({1: 2.0, 4: 6.0}), 0.01)

    assert why({1: 1.0, 4: 3.0}, 89) == ""
    assert "loses 10.00%" in why({1: 1.0}, 80)
    assert "not faster on cpu" in why({1: 1.99, 4: 6.1})


def test_a_busy_machine_is_remarked_on():
    assert "load 7.5 on 2 processors" in busy(replace(figures({1: 1.0}), busy=7.5), 2)
    assert busy(replace(figures({1: 1.0}), busy=2.0), 2) == ""


def test_dollars_are_measured_where_the_type_is_given_and_predicted_where_it_is_assumed():
    measured = InstanceMeasurement("fp32", "a", "p", figures({1: 10.0, 4: 20.0}))
    given = instance_type(RegisterOptions(instance="c7i.large"), "cpu", {"c7i.large": 0.36})
    one, four = instance_variants(measured, given, 1, "net")
    assert (one.name, one.place, one.kind, one.batch) == ("c7i.large-fp32-b1", Place.INSTANCE, "c7i.large", 1)
    assert (one.usd.source, one.usd.value) == ("measured", pytest.approx(1e-6))
    assert (four.qps.value, four.usd.value) == (pytest.approx(200), pytest.approx(5e-7))
    (assumed, _) = instance_variants(measured, InstanceType("c7i.large", 0.36, assumed=True), 1, "net")
    assert (assumed.usd.source, assumed.latency_ms.source) == ("predicted", "measured")
    with pytest.raises(UsageError, match="price of 'x' is not known"):
        instance_type(RegisterOptions(instance="x"), "cpu", {"c7i.large": 0.36})
    assert instance_type(RegisterOptions(instance="x", usd_per_hour=2.0), "cpu", {}).usd_per_hour == 2.0


def test_variants_in_8_bits_say_with_which_instruction_sets_their_accuracy_was_measured():
    kind = InstanceType("c7i.large", 0.36, assumed=False)
    measured = replace(figures({1: 10.0}), measured_on=("avx2", "avx512_vnni"))
    for precision, words in (("int8", ", accuracy measured with avx2, avx512_vnni"), ("fp32", "")):
        (made,) = instance_variants(InstanceMeasurement(precision, "a", "p", measured), kind, 1, "net")
        assert made.measured_on == ("avx2", "avx512_vnni")
        assert made.made == f"the whole network on cpu, {precision}, batches of 1{words}"


def test_calibration_images_are_few_and_of_all_classes_and_none_of_a_small_set():
    known = digits()
    chosen = calibration_images(known.held_out_labels)
    assert len(set(chosen)) == len(chosen) == 200
    assert {int(label) for label in known.held_out_labels[chosen]} == set(range(CLASSES))
    assert not calibration_images(known.held_out_labels[:99]).size


def test_accuracy_and_calibration_share_no_image(files, plan, tmp_path, settings):
    whole = load_plan(plan)
    images = read_labelled(files.validation, whole)
    written = write_images(images, Recipe(whole.preprocess, whole.input, settings.image_limits()), tmp_path)
    assert tuple(len(part.labels) for part in (written.tested, written.calibration)) == (180, 20)
    parts = [{image.tobytes() for image in part.pixels} for part in (written.tested, written.calibration)]
    assert not parts[0] & parts[1]
    pairs = zip(written.tested.pixels[..., 0], written.tested.labels, strict=True)
    known = dict(zip((image.tobytes() for image in digits().held_out), digits().held_out_labels, strict=True))
    assert all(known[image.tobytes()] == label for image, label in pairs)


def test_a_plan_in_8_bits_is_sealed_served_and_refused_where_it_is_not_there(plan, tmp_path):
    (tmp_path / "images").mkdir()
    np.save(tmp_path / "images/pixels.npy", digits().held_out[:32, ..., None])
    np.save(tmp_path / "images/labels.npy", digits().held_out_labels[:32])
    made = with_quantised(load_plan(plan), plan, ImageFiles(tmp_path / "images"), tmp_path / "int8")
    found = load_plan(tmp_path / "int8")
    check_artefacts(found, tmp_path / "int8")
    assert found == made
    assert found.digest != load_plan(plan).digest
    assert replace(found, quantised=(), digest="") == replace(load_plan(plan), digest="")
    batch = as_input(digits().held_out[:64])
    whole = open_network(found, plan, Hardware("cpu", "fp32"), 64).run(batch)
    rounded = open_network(found, tmp_path / "int8", Hardware("cpu", "int8"), 64).run(batch)
    assert 0 < np.abs(rounded - whole).max() < 0.2 * np.ptp(whole)
    with pytest.raises(ModelError, match="--precision int8: this plan has no network in 8 bits"):
        open_network(load_plan(plan), plan, Hardware("cpu", "int8"), 1)


def test_a_networks_digest_is_the_same_wherever_its_weights_are(files, plan, tmp_path):
    described = {"preprocess": read_preprocess(files.preprocess), "labels": LABELS, "activation": "softmax"}
    serfer.split(
        files.networks["medium"], out=tmp_path / "split", precision="fp32", grids=[(2, 2), (1, 1)], **described
    )
    serfer.split(files.networks["small"], out=tmp_path / "other", precision="fp32", **described)
    digest = network_digest(plan / "unsplit.onnx")
    assert network_digest(tmp_path / "split/unsplit.onnx") == digest
    assert network_digest(tmp_path / "other/unsplit.onnx") != digest
