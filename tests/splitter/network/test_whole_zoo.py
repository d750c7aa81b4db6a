"""Every network of the zoo: its entry, its weights, and its answers when it is split."""

import shutil
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import serfer
from serfer.core.errors import ModelError
from serfer.packaging.bundle import dependencies, directory_bytes, function_directory
from serfer.splitter.network.zoo import ZOO, find, imagenet_labels
from serfer.splitter.tiling.grids import ONE, parse_grids

PHOTOGRAPH = Path(__file__).parents[3] / "examples" / "images" / "chelsea.png"
PACKAGE_LIMIT = 262_144_000
WORST = 1e-5
PRETRAINED = {"efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2"}
RANDOM = {
    *("alexnet", "densenet121", "efficientnet-b0", "googlenet", "inception-v3", "mobilenet-v2", "mobilenet-v3-large"),
    *("resnet152", "resnet18", "resnet50", "squeezenet", "vgg11", "vgg16"),
}
WEEKLY = {"efficientnet-lite1", "efficientnet-lite2", "mobilenet-v2", "resnet50", "resnet152", "vgg11", "vgg16"}
"""Large networks, and those that are like another one."""
LARGE_HEADS = {"vgg11", "vgg16"}  # two columns of their first matrix are 205 MB each
SIZES = {"efficientnet-lite1": 240, "efficientnet-lite2": 260, "inception-v3": 299}


def test_the_zoo_lists_the_expected_networks():
    assert set(ZOO) == PRETRAINED | RANDOM
    assert all(name == entry.name for name, entry in ZOO.items())
    assert find("resnet18") is ZOO["resnet18"]
    with pytest.raises(ModelError, match="unknown model 'resnet'") as refusal:
        find("resnet")
    assert all(name in str(refusal.value) for name in ZOO)


@pytest.mark.parametrize("entry", ZOO.values(), ids=list(ZOO))
def test_every_entry_has_the_origin_of_its_weights_its_grids_its_size_and_plausible_values(entry):
    trained = entry.name in PRETRAINED
    assert entry.weights == ("ImageNet (pretrained)" if trained else "random (seed 0): answers mean nothing")
    assert parse_grids(list(entry.grids)).per_stage[-1:] == (() if entry.name in LARGE_HEADS else (ONE,))
    preprocess = entry.preprocess
    assert entry.size == SIZES.get(entry.name, 224)
    assert 1.1 * entry.size < preprocess.resize < 1.2 * entry.size
    assert preprocess.channels == "RGB"
    black, white = ((value * preprocess.scale - np.array(preprocess.mean)) / preprocess.std for value in (0, 255))
    assert (black > -3).all()
    assert (black < -1).all()
    assert (white > 1).all()
    assert (white < 3).all()


@pytest.fixture(
    scope="module", params=[pytest.param(name, marks=pytest.mark.weekly if name in WEEKLY else []) for name in ZOO]
)
def network(request):
    """A network of the zoo with its module's answers to noise and to a photograph; it is built and exported once."""
    import torch  # noqa: PLC0415 - slow to import

    entry = ZOO[request.param]
    module, batch = entry.build().eval(), _inputs(entry)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.onnx, "export", _Once(torch.onnx.export))
        patch.setitem(ZOO, entry.name, replace(entry, build=partial(_same, module)))
        yield SimpleNamespace(entry=entry, module=module, batch=batch, logits=_logits(module, batch))


class _Once:
    """A function that is called once; later calls, with any arguments, return the first result."""

    def __init__(self, function):
        self.function, self.results = function, []

    def __call__(self, *arguments, **options):
        if not self.results:
            self.results.append(self.function(*arguments, **options))
        return self.results[0]


def _same(module):
    return module


def _inputs(entry):
    noise = np.random.default_rng(5).standard_normal((1, 3, entry.size, entry.size), dtype=np.float32)
    picture = Image.open(PHOTOGRAPH).convert("RGB").resize((entry.size, entry.size), Image.Resampling.BICUBIC)
    photograph = (np.asarray(picture) * entry.preprocess.scale - entry.preprocess.mean) / entry.preprocess.std
    return np.concatenate([noise, photograph.transpose(2, 0, 1)[None].astype(np.float32)])


def _logits(module, batch):
    import torch  # noqa: PLC0415 - slow to import

    with torch.inference_mode():
        return module(torch.from_numpy(batch)).numpy()


def _errors(got, expected):
    """Return each image's largest difference, relative to the range of its own logits."""
    return np.abs(got - expected).max(axis=1) / np.ptp(expected, axis=1)


@pytest.mark.slow
def test_the_answers_depend_on_every_part_of_the_image(network):
    middle = network.entry.size // 2
    faulty = network.batch.copy()
    faulty[:, :, middle : middle + 2, middle : middle + 8] = 0
    assert np.isfinite(network.logits).all()
    assert (np.ptp(network.logits, axis=1) > 0.1).all()
    assert (_errors(_logits(network.module, faulty), network.logits) > 100 * WORST).all()
    assert (_errors(network.logits[::-1], network.logits) > 0.01).all()


@pytest.mark.slow
def test_the_weights_are_of_the_stated_origin(network):
    import torch  # noqa: PLC0415 - slow to import

    if network.entry.name in PRETRAINED:
        assert imagenet_labels()[network.logits[1].argmax()] == "Egyptian cat"
        return
    drawn = torch.nn.Conv2d | torch.nn.Linear | torch.nn.BatchNorm2d
    for module in network.module.modules():
        own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
        assert not own or isinstance(module, drawn), f"nothing gives {type(module).__name__} its numbers"


@pytest.mark.slow
def test_a_split_network_equals_its_module_and_fits_its_functions(network, shelf):
    """Every second network on its own grids, the others on 2 x 2."""
    check_split(network, shelf, own=own_in_turn(network))


@pytest.mark.exact
@pytest.mark.weekly
def test_a_split_network_on_the_other_grids_equals_its_module_too(network, shelf):
    check_split(network, shelf, own=not own_in_turn(network))


def own_in_turn(network):
    return [*ZOO].index(network.entry.name) % 2 == 1


def check_split(network, shelf, *, own):
    grids = (list(network.entry.grids) or "auto") if own else "2x2"
    with tempfile.TemporaryDirectory(dir=shelf) as directory:
        plan = serfer.split(network.entry.name, out=Path(directory) / "plan", grids=grids)
        with serfer.open(Path(directory) / "plan") as pipeline:
            got = pipeline.run(network.batch)
        for stage, number in plan.functions:
            function = function_directory(plan, Path(directory) / "plan", stage, number, dependencies(shelf / "cache"))
            assert directory_bytes(function) <= PACKAGE_LIMIT
            shutil.rmtree(function)
    errors = _errors(got, network.logits)
    print(f"{network.entry.name}: {[str(stage.grid) for stage in plan.stages]}, relative error {errors.max():.2g}")  # noqa: T201
    assert (got.argmax(axis=1) == network.logits.argmax(axis=1)).all()
    assert (errors <= WORST).all()
    assert not (own and network.entry.grids) or [str(stage.grid) for stage in plan.stages] == grids
    assert plan.changes == (), "fp32, and the network's own head"
