"""One fully connected layer fitted to pooled features, in closed form or nearly so.

Features are standardised for the fit. The scaling is folded back into the layer, so the network computes nothing more.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from serfer.splitter.head.find import Linear

Array = NDArray[np.float32]
_STRENGTHS = (0.003, 0.03, 0.3, 3.0, 30.0)
_RIDGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
_ITERATIONS = 1000


@dataclass(frozen=True)
class Scaling:
    """Features' means and standard deviations, (C,) float64; a feature that never changes has deviation 1."""

    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]

    @classmethod
    def of(cls, features: Array) -> Scaling:
        deviation = features.std(axis=0, dtype=np.float64)
        return cls(features.mean(axis=0, dtype=np.float64), np.where(deviation > 1e-8, deviation, 1.0))  # noqa: PLR2004 - rounding noise

    def apply(self, features: Array) -> Array:
        return ((features - self.mean) / self.deviation).astype(np.float32)

    def fold(self, layer: Linear) -> Linear:
        weight = layer.weight / self.deviation
        bias = layer.bias - weight @ self.mean
        return Linear(weight.astype(np.float32), bias.astype(np.float32))


def evaluate(layer: Linear, features: Array, labels: NDArray[np.int64]) -> tuple[float, float]:
    """Return (accuracy, minus the mean cross entropy): larger is better; (0, 0) where there is nothing to judge by."""
    return judge(features @ layer.weight.T + layer.bias, labels)


def judge(logits: Array, labels: NDArray[np.int64]) -> tuple[float, float]:
    """Return (accuracy, minus the mean cross entropy) of logits (N, K) for labels (N,)."""
    if not len(labels):
        return 0.0, 0.0
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    likelihood = shifted[np.arange(len(labels)), labels] - np.log(np.exp(shifted).sum(axis=1))
    return float((logits.argmax(axis=1) == labels).mean()), float(likelihood.mean())


def logistic(
    features: Array, labels: NDArray[np.int64], validation: tuple[Array, NDArray[np.int64]], seed: int
) -> Linear:
    """Fit multinomial logistic regression to scaled features (N, C); its strength is chosen on the validation part.

    `labels` (N,) name every class from 0 to K - 1 at least once.
    """
    if len(validation[1]) == 0:
        return _logistic(features, labels, 1.0, seed)
    layers = [_logistic(features, labels, strength, seed) for strength in _STRENGTHS]
    return max(layers, key=lambda layer: evaluate(layer, *validation))


def _logistic(features: Array, labels: NDArray[np.int64], strength: float, seed: int) -> Linear:
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415 - slow to import, and only a new head needs it
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - same

    model = LogisticRegression(C=strength, max_iter=_ITERATIONS, tol=1e-3, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # a fit stopped early is judged like any other
        model.fit(features.astype(np.float64), labels)
    weight, bias = model.coef_, model.intercept_
    if len(weight) == 1:  # two classes: scikit-learn keeps the difference of their scores
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    return Linear(weight.astype(np.float32), bias.astype(np.float32))


def ridge(features: Array, targets: Array, validation: tuple[Array, Array]) -> Linear:
    """Fit a linear map from scaled features (N, C) to targets (N, K), its penalty chosen on the validation part."""
    mean = targets.mean(axis=0, dtype=np.float64)
    wide = features.astype(np.float64)
    values, vectors = np.linalg.eigh(wide.T @ wide / len(wide))
    projected = vectors.T @ (wide.T @ (targets - mean) / len(wide))
    layers = []
    for penalty in _RIDGES:
        weight = (vectors @ (projected / (np.maximum(values, 0) + penalty)[:, None])).T
        layers.append(Linear(weight.astype(np.float32), mean.astype(np.float32)))
    return min(layers, key=lambda layer: _error(layer, *validation))


def _error(layer: Linear, features: Array, targets: Array) -> float:
    return float(np.square(features @ layer.weight.T + layer.bias - targets).mean())
