"""A pooled head and the trunk below it, trained together for a few epochs from a fitted start.

The loss is cross entropy on the labels and, with the same weight, the distance to the original network's own answers
(distillation), so that the new network stays close to the one it replaces.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import cos, pi

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from serfer.splitter.head.batched_inference import Array, Progress, batch_size, macs
from serfer.splitter.head.find import Head, Linear, split_at
from serfer.splitter.head.regression import Scaling, judge
from serfer.splitter.head.torch_interpreter import Trainable
from serfer.splitter.network.graph import Graph
from serfer.splitter.network.source import one_thread

_EPOCHS, _STEPS = 5, 300  # at least; more epochs where there are few images
_PATIENCE = 4
_TRUNK_RATES, _HEAD_RATE = (1e-3, 2e-4), 2e-3  # a trunk that has learnt much wants the smaller one: both are tried
_TEMPERATURE = 2.0
_BATCH = 32
_BUDGET_MACS = 3e13  # about a quarter of an hour on two slow cores
_PASSES = 3  # forward, gradients of activations, gradients of weights
_ONE_THREAD_MACS = 1e8


_Step = tuple[int, NDArray[np.int64], bool]


@dataclass(frozen=True)
class Examples:
    """Images (N, C, H, W), their classes (N,), and the original network's logits for them (N, K)."""

    images: Array
    labels: NDArray[np.int64]
    logits: Array

    def take(self, chosen: NDArray[np.int64]) -> Examples:
        return Examples(self.images[chosen], self.labels[chosen], self.logits[chosen])

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class TunedHead:
    """The best state: its graph (old head still there), its layer on scaled features, what its score and its epoch."""

    graph: Graph
    layer: Linear
    score: tuple[float, float]
    epoch: int


def tune(
    graph: Graph,
    head: Head,
    start: Linear,
    scaling: Scaling,
    parts: tuple[Examples, Examples],
    seed: int,
    progress: Progress,
) -> TunedHead:
    """Train from `start` on the first part; return the best state on the second; epoch 0 is the start itself."""
    nodes, _ = split_at(graph, head.trunk_end)
    cost = macs(graph, nodes)
    best = None
    with one_thread(cost < _ONE_THREAD_MACS):
        for rate in _TRUNK_RATES:
            network = _Network(Trainable(graph, nodes), start, scaling, rate, batch_size(graph))
            progress(f"training the trunk at rate {rate:g}")
            steps = _steps(len(parts[0]), cost, seed)
            trained = _course(
                TunedHead(graph, start, network.score(parts[1]), 0), network, parts, list(steps), progress
            )
            best = trained if best is None or trained.score > best.score else best
    return best or TunedHead(graph, start, (0.0, 0.0), 0)


def _course(
    start: TunedHead, network: _Network, parts: tuple[Examples, Examples], steps: Sequence[_Step], progress: Progress
) -> TunedHead:
    best = start
    training, validation = parts
    for number, (epoch, chosen, ends) in enumerate(steps):
        network.learn(training.take(chosen), (1 + cos(pi * number / len(steps))) / 2)
        if not ends:
            continue
        score = network.score(validation)
        progress(f"epoch {epoch}: {score[0]:.2%} of {len(validation)} validation images")
        if score > best.score:
            moved = replace(start.graph, weights={**start.graph.weights, **network.trunk.constants()})
            best = TunedHead(moved, network.layer(), score, epoch)
        elif epoch - best.epoch >= _PATIENCE:
            break
    return best


def _steps(count: int, cost: int, seed: int) -> Iterator[_Step]:
    """Yield (epoch from 1 on, indices, whether it ends); a large network has shorter epochs, each on other images."""
    random = np.random.default_rng(seed)
    affordable = _BUDGET_MACS / len(_TRUNK_RATES) / (_PASSES * max(cost, 1))
    images = int(min(max(_EPOCHS * count, _STEPS * _BATCH), affordable))
    epochs = max(_EPOCHS, -(-images // count))
    share = -(-images // epochs)
    order = np.concatenate([random.permutation(count) for _ in range(epochs)])
    for epoch in range(epochs):
        mine = order[epoch * share : (epoch + 1) * share]
        for first in range(0, len(mine), _BATCH):
            yield epoch + 1, mine[first : first + _BATCH], first + _BATCH >= len(mine)


class _Network:
    def __init__(self, trunk: Trainable, start: Linear, scaling: Scaling, rate: float, most: int) -> None:
        self.trunk = trunk
        self._most = most  # images whose activations fit into memory together
        self._weight = torch.tensor(start.weight).requires_grad_()
        self._bias = torch.tensor(start.bias).requires_grad_()
        self._mean = torch.tensor(scaling.mean.astype(np.float32))
        self._deviation = torch.tensor(scaling.deviation.astype(np.float32))
        groups = [
            {"params": list(trunk.parameters.values()), "lr": rate},
            {"params": [self._weight, self._bias], "lr": _HEAD_RATE},
        ]
        self._optimiser = torch.optim.Adam(groups)
        self._rates = [group["lr"] for group in self._optimiser.param_groups]

    def _forward(self, images: Array) -> Tensor:
        pooled = self.trunk(torch.from_numpy(np.ascontiguousarray(images))).mean(dim=(2, 3))
        return functional.linear((pooled - self._mean) / self._deviation, self._weight, self._bias)

    def learn(self, batch: Examples, factor: float) -> None:
        for group, rate in zip(self._optimiser.param_groups, self._rates, strict=True):
            group["lr"] = rate * factor
        self._optimiser.zero_grad()
        with torch.enable_grad():
            for part in self._parts(len(batch)):
                logits = self._forward(batch.images[part])
                answer = torch.from_numpy(batch.labels[part])
                loss = functional.cross_entropy(logits, answer) + _distance(logits, batch.logits[part])
                (loss * (len(answer) / len(batch))).backward()  # type: ignore[no-untyped-call]
        self._optimiser.step()

    def score(self, examples: Examples) -> tuple[float, float]:
        with torch.no_grad():
            parts = [self._forward(examples.images[part]).numpy() for part in self._parts(len(examples))]
        return judge(np.concatenate(parts), examples.labels)

    def _parts(self, count: int) -> Iterator[slice]:
        return (slice(start, start + self._most) for start in range(0, count, self._most))

    def layer(self) -> Linear:
        return Linear(self._weight.detach().numpy().copy(), self._bias.detach().numpy().copy())


def _distance(logits: Tensor, original: Array) -> Tensor:
    wanted = torch.softmax(torch.from_numpy(original) / _TEMPERATURE, dim=1)
    given = torch.log_softmax(logits / _TEMPERATURE, dim=1)
    return functional.kl_div(given, wanted, reduction="batchmean") * _TEMPERATURE**2
