"""Rule 1 as numbers: how far a split network's answer may be from the unsplit one's.

An answer is an array (N, ...), or several by name: each is compared by itself, and the worst one counts. Its range is
that of the unsplit output's finite values; NaN and infinities are equal where both have the same. Its classes, where
there are any, lie along axis 1: scores of an image, or of each position of a map.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import ModelError

TOLERANCE = 1e-4
_TIE = 1e-5
_REORDERED = 4
"""How many times further than two orders of computing an answer a third one may be."""
_ROUNDED, _FLIPPED = 2.0**-15, 1e-2
"""What rounding makes at most: of the largest value, and of a map's classes."""
_STEP = float(np.finfo(np.float32).eps)
"""Of the largest value, the least that rounding makes: one step of float32, however alike two orders compute."""
_OF_SIGMOIDS = 4 * _STEP
"""ONNX Runtime computes sigmoids as a rational function: 1.8e-7 was measured."""
_Answer = NDArray[Any] | Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class Difference:
    """The difference of split outputs from unsplit ones: relative to their range, and in the first class.

    Classes whose unsplit scores are closer than 1e-5 of the range count as a tie.
    """

    error: float
    same_top: bool

    @property
    def exact(self) -> bool:
        """Whether rule 1 holds."""
        return self.error <= TOLERANCE and self.same_top


def relative_error(split: _Answer, whole: _Answer) -> float:
    """Return the largest difference relative to the range of `whole`; infinity where NaN or infinities differ.

    Of whole numbers, such as a mask's classes, it is the share of values that differ, one apart: which of two equal
    scores is larger is a matter of rounding.
    """
    return difference(split, whole).error


def difference(split: _Answer, whole: _Answer, noise: Sequence[float] = ()) -> Difference:
    """Compare answers, of which so much in each output as `runtime_noise` returns is no difference."""
    pairs = [*_pairs(split, whole)]
    known = [(*pair, level) for pair, level in zip(pairs, noise or [0.0] * len(pairs), strict=True)]
    return Difference(max(_relative_error(*item) for item in known), all(_same_top(*item) for item in known))


def runtime_noise(
    whole: _Answer, again: _Answer, images: NDArray[Any], *, of_sigmoids: bool = False
) -> tuple[float, ...]:
    """Return by how much rounding alone may alter each output of a network: where it is nearly constant, this shows.

    `again` are the unsplit network's answers to `images` as other kernels of the runtime compute them, in another
    order. More than rounding makes of values as large as the images' is no noise, but errors that grow in the network.
    """
    largest = _largest(images)
    return tuple(_noise(*pair, largest, of_sigmoids=of_sigmoids) for pair in _pairs(again, whole))


def _noise(again: NDArray[Any], whole: NDArray[Any], images: float, *, of_sigmoids: bool) -> float:
    if not np.issubdtype(whole.dtype, np.floating):
        return min(_FLIPPED, _REORDERED * float(np.mean(again != whole)))
    with np.errstate(invalid="ignore"):  # infinity less infinity
        apart = _largest(np.subtract(again, whole, dtype=np.float64))
    most = _ROUNDED * max(1.0, images, _largest(whole))
    return max(_STEP * _largest(whole), _OF_SIGMOIDS * of_sigmoids, min(_REORDERED * apart, most))


def _largest(values: NDArray[Any]) -> float:
    return float(np.abs(values[np.isfinite(values)]).max(initial=0.0))


def check_finite(answer: _Answer, what: str) -> None:
    if finite_share(answer) < 1:
        raise ModelError(f"{what} is not finite (NaN or infinity), so nothing compares with it: check its weights")


def finite_share(answer: _Answer) -> float:
    flags = [np.isfinite(values) for values, _ in _pairs(answer, answer)]
    size = sum(int(flag.size) for flag in flags)
    return sum(int(np.count_nonzero(flag)) for flag in flags) / size if size else 1.0


def agreement(split: _Answer, whole: _Answer) -> float:
    """Return the share of images, or of positions of a map, with the same first class; of the output with the least."""
    return min(float((_top(pair) == _top(other)).mean()) for pair, other in _pairs(split, whole))


def _pairs(split: _Answer, whole: _Answer) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    if not isinstance(split, Mapping) or not isinstance(whole, Mapping):
        pairs = [(np.asarray(split), np.asarray(whole))]
    elif split.keys() != whole.keys():
        raise ModelError(f"the outputs {', '.join(split)} are not {', '.join(whole)}")
    else:
        pairs = [(split[name], whole[name]) for name in whole]
    for pair, other in pairs:
        if pair.shape != other.shape:
            raise ModelError(f"an output has shape {pair.shape}, the unsplit network's {other.shape}")
        yield pair, other


def _relative_error(split: NDArray[Any], whole: NDArray[Any], noise: float) -> float:
    if not np.issubdtype(whole.dtype, np.floating):
        return max(0, int(np.count_nonzero(split != whole)) - 1) / max(1, whole.size) / max(1.0, noise / TOLERANCE)
    if np.array_equal(split, whole):
        return 0.0
    finite = np.isfinite(split) & np.isfinite(whole)
    if not np.array_equal(split[~finite], whole[~finite], equal_nan=True):
        return float("inf")
    deviation: NDArray[np.float64] = np.abs(np.subtract(split[finite], whole[finite], dtype=np.float64))
    return float(deviation.max(initial=0.0)) / max(_span(whole), noise / TOLERANCE)


def _same_top(split: NDArray[Any], whole: NDArray[Any], noise: float) -> bool:
    if not _has_classes(whole):
        return True
    split, whole = (np.where(np.isnan(values), -np.inf, values) for values in (split, whole))
    best = whole.max(axis=1)
    chosen = np.take_along_axis(whole, split.argmax(axis=1, keepdims=True), axis=1)[:, 0]
    with np.errstate(invalid="ignore"):  # infinity less infinity
        return bool(((best == chosen) | (best - chosen <= max(_TIE * _span(whole), 2 * noise))).all())


def _has_classes(values: NDArray[Any]) -> bool:
    return values.ndim > 1 and values.shape[1] > 1 and np.issubdtype(values.dtype, np.floating)


def _top(values: NDArray[Any]) -> NDArray[Any]:
    return np.asarray(values.argmax(axis=1) if _has_classes(values) else np.rint(values))


def _span(values: NDArray[Any]) -> float:
    finite = values[np.isfinite(values)].astype(np.float64)
    return float(np.ptp(finite)) or 1.0 if finite.size else 1.0
