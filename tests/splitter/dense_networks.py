"""Small networks whose answer is a map, each with a size of images that its strides do not divide."""

from importlib import import_module

import torch
from torch import nn
from torch.nn import functional

from serfer.splitter.network.zoo import with_random_weights, with_torchvision

CLASSES = 5


def block(before, after, *, norm=nn.BatchNorm2d, dilation=1, padding_mode="zeros"):
    conv = nn.Conv2d(before, after, 3, padding=dilation, dilation=dilation, padding_mode=padding_mode)
    return nn.Sequential(conv, norm(after), nn.ReLU())


class UNet(nn.Module):
    """Two levels; `up` is "transposed", or the mode of an interpolation to the size of the skip connection."""

    def __init__(self, up, norm=nn.BatchNorm2d, widths=(8, 12, 16)):
        super().__init__()
        one, two, three = widths
        self.up = up
        self.first, self.second = block(3, one, norm=norm), block(one, two, norm=norm)
        self.bottom = block(two, three, norm=norm)
        self.raise_two = nn.ConvTranspose2d(three, two, 2, stride=2) if up == "transposed" else nn.Conv2d(three, two, 1)
        self.raise_one = nn.ConvTranspose2d(two, one, 2, stride=2) if up == "transposed" else nn.Conv2d(two, one, 1)
        self.left_two, self.left_one = block(2 * two, two, norm=norm), block(2 * one, one, norm=norm)
        self.head = nn.Conv2d(one, CLASSES, 1)

    def enlarged(self, layer, x, skip):
        x = layer(x)
        if self.up != "transposed":
            x = functional.interpolate(x, size=skip.shape[2:], mode=self.up)
        rows, cols = skip.shape[2] - x.shape[2], skip.shape[3] - x.shape[3]
        return torch.cat([skip, functional.pad(x, (0, cols, 0, rows))], dim=1)

    def forward(self, x):
        first = self.first(x)
        second = self.second(functional.max_pool2d(first, 2))
        x = self.bottom(functional.max_pool2d(second, 2))
        x = self.left_two(self.enlarged(self.raise_two, x, second))
        return self.head(self.left_one(self.enlarged(self.raise_one, x, first)))


class SuperResolution(nn.Sequential):
    def __init__(self, factor):
        last = nn.Conv2d(12, 3 * factor**2, 3, padding=1)
        super().__init__(
            nn.Conv2d(3, 16, 5, padding=2),
            nn.Tanh(),
            nn.Conv2d(16, 12, 3, padding=1),
            nn.Tanh(),
            last,
            nn.PixelShuffle(factor),
        )


class Residual(nn.Module):
    """EDSR: what is added to an image that bicubic interpolation enlarges."""

    def __init__(self):
        super().__init__()
        self.head, self.inner = nn.Conv2d(3, 12, 3, padding=1), block(12, 12, norm=nn.Identity)
        self.tail = nn.Sequential(nn.Conv2d(12, 48, 3, padding=1), nn.PixelShuffle(2), nn.Conv2d(12, 3, 3, padding=1))

    def forward(self, x):
        features = self.head(x)
        return self.tail(features + self.inner(features)) + functional.interpolate(x, scale_factor=2, mode="bicubic")


class Depth(nn.Module):
    """Monodepth2's decoder: enlarged by `mode`, convolutions on maps that are padded by reflection."""

    def __init__(self, mode):
        super().__init__()
        self.mode = mode
        self.encoder = nn.ModuleList([nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in ((3, 8), (8, 12), (12, 16))])
        self.decoder = nn.ModuleList(
            [block(a, b, norm=nn.Identity, padding_mode="reflect") for a, b in ((16 + 12, 12), (12 + 8, 8), (8, 6))]
        )
        self.head = nn.Conv2d(6, 1, 3, padding=1, padding_mode="reflect")

    def forward(self, x):
        size, maps = x.shape[2:], []
        for layer in self.encoder:
            x = functional.elu(layer(x))
            maps.append(x)
        x = maps.pop()
        for layer in self.decoder:
            skip = maps.pop() if maps else None
            x = functional.interpolate(x, size=skip.shape[2:] if skip is not None else size, mode=self.mode)
            x = layer(torch.cat([x, skip], dim=1) if skip is not None else x)
        return torch.sigmoid(self.head(x))


class Pyramid(nn.Module):
    """A feature pyramid: three sizes, added from the coarsest on, and probabilities of all at the image's size."""

    def __init__(self):
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in ((3, 8), (8, 12), (12, 16))])
        self.side = nn.ModuleList([nn.Conv2d(width, 8, 1) for width in (8, 12, 16)])
        self.head = nn.Conv2d(8, CLASSES, 3, padding=1)

    def forward(self, x):
        size, maps = x.shape[2:], []
        for layer in self.down:
            x = functional.relu(layer(x))
            maps.append(x)
        top = None
        for layer, each in reversed([*zip(self.side, maps, strict=True)]):
            top = (
                layer(each)
                if top is None
                else layer(each) + functional.interpolate(top, size=each.shape[2:], mode="nearest")
            )
        return functional.interpolate(self.head(top), size=size, mode="bilinear", align_corners=True).softmax(1)


class Dilated(nn.Module):
    """Context by dilated convolutions; the answer is the largest class's score, without an axis of channels."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(block(a, 8, dilation=d) for a, d in ((3, 1), (8, 2), (8, 4), (8, 8))))
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x):
        return self.head(self.layers(x)).amax(1, keepdim=True)


class Labels(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return functional.interpolate(self.net(x), scale_factor=2, mode="bilinear").argmax(1, keepdim=True)


def groups(channels):
    return nn.GroupNorm(4, channels)


def instances(channels):
    return nn.InstanceNorm2d(channels, affine=True)


class Segmentation(nn.Module):
    """One of torchvision's, of which the answer is called "out"."""

    def __init__(self, name):
        super().__init__()
        segmentation = with_torchvision(lambda: import_module("torchvision.models.segmentation"))

        self.net = getattr(segmentation, name)(weights=None, weights_backbone=None, num_classes=CLASSES)

    def forward(self, x):
        return self.net(x)["out"]


NETWORKS = {
    "unet_transposed": (lambda: UNet("transposed"), (37, 42)),
    "unet_nearest": (lambda: UNet("nearest"), (37, 42)),
    "unet_bilinear": (lambda: UNet("bilinear"), (45, 38)),
    "unet_instance_norm": (lambda: UNet("bilinear", instances), (32, 38)),
    "unet_group_norm": (lambda: UNet("transposed", groups), (32, 36)),
    "espcn": (lambda: SuperResolution(3), (23, 30)),
    "edsr": (Residual, (25, 22)),
    "depth_nearest": (lambda: Depth("nearest"), (48, 53)),
    "depth_bilinear": (lambda: Depth("bilinear"), (64, 48)),
    "pyramid": (Pyramid, (51, 44)),
    "labels": (lambda: Labels(UNet("nearest")), (30, 41)),
    "dilated": (Dilated, (35, 33)),
}
LARGE = {
    name: (lambda name=name: Segmentation(name), size)
    for name, size in (
        ("fcn_resnet50", (97, 112)),
        ("deeplabv3_resnet50", (113, 96)),
        ("lraspp_mobilenet_v3_large", (97, 130)),
        ("deeplabv3_mobilenet_v3_large", (96, 105)),
    )
}


def network(name):
    """Return a network in evaluation mode, with random weights under which every layer counts, and its image size."""
    torch.manual_seed(0)
    build, size = {**NETWORKS, **LARGE}[name]
    return with_random_weights(build().eval(), 64), size
