"""`timm:NAME` and `torchvision:NAME`: the metadata of weights, where these are found, and files of one's own."""

import pickle
import sys
import zipfile
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest
import torch
from PIL import Image

import serfer
from serfer.cli.shared.option_groups import NetworkFileOptions, WeightsOptions
from serfer.cli.shared.options import network_among, plan_directory
from serfer.cli.shared.service_options import served_models
from serfer.core.errors import InputError, MissingExtraError, ModelError, PlanError, UnavailableError, UsageError
from serfer.core.exactness import relative_error
from serfer.core.plan import ImageLimits, Preprocess, Shape
from serfer.images import Recipe, decode_image
from serfer.plan_directory import load_plan
from serfer.settings import Settings
from serfer.splitter.network import named_models
from serfer.splitter.network.named_models import NamedModel, build, describe
from serfer.splitter.network.source import load
from serfer.splitter.network.zoo import imagenet_labels, with_torchvision
from serfer.wiring.network_file import of_name, plan_of_file
from tests.exports import run_module

with_torchvision(lambda: import_module("torchvision"))
PHOTOGRAPH = Path(__file__).parents[3] / "examples" / "images" / "chelsea.png"
SMALL = "torchvision:shufflenet_v2_x0_5"


@pytest.fixture(autouse=True)
def caches(tmp_path, monkeypatch):
    """Empty caches of both hubs, and no network."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "torch"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "download_url_to_file", _no_network)
    return tmp_path


def _no_network(url, *_arguments, **_options):
    raise OSError(f"no network to fetch {url}")


CONFIG = {
    "architecture": "tiny",
    "tag": "own",
    "has_weights": True,
    "url": None,
    "hf_hub_id": "timm/tiny.own",
    "hf_hub_filename": None,
    "input_size": (3, 24, 24),
    "fixed_input_size": False,
    "interpolation": "bicubic",
    "crop_pct": 0.9,
    "crop_mode": "center",
    "mean": (0.5, 0.4, 0.3),
    "std": (0.2, 0.3, 0.4),
    "num_classes": 5,
    "classifier": "4",
}


def tiny(classes=5, channels=3):
    return torch.nn.Sequential(
        torch.nn.Conv2d(channels, 4, 3),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(4, classes) if classes else torch.nn.Identity(),
    )


@pytest.fixture(autouse=True)
def timm(request, monkeypatch):
    """A library with timm's interface and one architecture, whose configuration a test may change; slow tests: timm."""
    if request.node.get_closest_marker("slow"):
        return None
    config, built = SimpleNamespace(**CONFIG), []

    def create_model(name, *, pretrained, pretrained_cfg_overlay=None, num_classes=None, in_chans=3, img_size=None):
        module = tiny(config.num_classes if num_classes is None else num_classes, in_chans)
        built.append((name, img_size))
        if pretrained:
            module.load_state_dict({f"{key}": value for key, value in pretrained_cfg_overlay["state_dict"].items()})
        module.pretrained_cfg = dict(pretrained_cfg_overlay or {})
        return module

    def get_pretrained_cfg(name):
        if name not in ("tiny", "tiny.own"):
            raise RuntimeError("Invalid pretrained tag")
        return config

    library, models, data, info = (
        ModuleType(f"timm{part}") for part in ("", ".models", ".data", ".data.imagenet_info")
    )
    library.create_model = create_model
    models.is_model = lambda name: name == "tiny"
    models.list_models = lambda: ["tiny"]
    models.get_pretrained_cfg = get_pretrained_cfg
    models.get_arch_pretrained_cfgs = lambda _name: {"tiny.own": config}
    info.infer_imagenet_subset = lambda config: "imagenet-5" if config["num_classes"] == 5 else None
    info.ImageNetInfo = lambda _subset: SimpleNamespace(label_descriptions=lambda: [*"abcde"])
    for module in (library, models, data, info):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return SimpleNamespace(config=config, built=built)


def in_hub(caches):
    """Return the path of the weights in Hugging Face's cache, whose folders are there."""
    place = caches / "hub" / "models--timm--tiny.own"
    (place / "refs").mkdir(parents=True)
    (place / "refs" / "main").write_text("0123abcd")
    (place / "snapshots" / "0123abcd").mkdir(parents=True)
    return place / "snapshots" / "0123abcd" / "model.safetensors"


def in_torch_hub(url):
    return Path(torch.hub.get_dir(), "checkpoints", url.rpartition("/")[2])


def test_a_plan_of_a_named_network_has_what_the_metadata_say_and_says_that_weights_are_random(tmp_path):
    plan = serfer.split(serfer.NamedModel("timm:tiny", "random"), out=tmp_path / "plan", grids="1", stages=1)
    assert plan.untrained
    assert plan.model == "tiny.own"
    assert plan.preprocess == Preprocess(26, "bicubic", "RGB", 1 / 255, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4))
    assert (plan.labels, plan.activation) == (tuple("abcde"), "softmax")
    assert (plan.input.height, plan.input.width) == (24, 24)


def test_random_weights_are_the_same_each_time_and_leave_torchs_state_alone():
    before = torch.get_rng_state()
    first, second = (build(NamedModel("timm:tiny", "random")).module.state_dict() for _ in range(2))
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.usefixtures("caches")
@pytest.mark.parametrize("library", ["timm", "torchvision"])
def test_where_caches_are_empty_an_unknown_name_is_told_before_weights(library):
    with pytest.raises(ModelError, match=f"{library} has no network 'resnet1' "):
        build(NamedModel(f"{library}:resnet1"))


def test_weights_of_the_hubs_cache_are_found_without_a_network(caches):
    from safetensors.torch import save_file  # noqa: PLC0415 - beside its only use

    module = tiny()
    save_file(module.state_dict(), in_hub(caches))
    source, example = load("timm:tiny.own", None)
    assert source.weights == "pretrained: timm tiny.own"
    assert np.array_equal(source.run(example), run_module(module, example))


def test_a_file_for_other_classes_keeps_its_own_and_loses_the_labels(timm, tmp_path):
    weights = tiny(7).state_dict()
    torch.save({"state_dict": {f"model.{name}": value for name, value in weights.items()}}, tmp_path / "a.ckpt")
    network = build(NamedModel("timm:tiny", tmp_path / "a.ckpt"), (3, 32, 40))
    assert (network.weights, network.labels, network.activation) == ("from a.ckpt", (), "softmax")
    assert network.module[-1].out_features == 7
    assert network.preprocess.resize == 35  # 32 / 0.9
    timm.config.num_classes = 0  # an architecture without classes
    network = build(NamedModel("timm:tiny", tmp_path / "a.ckpt"))
    assert (network.module[-1].out_features, network.activation) == (7, "softmax")


def test_a_network_is_built_for_other_sizes_and_channels(timm):
    timm.config.fixed_input_size = True
    network = build(NamedModel("timm:tiny", "random"), (4, 32, 48))
    assert timm.built[-1] == ("tiny", (32, 48))
    assert network.preprocess is None, "the metadata say nothing of four channels"


@pytest.mark.parametrize(
    ("changes", "resize", "interpolation"),
    [({"crop_mode": "squash"}, None, "bicubic"), ({"interpolation": "random"}, 26, "bilinear")],
)
def test_metadata_that_a_plan_has_no_form_for_become_the_nearest(timm, changes, resize, interpolation):
    vars(timm.config).update(changes)
    network = build(NamedModel("timm:tiny", "random"))
    assert (network.preprocess.resize, network.preprocess.interpolation) == (resize, interpolation)


def test_a_whole_plan_does_not_replace_the_directory_of_its_weights(tmp_path):
    network = NamedModel("timm:tiny", tmp_path / "weights" / "net.pth")
    with pytest.raises(InputError, match="which is to be read"):
        serfer.whole_plan(network, out=tmp_path / "weights")


@pytest.mark.parametrize(("said", "message"), [("", "AssertionError"), ("odd sizes\nof maps", "odd sizes$")])
def test_what_a_library_says_of_a_size_is_passed_on_or_else_its_type(monkeypatch, said, message):
    def create_model(*_arguments, **_options):
        raise AssertionError(said)

    monkeypatch.setattr(sys.modules["timm"], "create_model", create_model)
    with pytest.raises(ModelError, match=rf"timm:tiny cannot be built for images of 24 x 24 pixels .*{message}"):
        build(NamedModel("timm:tiny", "random"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm:tini", r"no network 'tini' \(did you mean tiny\?\)"),
        ("timm:tiny.other", "no network 'tiny.other' .*tiny.own"),
        ("torchvision:resnet19", r"no network 'resnet19' \(did you mean .*resnet1"),
        ("torchvision:resnet18.NEW", "no network 'resnet18.NEW' .*resnet18.IMAGENET1K_V1"),
        ("torchvision:fasterrcnn_resnet50_fpn", "ObjectDetection"),
        ("torchvision:quantized_resnet18", "Quantized"),
    ],
)
def test_an_unknown_name_is_refused_with_those_near_it(name, message):
    with pytest.raises(ModelError, match=message):
        build(NamedModel(name, "random"))
    for wrong in ("timm:", "timm:hf-hub:owner/name", "torchvision:../x", "timm:a b"):
        with pytest.raises(UsageError, match="write timm:NAME"):
            load(wrong, None)


def test_a_library_that_is_not_installed_is_named_with_its_extra(monkeypatch, tmp_path):
    for module in ("timm", "timm.models"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[timm\]"):
        serfer.split("timm:tiny", out=tmp_path / "plan")


def test_options_say_where_weights_are_from_and_do_not_contradict_the_model_or_each_other():
    assert WeightsOptions().model_with_weights("net.onnx") == "net.onnx"
    for weights in ("random", Path("a")):
        options = WeightsOptions(random=weights == "random", weights_file=None if weights == "random" else weights)
        assert options.model_with_weights("timm:tiny") == NamedModel("timm:tiny", weights)
    with pytest.raises(UsageError, match="weights_file and random contradict each other"):
        WeightsOptions(weights_file=Path("net.pth"), random=True)
    with pytest.raises(UsageError, match="download says where the weights of timm:NAME or torchvision:NAME are from"):
        WeightsOptions(download=True).model_with_weights("net.onnx")


def test_a_named_network_is_opened_where_a_plan_is(tmp_path):
    settings, network = Settings(cache_dir=tmp_path / "cache"), NamedModel("timm:tiny", "random")
    images = np.random.default_rng(0).standard_normal((3, 3, 24, 24), dtype=np.float32)
    with serfer.open(network, store="memory://", workers="inprocess", settings=settings) as pipeline:
        answers, plan = pipeline.run(images), pipeline.plan
        assert len(pipeline.classify([PHOTOGRAPH])) == 1
    assert relative_error(answers, run_module(build(network).module, images)) < 1e-5
    assert (plan.model, plan.tasks, plan.untrained, plan.labels) == ("tiny.own", 1, True, tuple("abcde"))
    with pytest.raises(ModelError, match=r"timm tiny\.own.*not in a hub's cache.*--set weights_file") as refusal:
        serfer.open("timm:tiny", store="memory://", workers="inprocess", settings=settings)
    assert all(option in str(refusal.value) for option in ("--random", "--set download=true"))


def test_the_plan_of_a_named_network_is_made_once_for_its_weights(timm, tmp_path):
    settings, file = Settings(cache_dir=tmp_path / "cache"), tmp_path / "net.pth"
    torch.save(tiny().state_dict(), file)

    def made(weights):
        return plan_of_file(NamedModel("timm:tiny", weights), settings, lambda _step: None)

    drawn, trained = made("random"), made(file)
    assert (drawn.name.startswith("tiny-"), drawn == trained) == (True, False)
    built = len(timm.built)
    assert (made("random"), made(file), len(timm.built)) == (drawn, trained, built)
    torch.save(tiny().state_dict(), file)
    assert made(file) != trained
    kept, fetched, drawn = (of_name(NamedModel("timm:tiny", weights)) for weights in ("cache", "download", "random"))
    assert kept == fetched != drawn


def test_commands_take_a_named_network_where_they_take_a_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SERFER_CACHE_DIR", str(tmp_path / "cache"))
    random = NetworkFileOptions(size="32x32", random=True)
    assert network_among(["a.png"], None, "timm:tiny") == network_among(["timm:tiny", "a.png"], None)
    with pytest.raises(UsageError, match="several networks"):
        network_among(["a.png"], Path("plan"), "timm:tiny")
    images, network = network_among(["timm:tiny", "a.png"], None)
    assert images == ["a.png"]
    plan = load_plan(plan_directory(network, None, file=random))
    assert (plan.input.height, plan.untrained) == (32, True)
    capsys.readouterr()
    assert load_plan(served_models(None, ["own=timm:tiny"], file=random)["own"]) == plan
    assert capsys.readouterr().err.count("own has random weights") == 1
    with pytest.raises(UsageError, match="timm:tiny has no functions in AWS: write a plan"):
        plan_directory(network, None, "stack", random)
    with pytest.raises(
        PlanError, match=r"timm:tiny is a network's name, not a plan directory: .*serfer split timm:tiny"
    ):
        load_plan(network)
    with pytest.raises(UsageError, match="there are 2: split all but one before"):
        served_models(None, ["timm:tiny"], ["torchvision:resnet18"], random)


def test_torchvisions_own_transforms_and_categories_are_the_plans():
    network = build(NamedModel(SMALL, "random"))
    assert network.preprocess == Preprocess(
        256, "bilinear", "RGB", 1 / 255, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    )
    assert network.labels == imagenet_labels()
    assert network.shape == (3, 224, 224)


@pytest.mark.parametrize("name", ["mobilenet_v3_small", "efficientnet_b3", "swin_v2_t"])
def test_a_picture_becomes_what_torchvisions_own_transforms_make_of_it(name):
    """Bilinear and bicubic, with the crop as a share of other sizes each."""
    from torchvision.models import get_model_weights  # noqa: PLC0415 - slow to import

    found = describe("torchvision", name, "", None)
    preprocess, (channels, height, width) = found.preprocess, found.shape
    shape = Shape(channels, height, width, flat=False)
    pixels = decode_image(PHOTOGRAPH.read_bytes(), "", Recipe(preprocess, shape, ImageLimits())).pixels
    ours = (pixels * preprocess.scale - preprocess.mean) / preprocess.std
    theirs = get_model_weights(name).DEFAULT.transforms()(Image.open(PHOTOGRAPH).convert("RGB"))
    levels = np.abs(ours.transpose(2, 0, 1) - theirs.numpy()) * np.reshape(preprocess.std, (3, 1, 1)) * 255
    assert levels.mean() < 0.5
    assert np.quantile(levels, 0.99) <= 2.01


def test_torchvisions_weights_are_found_in_torch_hubs_cache():
    from torchvision.models import shufflenet_v2_x0_5  # noqa: PLC0415 - slow to import

    module = shufflenet_v2_x0_5(weights=None).eval()
    entry = __import__("torchvision").models.ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1
    in_torch_hub(entry.url).parent.mkdir(parents=True, exist_ok=True)
    torch.save(module.state_dict(), in_torch_hub(entry.url))
    network = build(NamedModel(SMALL), (3, 64, 64))
    assert network.weights == "pretrained: torchvision ShuffleNet_V2_X0_5_Weights.IMAGENET1K_V1"
    own = module.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in network.module.state_dict().items())
    with pytest.raises(UnavailableError, match=r"without a network, .* give it as --set weights_file"):
        build(NamedModel("torchvision:resnet18", "download"))


def test_a_file_that_has_the_name_of_published_weights_has_their_metadata(tmp_path):
    from torchvision.models import ResNet50_Weights, resnet50  # noqa: PLC0415 - slow to import

    entry = ResNet50_Weights.IMAGENET1K_V1
    with torch.device("meta"):
        shapes = resnet50(weights=None).state_dict()
    path = tmp_path / entry.url.rpartition("/")[2]
    torch.save({name: torch.zeros((), dtype=value.dtype).expand(value.shape) for name, value in shapes.items()}, path)
    network = build(NamedModel("torchvision:resnet50", path))
    assert network.name == "resnet50.IMAGENET1K_V1"
    assert network.preprocess.resize == entry.transforms().resize_size[0] == 256


class Command:
    def __reduce__(self):
        return __import__("os").system, ("touch ran",)


def test_a_file_that_would_run_code_is_refused_and_does_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path, write in (
        ("old.pth", lambda file: pickle.dump(Command(), file)),
        ("new.pth", lambda file: torch.save(Command(), file)),
    ):
        with (tmp_path / path).open("wb") as file:
            write(file)
        with pytest.raises(ModelError, match="save the weights alone"):
            build(NamedModel("timm:tiny", tmp_path / path))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda _path: None, "cannot be read: No such file"),
        (lambda path: path.mkdir(), "not a file"),
        (lambda path: path.write_bytes(b"PK\x03\x04 and no more"), "not a file of torch.save"),
        (lambda path: path.write_bytes(b""), "not a file of torch.save"),
        (lambda path: torch.save([torch.zeros(1)], path), "no tensors by name"),
        (lambda path: torch.save({"epoch": 3}, path), "no tensors by name"),
        (lambda path: torch.save({"other.weight": torch.zeros(1)}, path), 'Missing key.*"0.weight", "0.bias"'),
        (lambda path: torch.save(tiny(5, 1).state_dict(), path), "size mismatch for 0.weight"),
    ],
)
def test_a_file_that_holds_no_weights_of_the_network_is_refused_with_the_reason(tmp_path, write, message):
    write(tmp_path / "net.pth")
    with pytest.raises(ModelError, match=message):
        build(NamedModel("timm:tiny", tmp_path / "net.pth"))


def test_files_are_bounded_before_they_are_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr(named_models, "MAX_BYTES", 10_000)
    with zipfile.ZipFile(tmp_path / "packed.pth", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(20_000))
    (tmp_path / "large.safetensors").write_bytes(bytes(10_001))
    for name in ("packed.pth", "large.safetensors"):
        with pytest.raises(ModelError, match="holds more than"):
            build(NamedModel("timm:tiny", tmp_path / name))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["timm:test_resnet", "timm:test_vit", "timm:test_efficientnet", "torchvision:mobilenet_v3_small"]
)
def test_networks_of_the_libraries_themselves_are_read_with_their_metadata(name):
    source, example = load(NamedModel(name, "random"), None)
    assert source.preprocess is not None
    assert len(source.labels) == source.run(example).shape[1]


@pytest.mark.slow
def test_timms_own_files_are_filled_in_by_timm(tmp_path):
    import timm as library  # noqa: PLC0415 - slow to import

    module = library.create_model("test_vit.r160_in1k").eval()
    own = module.state_dict()
    torch.save(dict(own), tmp_path / "vit.pth")
    kept = build(NamedModel("timm:test_vit", tmp_path / "vit.pth")).module.state_dict()
    assert all(torch.equal(value, own[name]) for name, value in kept.items())
    larger = build(NamedModel("timm:test_vit", tmp_path / "vit.pth"), (3, 192, 192)).module
    assert larger.pos_embed.shape[1] > own["pos_embed"].shape[1], "positions are resampled as timm does"
