"""Networks of four sizes that read digits, trained here in seconds, and 2,000 labelled images that they never saw.

The images are scikit-learn's 1,797 digits (8 x 8, written by 43 people), enlarged to 32 x 32. A third of them, 599, is
held out before anything else; so that there are 2,000, copies of those are turned by up to 12 degrees and moved by up
to three pixels. Training images are turned and moved in the same way, and never come from a held-out one. Everything
follows from fixed seeds.
"""

import io
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import torch
from PIL import Image
from torch import nn

from tests.splitter.models import Net

SIZES = ("tiny", "small", "medium", "large")
"""In order of work and accuracy."""
SIDE, CLASSES, HELD_OUT = 32, 10, 2000
LABELS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
PREPROCESS = 'crop = "none"\nchannels = "L"\nmean = [0.5]\nstd = [0.5]\n'
_TRAINED_COPIES, _EPOCHS, _BATCH = 2, 6, 64


@dataclass(frozen=True)
class Digits:
    """Images, (N, 32, 32) uint8, and labels, (N,) int64: to train on, and held out."""

    trained: np.ndarray
    trained_labels: np.ndarray
    held_out: np.ndarray
    held_out_labels: np.ndarray


@dataclass(frozen=True)
class DigitsFiles:
    """Files of networks by size, and what describes them; `validation` holds the images, a folder for each class."""

    networks: dict[str, Path]
    labels: Path
    preprocess: Path
    validation: Path


@cache
def digits(held_out=HELD_OUT):
    from sklearn.datasets import load_digits  # noqa: PLC0415 - slow to import

    data, random = load_digits(), np.random.default_rng(0)
    order = random.permutation(len(data.images))
    images = [_enlarged(data.images[number]) for number in order]
    labels = data.target[order].astype(np.int64)
    held = len(images) // 3
    tested, known = _grown(images[:held], labels[:held], held_out, random), images[held:]
    trained = _grown(known, labels[held:], len(known) * (1 + _TRAINED_COPIES), random)
    return Digits(*trained, *tested)


@cache
def trained(size):
    """Return a trained network in evaluation mode, (N, 1, 32, 32) to (N, 10) logits."""
    torch.manual_seed(0)
    network, known = _network(size), digits()
    images = torch.from_numpy(as_input(known.trained))
    labels = torch.from_numpy(known.trained_labels)
    optimiser = torch.optim.Adam(network.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(1)
    with _one_thread():
        for _ in range(_EPOCHS):
            for batch in torch.randperm(len(images), generator=generator).split(_BATCH):
                loss = nn.functional.cross_entropy(network(images[batch]), labels[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
    return network.eval()


@contextmanager
def _one_thread():
    """Compute on one thread: such small networks are faster so, and the same sums give the same weights."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def as_input(images):
    """Return (N, 32, 32) uint8 as a network takes it, (N, 1, 32, 32) float32, as PREPROCESS says."""
    return ((images[:, None] / np.float32(255) - np.float32(0.5)) / np.float32(0.5)).astype(np.float32)


def write_digits(folder, sizes=SIZES, images=HELD_OUT):
    """Write networks, their description and the first `images` of those held out into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    files = DigitsFiles(
        {size: folder / f"{size}.onnx" for size in sizes},
        folder / "labels.txt",
        folder / "preprocess.toml",
        folder / "validation",
    )
    for size, path in files.networks.items():
        write_onnx(trained(size), path)
    files.labels.write_text("\n".join(LABELS) + "\n")
    files.preprocess.write_text(PREPROCESS)
    known = digits()
    for number, (image, label) in enumerate(zip(known.held_out[:images], known.held_out_labels, strict=False)):
        path = files.validation / LABELS[label] / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return files


def png(image):
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG")
    return buffer.getvalue()


def write_onnx(network, path):
    """Write a sequence of convolutions, pooling and linear layers as ONNX, for any number of images."""
    net, value = Net(1, SIDE, SIDE), "images"
    for layer in network:
        kind, attributes = _operator(layer)
        weights = [net.constant(weight.detach().numpy()) for weight in layer.parameters()]
        value = net.op(kind, value, *weights, **attributes)
    onnx.save(net.model(value, name="images", dims=("N", CLASSES)), path)


def recurrent():
    """Return a network, not trained, whose rows an LSTM reads: it runs as it is from there on."""
    net, rows = Net(1, SIDE, SIDE), SIDE // 2
    x = net.op("Relu", net.conv("x", 1, 4, [3, 3], pads=[1] * 4, strides=[2, 2]))
    x = net.op("Reshape", net.op("Transpose", x, perm=[2, 0, 1, 3]), net.constant(np.array([rows, -1, 4 * rows])))
    net.op("LSTM", x, net.constant(net.floats(1, 20, 4 * rows)), net.constant(net.floats(1, 20, 5)), hidden_size=5)
    net.nodes[-1].output[:] = ["all", "last"]
    return net.model(net.linear(net.op("Squeeze", "last", net.constant(np.array([0]))), 5, CLASSES))


def _network(size):
    def block(channels, more, stride=1):
        return [nn.Conv2d(channels, more, 3, padding=1, stride=stride), nn.ReLU()]

    if size == "tiny":
        return nn.Sequential(*block(1, 2, 4), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(2 * 16, CLASSES))
    if size == "small":
        return nn.Sequential(*block(1, 4, 2), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 64, CLASSES))
    width = {"medium": 8, "large": 20}[size]
    layers = [*block(1, width, 2), *block(width, 2 * width), nn.MaxPool2d(2)]
    if size == "large":
        layers += block(2 * width, 2 * width)
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(2 * width * 64, CLASSES))


def _operator(layer):
    if isinstance(layer, nn.Conv2d):
        (padding, _), (stride, _) = layer.padding, layer.stride
        return "Conv", {"pads": [padding] * 4, "strides": [stride] * 2, "kernel_shape": [*layer.kernel_size]}
    if isinstance(layer, nn.MaxPool2d):
        return "MaxPool", {"kernel_shape": [layer.kernel_size] * 2, "strides": [layer.stride] * 2}
    if isinstance(layer, nn.Linear):
        return "Gemm", {"transB": 1}
    return ("Flatten", {}) if isinstance(layer, nn.Flatten) else ("Relu", {})


def _enlarged(image):
    return Image.fromarray((image * (255 / 16)).astype(np.uint8)).resize((SIDE, SIDE), Image.Resampling.BILINEAR)


def _grown(images, labels, count, random):
    """Return so many images: those that there are, and copies of them, turned and moved."""
    grown = [np.asarray(image) for image in images[:count]]
    while len(grown) < count:
        image = images[len(grown) % len(images)]
        angle, across, down = random.uniform(-12, 12), *random.integers(-3, 4, 2)
        turned = image.rotate(angle, Image.Resampling.BILINEAR, translate=(int(across), int(down)))
        grown.append(np.asarray(turned))
    return np.stack(grown), labels[np.arange(count) % len(images)]
