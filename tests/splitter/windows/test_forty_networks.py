"""Maps of dense networks that are in use: those of the module on the whole image, or refused by operator or guard.

The oracle is the module in float64. A map may be off by 1e-5 of the range, or by twice what the module in float32 is.
`.venv/bin/python -m tests.splitter.windows.test_forty_networks [PART OF A NAME]` prints what becomes of the networks.
"""

import copy
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import serfer
from serfer.core.errors import SerferError
from serfer.splitter.network.zoo import with_random_weights
from tests.package_networks import SMP, unpacked
from tests.splitter.dense_networks import (
    CLASSES,
    LARGE,
    Depth,
    Dilated,
    Pyramid,
    Residual,
    SuperResolution,
    UNet,
    groups,
    instances,
)
from tests.splitter.windows.test_random_maps import NOT_A_REASON, all_by_windows

EXACT = 1e-5
"""Of the range of an output."""


@dataclass(frozen=True)
class Dense:
    """A network to be built, and (height, width) of an image of it.

    `maps` says whether it has a map; one that has none is refused by an operator or a guard. `often` says how often it
    is tried: at each commit, in `make slow` or in `make weekly`.
    """

    build: Callable[[], nn.Module]
    size: tuple[int, int]
    maps: bool = True
    often: str = "weekly"
    package: bool = False


def import_smp(folder):
    """Import segmentation_models_pytorch, with stand-ins for what it downloads weights by, which tests have not."""
    if "segmentation_models_pytorch" in sys.modules:
        return
    import timm  # noqa: F401, PLC0415 - slow to import, and before there are stand-ins, which it would take

    empty = dict.fromkeys(("save_pretrained", "from_pretrained", "push_to_hub"))
    empty["__new__"] = lambda kind, *_, **__: object.__new__(kind)
    hub = ("PyTorchModelHubMixin", "ModelCard", "ModelCardData", "hf_hub_download")
    missing = {"tqdm": ("tqdm",), "huggingface_hub": hub}
    for name, words in missing.items():
        sys.modules[name] = ModuleType(name)
        vars(sys.modules[name]).update({word: type(word, (), dict(empty)) for word in words})
    sys.path.append(str(unpacked(SMP, folder)))
    try:
        import segmentation_models_pytorch  # noqa: F401, PLC0415 - only where it was downloaded
    finally:
        sys.path.pop()
        for name in missing:
            del sys.modules[name]


def of_smp(kind, encoder, depth=5, norm=None, **more):
    """Build a network of segmentation_models_pytorch; `norm` stands in place of batch norm."""
    library = sys.modules["segmentation_models_pytorch"]
    net = getattr(library, kind)(encoder, encoder_depth=depth, encoder_weights=None, classes=CLASSES, **more)
    return with_norm(net, norm) if norm else net


def with_norm(net, norm):
    for name, child in net.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(net, name, norm(child.num_features))
        else:
            with_norm(child, norm)
    return net


class ConvNext(nn.Module):
    """ConvNeXt V2's blocks: large kernels by channel, layer norm over channels, and norms over the whole image."""

    def __init__(self, width=12, *, whole=True):
        super().__init__()
        self.stem, self.whole = nn.Conv2d(3, width, 4, stride=4), whole
        self.deep = nn.ModuleList(nn.Conv2d(width, width, 7, padding=3, groups=width) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.wide = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(2))
        self.narrow = nn.ModuleList(nn.Linear(4 * width, width) for _ in range(2))
        self.head = nn.Sequential(nn.Conv2d(width, 16 * CLASSES, 1), nn.PixelShuffle(4))

    def forward(self, x):
        x = self.stem(x)
        for deep, norm, wide, narrow in zip(self.deep, self.norms, self.wide, self.narrow, strict=True):
            values = functional.gelu(wide(norm(deep(x).permute(0, 2, 3, 1))))
            if self.whole:
                lengths = torch.linalg.vector_norm(values, dim=(1, 2), keepdim=True)
                values = values * (lengths / (lengths.mean(-1, keepdim=True) + 1e-6)) + values
            x = x + narrow(values).permute(0, 3, 1, 2)
        return self.head(x)


NETWORKS = {
    "U-Net, transposed": Dense(lambda: UNet("transposed"), (237, 214), often="slow"),
    "U-Net, nearest": Dense(lambda: UNet("nearest"), (236, 212), often="slow"),
    "U-Net, bilinear": Dense(lambda: UNet("bilinear"), (236, 212)),
    "U-Net, nearest, of odd sizes": Dense(lambda: UNet("nearest"), (237, 214)),
    "U-Net, bilinear, of odd sizes": Dense(lambda: UNet("bilinear"), (237, 214)),
    "U-Net, instance norm": Dense(lambda: UNet("bilinear", instances), (180, 204)),
    "U-Net, group norm": Dense(lambda: UNet("transposed", groups), (181, 203), often="slow"),
    "ESPCN": Dense(lambda: SuperResolution(3), (101, 117), often="commit"),
    "EDSR": Dense(Residual, (103, 97), often="slow"),
    "Monodepth2, nearest": Dense(lambda: Depth("nearest"), (232, 200)),
    "dilated context": Dense(Dilated, (165, 143)),
    "feature pyramid, aligned corners": Dense(Pyramid, (151, 144)),
    "ConvNeXt": Dense(lambda: ConvNext(whole=False), (221, 187)),
    "ConvNeXt V2": Dense(ConvNext, (221, 187), often="commit"),
} | {name: Dense(build, (288, 352)) for name, (build, _) in LARGE.items()}


SMALL = "tu-test_resnet"
"""timm's networks for tests, which have the operators of those that they are called after."""


def _smp(kind, encoder=SMALL, size=(192, 224), *, maps=True, **more):
    return Dense(lambda: of_smp(kind, encoder, **more), size, maps=maps, package=True)


NETWORKS |= {
    "smp Unet, resnet18": _smp("Unet", "resnet18", (288, 352)),
    "smp Unet, small resnet, of odd sizes": _smp("Unet", size=(191, 223)),
    "smp Unet, small resnet, group norm": _smp("Unet", depth=3, decoder_channels=(32, 16, 8), norm=groups),
    "smp Unet, small resnet, instance norm": _smp("Unet", depth=3, decoder_channels=(32, 16, 8), norm=instances),
    "smp Unet, mobilenet_v2": _smp("Unet", "mobilenet_v2", depth=4, decoder_channels=(64, 32, 16, 8)),
    "smp Unet, efficientnet-b0": _smp("Unet", "efficientnet-b0", depth=3, decoder_channels=(32, 16, 8)),
    "smp Unet, small convnext": _smp("Unet", "tu-test_convnext"),
    "smp Unet, small resnet, scSE": _smp("Unet", decoder_attention_type="scse"),
    "smp Unet++, small resnet": _smp("UnetPlusPlus"),
    "smp Linknet, small resnet": _smp("Linknet"),
    "smp FPN, small resnet": _smp("FPN"),
    "smp PAN, small resnet": _smp("PAN", maps=False),
    "smp MAnet, small resnet": _smp("MAnet", maps=False),
    "smp DeepLabV3, small resnet": _smp("DeepLabV3", maps=False),
    "smp DeepLabV3+, small resnet": _smp("DeepLabV3Plus"),
    "smp PSPNet, small resnet": _smp("PSPNet", depth=3),
    "smp UPerNet, small resnet": _smp("UPerNet"),
    "smp Segformer, small resnet": _smp("Segformer", maps=False),
    "smp Segformer, mit_b0": _smp("Segformer", "mit_b0", maps=False),
}


def network(name):
    """Return a network in evaluation mode with random weights under which every layer counts in images of 128 x 128."""
    torch.manual_seed(0)
    return with_random_weights(NETWORKS[name].build().eval(), 128)


_MARKS = {"commit": (), "slow": pytest.mark.slow, "weekly": pytest.mark.weekly}


def outputs_of(net, image):
    with torch.inference_mode():
        values = net(torch.from_numpy(image))
    return [each.numpy() for each in (values if isinstance(values, list | tuple) else [values])]


def differences(name, directory):
    """Map an image by the plan; return of each output its error, what is allowed, and the share of other classes."""
    net, image = network(name), np.random.default_rng(3).standard_normal((1, 3, *NETWORKS[name].size), np.float32)
    truths = outputs_of(copy.deepcopy(net).double(), image.astype(np.float64))
    for made, own, truth in zip(all_by_windows(directory, image), outputs_of(net, image), truths, strict=True):
        assert made.shape == truth.shape
        span = np.ptp(truth)
        allowed = max(EXACT, 2 * np.abs(own - truth).max() / span)
        yield np.abs(made - truth).max() / span, allowed, other_classes(made, truth, allowed * span)


def other_classes(made, truth, apart):
    """Return the share of pixels with another best class, of those whose best two are so far apart."""
    if truth.shape[1] == 1:
        return 0.0
    second, best = np.sort(truth, axis=1)[:, -2:].swapaxes(0, 1)
    return float((made.argmax(1) != truth.argmax(1))[best - second > 2 * apart].mean())


@pytest.mark.exact
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", [pytest.param(name, marks=_MARKS[each.often]) for name, each in NETWORKS.items()])
def test_a_network_in_use_has_the_map_of_its_module_or_is_refused_by_name(name, tmp_path):
    if NETWORKS[name].package:
        import_smp(tmp_path)
    said = outcome(name, tmp_path)
    if said.startswith("refused") and not NETWORKS[name].maps:
        assert "operator '" in said or "size" in said
        assert not NOT_A_REASON.search(said)
    else:
        assert said.startswith("exact")


def outcome(name, folder):
    known = NETWORKS[name]
    try:
        with warnings.catch_warnings(action="ignore"):
            plan = serfer.map_plan(network(name), [known.size], folder / "plan", window=96, statistics="exact")
    except SerferError as error:
        return f"refused: {error}"
    found = [*differences(name, folder / "plan")]
    wrong = any(not error <= allowed or classes for error, allowed, classes in found)
    windows = f"{len(plan.windows.first)} windows, {len(plan.windows.passes)} passes before the map"
    return f"{'WRONG' if wrong else 'exact'}: {max(each for each, *_ in found):.1e} of the range, {windows}"


if __name__ == "__main__":
    part = " ".join(sys.argv[1:])
    with tempfile.TemporaryDirectory() as packages:
        for each in NETWORKS:
            if part in each:
                with tempfile.TemporaryDirectory() as place:
                    if NETWORKS[each].package:
                        import_smp(Path(packages))
                    began = time.process_time()
                    said = outcome(each, Path(place))
                    print(f"{each} | {time.process_time() - began:.0f} s | {said}", flush=True)  # noqa: T201
