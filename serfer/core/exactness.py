"""Rule 1 as numbers: how far a split network's answer may be from the unsplit one's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import ModelError

TOLERANCE = 1e-4
_TIE = 1e-5


@dataclass(frozen=True)
class Difference:
    """The difference of split logits from unsplit ones: relative to their range, and in the first class.

    Classes whose unsplit logits are closer than 1e-5 of the range count as a tie.
    """

    error: float
    same_top: bool

    @property
    def exact(self) -> bool:
        """Whether rule 1 holds."""
        return self.error <= TOLERANCE and self.same_top


def relative_error(split: NDArray[Any], whole: NDArray[Any]) -> float:
    """Return the largest difference of (N, K) logits relative to the range of `whole`; NaN is infinite."""
    with np.errstate(invalid="ignore"):  # infinity less infinity
        error = float(np.abs(np.subtract(split, whole, dtype=np.float64)).max()) / _span(whole)
    return float("inf") if np.isnan(error) else error


def difference(split: NDArray[Any], whole: NDArray[Any]) -> Difference:
    """Compare (N, K) logits."""
    best = whole.max(axis=1)
    chosen = np.take_along_axis(whole, split.argmax(axis=1, keepdims=True), axis=1)[:, 0]
    with np.errstate(invalid="ignore"):
        same_top = bool((best - chosen <= _TIE * _span(whole)).all())
    return Difference(relative_error(split, whole), same_top)


def check_finite(logits: NDArray[Any], what: str) -> None:
    """Raise ModelError that names `what` where unsplit logits are not finite numbers."""
    if not np.isfinite(logits).all():
        raise ModelError(
            f"{what} is not finite (NaN or infinity), so nothing can be compared with it: check its weights"
        )


def agreement(split: NDArray[Any], whole: NDArray[Any]) -> float:
    """Return the share of (N, K) logits with the same first class."""
    return float((split.argmax(axis=1) == whole.argmax(axis=1)).mean())


def _span(logits: NDArray[Any]) -> float:
    return float(np.ptp(logits.astype(np.float64))) or 1.0
