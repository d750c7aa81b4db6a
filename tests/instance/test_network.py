"""The whole network on a device: which one, in which precision, and what it loses by that."""

import shutil
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from types import SimpleNamespace

import numpy as np
import onnxruntime
import pytest

from serfer.core.errors import InputError, ModelError, PlanError, UnavailableError, UsageError, WrongAnswerError
from serfer.core.exactness import difference
from serfer.core.plan import Artefact, sealed
from serfer.core.plan.layout import QUANTISED
from serfer.core.units import MIB
from serfer.core.variants import INSTRUCTION_SETS
from serfer.instance import measuring
from serfer.instance import network as module
from serfer.instance.measuring import compare, default_bound, expected, profile, used_bytes
from serfer.instance.network import (
    Hardware,
    Network,
    doubled_sizes,
    half_precision,
    load_whole,
    open_network,
    padded_sizes,
)
from serfer.instance.opening import InstanceChoices, measure_networks
from serfer.plan_directory import write_plan
from serfer.system import begin_peak, give_back, machine_bytes, peak_bytes
from tests.e2e.small import batch

CPU = Hardware("cpu", threads=1)
HALF = Hardware("cpu", "fp16", threads=1)


class Session:
    """Stands for ONNX Runtime's: adds up each image, and remembers the batches."""

    def __init__(self):
        self.seen = []

    def get_inputs(self):
        return [SimpleNamespace(name="image")]

    def get_providers(self):
        return ["CPUExecutionProvider"]

    def run(self, _names, given, _options):
        [images] = given.values()
        self.seen.append(len(images))
        return [images.sum(axis=(1, 2, 3))[:, None].astype(np.float32)]


@pytest.mark.exact
def test_batches_of_any_size_equal_the_unsplit_network_image_by_image(plan, directory, whole):
    network = open_network(plan, directory, CPU, max_batch=4)
    for count in (1, 3, 4, 9):
        images = batch(count, seed=count)
        logits = network.run(images)
        assert difference(logits, whole(images)).exact
        for number in range(count):
            assert difference(logits[number : number + 1], whole(images[number : number + 1])).exact


def test_gpu_batches_have_few_shapes_and_padding_is_dropped():
    session = Session()
    network = Network(session, "cuda", "fp32", max_batch=24)
    for count in (1, 3, 5, 17, 30):
        images = batch(count)
        assert np.array_equal(network.run(images), images.sum(axis=(1, 2, 3))[:, None])
    assert session.seen == [1, 3, 6, 24, 24, 6]
    assert network.sizes == [1, 2, 3, 4, 6, 8, 12, 16, 24]
    for most in range(1, 200):
        sizes = padded_sizes(most)
        assert (sizes[0], sizes[-1]) == (1, most)
        assert all(3 * (small + 1) >= 2 * large for small, large in pairwise(sizes))
        assert set(doubled_sizes(most)) <= set(sizes)


def test_half_precision_is_measured_against_fp32_and_not_assumed(plan, directory, whole):
    network = open_network(plan, directory, HALF, max_batch=8)
    comparison = compare(plan, network, expected(plan, directory))
    assert 0 < comparison.error < 0.01
    images = batch(5, seed=9)
    own = difference(network.run(images), whole(images))
    assert network.run(images).dtype == np.float32
    assert 0 < own.error < 0.01
    assert compare(plan, open_network(plan, directory, CPU, max_batch=8), expected(plan, directory)).error < 1e-6


@pytest.fixture(scope="module")
def in_8_bits(plan, directory, tmp_path_factory):
    """A plan directory whose network in 8 bits is, for the sake of time, the one in fp32."""
    out = tmp_path_factory.mktemp("quantised") / "plan"
    shutil.copytree(directory, out)
    shutil.copyfile(out / plan.unsplit.path, out / QUANTISED)
    artefact = Artefact(QUANTISED, plan.unsplit.bytes, plan.unsplit.sha256)
    write_plan(sealed(replace(plan, quantised=(artefact,))), out)
    return out


@pytest.mark.parametrize(
    ("precision", "measured_on", "words"),
    [
        ("int8", ("avx2", "avx512_vnni"), ""),
        ("int8", ("avx2",), "this processor adds avx512_vnni"),
        ("int8", ("avx2", "avx512_vnni", "amx_int8"), "this processor lacks amx_int8"),
        ("int8", (), "is not known"),
        ("int8", None, ""),  # a plan without a record
        ("fp32", ("amx_int8",), ""),
    ],
)
def test_a_variant_in_8_bits_on_another_processor_than_it_was_measured_on_is_warned_of_once(
    in_8_bits, caplog, precision, measured_on, words
):
    def here(device):
        assert device == "cpu"
        return "avx2", "avx512_vnni"

    known = {} if measured_on is None else {"faces:a": measured_on}
    choices = InstanceChoices(CPU, 2, own={"faces:a": (precision, 2)}, measured_on=known)
    _, network = measure_networks({"faces:a": in_8_bits}, choices, here=here).networks["faces:a"]
    assert words in network.caution
    assert bool(words) == bool(network.caution)
    told = [record.serfer for record in caplog.records if record.message == "accuracy not measured here"]
    assert [fields["variant"] for fields in told] == ["faces:a"] * bool(words)


def test_this_machines_instruction_sets_are_read():
    assert set(module.instruction_sets("cpu")) <= set(INSTRUCTION_SETS)
    assert module.instruction_sets("cuda") == ("cuda",)


def test_a_network_that_computes_something_else_must_not_serve(plan, directory, whole):
    class Wrong:
        device, precision = "cuda", "fp32"

        def run(self, images):
            return whole(images) * 1.001

    with pytest.raises(WrongAnswerError, match=r"small on cuda differs .* use --device cpu"):
        compare(plan, Wrong(), expected(plan, directory))


def test_without_cuda_the_error_names_the_package(plan, directory):
    with pytest.raises(UnavailableError, match=r"--device cuda: .* is without CUDA: install onnxruntime-gpu"):
        open_network(plan, directory, Hardware("cuda"), 1)
    assert open_network(plan, directory, Hardware("auto"), 1).device == "cpu"


def test_an_unused_gpu_is_reported(plan, directory, monkeypatch):
    opened = []

    def session(_model, device, _hardware):
        opened.append(device)
        return Session()

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CUDAExecutionProvider"])
    monkeypatch.setattr(module, "_session", session)
    with pytest.raises(UnavailableError, match="could not load CUDA's libraries"):
        open_network(plan, directory, Hardware("cuda"), 1)
    assert open_network(plan, directory, Hardware("auto"), 1).device == "cpu"
    assert opened == ["cuda", "cuda"]


def test_a_gpu_computes_without_tensorfloat_32():
    [(name, options), fallback] = module._providers("cuda")
    assert (name, options["use_tf32"], fallback) == ("CUDAExecutionProvider", "0", "CPUExecutionProvider")


@pytest.mark.parametrize(
    ("make", "values", "option"),
    [
        (Hardware, ("gpu",), "--device"),
        (Hardware, ("cpu", "int4"), "--precision"),
        *((InstanceChoices, (CPU, most), "--max-batch is 1 to 1024") for most in (0, 1025)),
        *((InstanceChoices, (CPU, 1, window_ms), "--window-ms") for window_ms in (-1.0, 1e9)),
        (InstanceChoices, (CPU, 1, 0.0, 0), "memory_mb is 1 to"),
    ],
)
def test_what_no_instance_can_have_is_refused_by_option(make, values, option):
    with pytest.raises(UsageError, match=option):
        make(*values)


def test_an_invalid_network_is_refused_in_both_precisions_and_a_directory_without_one(tmp_path):
    with pytest.raises(PlanError):
        load_whole(tmp_path)
    (tmp_path / "x.onnx").write_bytes(b"no network")
    with pytest.raises(ModelError, match="--precision fp16: this network cannot be converted, use fp32"):
        half_precision(tmp_path / "x.onnx")
    with pytest.raises(InputError, match="ONNX Runtime cannot run the plan's whole network on cpu"):
        module._session(str(tmp_path / "x.onnx"), "cpu", CPU)


def test_a_profile_is_the_median_of_each_size_and_ends_where_its_budget_does(plan):
    now, lines = [0.0], []

    class Slow:
        device, pads, sizes = "cpu", True, doubled_sizes(64)

        def run(self, images):
            lines.append(len(images))
            first = lines.count(len(images)) == 1
            now[0] += len(images) * (0.5 if first else 0.1)  # the first of a size warms up

    measured = profile(plan, Slow(), 3, budget_s=4.0, clock=lambda: now[0])
    assert [size for size, _ in measured.batches] == [1, 2, 4, 8]  # 16 would take 6.4 s
    assert [ms for _, ms in measured.batches] == pytest.approx([100.0, 200.0, 400.0, 800.0])
    assert measured.stepped
    assert lines == [1, 1, 2, 2, 4, 4, 8, 8] + [1, 2, 4, 8] * 2  # they take turns


def test_the_default_is_a_share_of_what_there_is():
    assert 0 < default_bound("cpu") < machine_bytes()


def test_a_gpus_memory_is_unknown_where_cuda_is_not_loaded(monkeypatch):
    monkeypatch.setattr(measuring, "_CUDART", ("libcudart.so.no-such",))
    assert default_bound("cuda") is None
    assert used_bytes("cuda") is None


def hold_and_release():
    before = used_bytes("cpu")
    assert begin_peak()
    held = np.ones(64 * MIB, np.uint8)
    more = np.ones(32 * MIB, np.uint8)
    del more
    now = used_bytes("cpu")
    assert 60 * MIB <= now - before <= 80 * MIB
    assert peak_bytes() - before >= 90 * MIB
    assert held[-1] == 1
    del held
    give_back()
    assert used_bytes("cpu") - before <= 10 * MIB


def test_what_is_held_and_its_peak_are_seen_and_what_is_released_goes_back():
    with get_context("spawn").Pool(1) as pool:  # a process without other threads, whose memory would be counted
        pool.apply(hold_and_release)
