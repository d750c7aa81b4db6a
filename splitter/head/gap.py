"""Global average pooling in place of a fully connected head, fitted to images: SerFer, section 4.1.1, optimisation 2.

The paper retrains the pooled network. Here one layer on the pooled features stays (without one, the last map would
need a channel for each class), and it is fitted, then trained on together with the trunk for a few epochs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import ModelError
from serfer.extras import installed
from serfer.splitter.head.batched_inference import Array, Progress, macs, pooled_and_logits
from serfer.splitter.head.calibration import LEAST_OF_A_CLASS, Calibration
from serfer.splitter.head.find import Head, find_head, split_at, with_linear_head
from serfer.splitter.head.regression import Scaling, logistic, ridge
from serfer.splitter.network.graph import Graph

Indices = NDArray[np.int64]
_VALIDATION = 0.2
_BLIND_IMAGES, _BLIND_LEAST, _BLIND_SHARE = 1024, 64, 0.75
_BLIND_MACS = 1e13
_NAMED_CLASSES = 8
_GRAINS = (1, 2, 4, 8, 16, 32)
_CONTRASTS = (0.3, 0.6, 1.0, 1.5)


@dataclass(frozen=True)
class HeadFit:
    """How a head was replaced, and what that changed on `held_out` images that no fit saw.

    Accuracies and agreement (with the original's first answer) are shares; accuracies are None without labelled images.
    Bytes are the head's constants'. `how` is "logistic", "fine-tuned" or "blind"; `note` holds a caveat for the reader.
    """

    how: str
    accuracy_before: float | None
    accuracy_after: float | None
    held_out: int
    agreement: float
    bytes_before: int
    bytes_after: int
    note: str


def replace_head(
    graph: Graph, calibration: Calibration, *, seed: int = 0, progress: Progress = lambda _: None
) -> tuple[Graph, HeadFit]:
    """Return the graph with a fitted pooled head, and what it lost on images held out.

    These are the second part of `calibration.split(seed=seed)`. Raises ModelError where there is no head to replace, or
    the images are not of this network's classes, MissingExtraError without scikit-learn.
    """
    installed("sklearn")  # before all images pass through the network
    head = _head(graph)
    _check(graph, head, calibration)
    known, unseen = calibration.split(seed=seed)
    pooled, logits = pooled_and_logits(graph, head.trunk_end, head.logits, known.images, progress)
    original = _logits(graph, head, unseen.images)
    _check_original(np.concatenate([logits, original]), np.concatenate([known.labels, unseen.labels]))
    replaced, how, note = _fitted(graph, head, known, (pooled, logits), seed, progress)
    progress(f"judging on {len(unseen.labels)} images held out")
    before, after = original.argmax(axis=1), _logits(replaced, head, unseen.images).argmax(axis=1)
    return replaced, HeadFit(
        how=how,
        accuracy_before=float((before == unseen.labels).mean()),
        accuracy_after=float((after == unseen.labels).mean()),
        held_out=len(unseen.labels),
        agreement=float((before == after).mean()),
        bytes_before=head.bytes,
        bytes_after=_head_bytes(replaced, head),
        note=note,
    )


def _fitted(
    graph: Graph, head: Head, known: Calibration, seen: tuple[Array, Array], seed: int, progress: Progress
) -> tuple[Graph, str, str]:
    """Return the best graph on a validation part of `known`, how it was fitted, and a note on it.

    `seen` is what the trunk and the original made of these images: means (N, C) and logits (N, K).
    """
    from serfer.splitter.head.fine_tune import Examples, tune  # noqa: PLC0415 - same
    from serfer.splitter.head.torch_interpreter import unknown_kinds  # noqa: PLC0415 - torch is slow to import

    pooled, logits = seen
    fit, chosen_by = divide(known.labels, seed)
    scaling = Scaling.of(pooled[fit])
    scaled = scaling.apply(pooled)
    progress(f"fitting one layer to {len(fit)} images")
    layer = logistic(scaled[fit], known.labels[fit], (scaled[chosen_by], known.labels[chosen_by]), seed)
    unknown = unknown_kinds(split_at(graph, head.trunk_end)[0])
    counted = f"fitted to {len(fit)} images, chosen by {len(chosen_by)} others"
    if unknown or not len(chosen_by):
        why = f"cannot train through {', '.join(unknown)}" if unknown else "too few images to judge training by"
        return with_linear_head(graph, head, scaling.fold(layer)), "logistic", f"{counted}; {why}"
    examples = Examples(known.images, known.labels, logits)
    tuned = tune(graph, head, layer, scaling, (examples.take(fit), examples.take(chosen_by)), seed, progress)
    replaced = with_linear_head(tuned.graph, head, scaling.fold(tuned.layer))
    if not tuned.epoch:
        return replaced, "logistic", f"{counted}; training the trunk did not help"
    return replaced, "fine-tuned", f"{counted}; trunk trained for {tuned.epoch} epochs"


def replace_head_blind(graph: Graph, seed: int = 0, *, progress: Progress = lambda _: None) -> tuple[Graph, HeadFit]:
    """Return the graph with a pooled head that imitates the old one on random images, for lack of real ones.

    Raises ModelError where there is no head to replace. What it loses on real images is not known.
    """
    head = _head(graph)
    affordable = int(_BLIND_MACS // max(macs(graph, graph.nodes), 1))
    images = _noise(graph.shapes[graph.input][1:], int(np.clip(affordable, _BLIND_LEAST, _BLIND_IMAGES)), seed)
    pooled, logits = pooled_and_logits(graph, head.trunk_end, head.logits, images, progress)
    count = int(len(images) * _BLIND_SHARE)
    chosen = count * 4 // 5
    scaling = Scaling.of(pooled[:chosen])
    scaled = scaling.apply(pooled)
    layer = ridge(scaled[:chosen], logits[:chosen], (scaled[chosen:count], logits[chosen:count]))
    replaced = with_linear_head(graph, head, scaling.fold(layer))
    after = _logits(replaced, head, images[count:]).argmax(axis=1)
    return replaced, HeadFit(
        how="blind",
        accuracy_before=None,
        accuracy_after=None,
        held_out=len(images) - count,
        agreement=float((after == logits[count:].argmax(axis=1)).mean()),
        bytes_before=head.bytes,
        bytes_after=_head_bytes(replaced, head),
        note="fitted to random images: its accuracy on real ones was not measured; calibrate to know it",
    )


def _head(graph: Graph) -> Head:
    head = find_head(graph)
    if head is None:
        raise ModelError("the network has no fully connected head after its last map: nothing for pooling to replace")
    return head


def _logits(graph: Graph, head: Head, images: Array) -> Array:
    return pooled_and_logits(graph, head.trunk_end, head.logits, images, lambda _: None)[1]


def _head_bytes(graph: Graph, head: Head) -> int:
    return sum(
        graph.weights[name].nbytes for node in split_at(graph, head.trunk_end)[1] for name in graph.constants(node)
    )


def divide(labels: Indices, seed: int) -> tuple[Indices, Indices]:
    """Return the indices of images (N,) to fit to, and of those to choose by: some of each class that has three."""
    random = np.random.default_rng(seed)
    fit, chosen_by = [], []
    for label in np.unique(labels):
        mine = random.permutation(np.flatnonzero(labels == label))
        count = max(1, round(_VALIDATION * len(mine))) if len(mine) > 2 else 0  # noqa: PLR2004 - two to fit to
        chosen_by.append(mine[:count])
        fit.append(mine[count:])
    return np.sort(np.concatenate(fit)), np.sort(np.concatenate(chosen_by))


def _check(graph: Graph, head: Head, calibration: Calibration) -> None:
    classes = graph.shapes[head.logits][1]
    images, labels = calibration.images, calibration.labels
    if images.shape[1:] != graph.shapes[graph.input][1:] or len(images) != len(labels) or not len(images):
        wanted = " x ".join(str(size) for size in graph.shapes[graph.input][1:])
        raise ModelError(f"{len(images)} calibration images of shape {images.shape[1:]}, the network takes {wanted}")
    if labels.min() < 0 or labels.max() >= classes:
        raise ModelError(f"a calibration image has class {labels.max()}, the network has {classes} classes from 0")
    counts = np.bincount(labels, minlength=classes)
    if counts.min() < LEAST_OF_A_CLASS:
        few = np.flatnonzero(counts < LEAST_OF_A_CLASS)
        named = ", ".join(str(index) for index in few[:_NAMED_CLASSES]) + (", ..." * (len(few) > _NAMED_CLASSES))
        raise ModelError(
            f"{len(few)} of the network's {classes} classes have fewer than {LEAST_OF_A_CLASS} calibration images "
            f"({named}), {np.count_nonzero(counts == 0)} of them none: a new head cannot learn them"
        )


def _check_original(logits: Array, labels: Indices) -> None:
    """Chance knows how often each class is shown, and how often answered; two standard errors above it are chance."""
    classes, answers = logits.shape[1], logits.argmax(axis=1)
    right = float((answers == labels).mean())
    shown, given = (np.bincount(indices, minlength=classes) / len(labels) for indices in (labels, answers))
    chance = float(shown @ given)
    least = max(2 / classes if classes > 3 else 0.0, chance + 2 * np.sqrt(chance * (1 - chance) / len(labels)))  # noqa: PLR2004 - 2/3 is not chance
    if right <= least:
        raise ModelError(
            f"the network is right on {right:.1%} of the {len(labels)} calibration images, by chance on {chance:.1%}: "
            "they are mislabelled, prepared in another way, or of other classes"
        )


def _noise(shape: Sequence[int], count: int, seed: int) -> NDArray[np.float32]:
    """Each image, (C, H, W), sums fine and coarse grains, as photographs do, around a colour of its own."""
    random = np.random.default_rng(seed)
    images = np.empty((count, *shape), dtype=np.float32)
    for index in range(count):
        image = random.standard_normal((shape[0], 1, 1), dtype=np.float32) / 2
        shares = random.dirichlet(np.ones(len(_GRAINS))) ** 0.5
        for grain, share in zip(_GRAINS, shares, strict=True):
            image = image + np.float32(share) * _grains(shape, grain, random)
        images[index] = random.choice(_CONTRASTS) * image
    return images


def _grains(shape: Sequence[int], grain: int, random: np.random.Generator) -> NDArray[np.float32]:
    channels, height, width = shape
    coarse = random.standard_normal((channels, height // grain + 2, width // grain + 2), dtype=np.float32)
    for axis, size in ((1, height), (2, width)):
        position = np.arange(size) / grain + random.random() * (grain > 1)
        first = np.minimum(position.astype(np.int64), coarse.shape[axis] - 2)
        part = np.expand_dims((position - first).astype(np.float32), (0, 3 - axis))
        coarse = np.take(coarse, first, axis) * (1 - part) + np.take(coarse, first + 1, axis) * part
    return coarse
