"""MArk's forecaster (section 4.2): a long short-term memory network of the last hour's peaks, for the next hour's.

    peaks of the last `window` units, relative to their mean, as logarithms x ──> LSTM ──> h of the last unit
    logarithm of the peak of each of the next `horizon` units = x of the last unit + head . h

Relative values make one network serve the same load at any scale. It is trained offline (bench/study/forecasting) and
kept as plain arrays; a forecast takes numpy alone, and less than a millisecond. The cell is the usual one:

    i, f, g, o = U x + V h + b        c = sigmoid(f) c + sigmoid(i) tanh(g)        h = sigmoid(o) tanh(c)

Source: Hochreiter, Schmidhuber, *Long short-term memory* (Neural Computation 1997), with the forget gate of Gers,
Schmidhuber, Cummins (2000). The paper prints neither the input's length nor the network's size; those are ours.
"""

from __future__ import annotations

import io
import zipfile
from collections import deque
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from serfer.core.errors import InputError

Floats = NDArray[np.float64]
VERSION: Final = 1
MAX_BYTES: Final = 4 * 1024 * 1024
_MAX_UNITS: Final = 512  # of the window, of the horizon, and hidden ones
_LARGEST: Final = 1e6  # of any weight
_FLOOR: Final = 0.01  # of the mean, which is added to each peak: a peak of 0 has a logarithm then
_MOST: Final = 50.0  # times the mean, the highest forecast


def mean_of(peaks: Floats) -> Floats:
    """Return what peaks (..., window) are relative to: (..., 1)."""
    mean: Floats = np.maximum(peaks.mean(axis=-1, keepdims=True), 1e-9)
    return mean


def relative(peaks: Floats, mean: Floats) -> Floats:
    """Return peaks (..., units) as logarithms of what they are to a mean (..., 1)."""
    return np.log(peaks / mean + _FLOOR)


def absolute(logarithms: Floats, mean: Floats) -> Floats:
    """Return what `relative` made of peaks as peaks, not below 0."""
    return np.clip(np.exp(np.minimum(logarithms, 20.0)) - _FLOOR, 0.0, _MOST) * mean


@dataclass(frozen=True, eq=False)
class LstmWeights:
    """A trained network that looks at `window` units, with n hidden ones.

    `taken` is U (4 n), `recurrent` V (4 n, n), `bias` b (4 n), each with the gates in the order i, f, g, o; `head` is
    (horizon, n), `head_bias` (horizon). Raises InputError for other shapes, and for numbers that are not finite.
    """

    window: int
    taken: Floats
    recurrent: Floats
    bias: Floats
    head: Floats
    head_bias: Floats

    def __post_init__(self) -> None:
        hidden = len(self.bias) // 4 if self.bias.ndim == 1 else 0
        horizon = len(self.head_bias) if self.head_bias.ndim == 1 else 0
        sizes = (self.window, hidden, horizon)
        if not all(1 <= size <= _MAX_UNITS for size in sizes):
            raise InputError(f"an LSTM's window, hidden units and horizon are 1 to {_MAX_UNITS}, not {sizes}")
        shapes = {"taken": (4 * hidden,), "recurrent": (4 * hidden, hidden), "bias": (4 * hidden,)}
        shapes |= {"head": (horizon, hidden), "head_bias": (horizon,)}
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array.shape != shape:
                raise InputError(f"an LSTM's {name} has the shape {array.shape}, not {shape}")
            if not bool(np.all(np.abs(array) <= _LARGEST)):  # nor is any NaN
                raise InputError(f"an LSTM's {name} has numbers that are not finite, or beyond {_LARGEST:g}")

    @property
    def horizon(self) -> int:
        return len(self.head_bias)

    def forecast(self, peaks: Floats) -> Floats:
        mean = mean_of(peaks)
        x = relative(peaks, mean)
        hidden = len(self.bias) // 4
        half = np.full(4 * hidden, 0.5)
        half[2 * hidden : 3 * hidden] = 1.0  # sigmoid(z) = (1 + tanh(z / 2)) / 2, so that one tanh does for all gates
        inputs = (np.outer(x, self.taken) + self.bias) * half
        recurrent = self.recurrent * half[:, np.newaxis]
        h = c = np.zeros(hidden)
        for row in inputs:
            z = np.tanh(row + recurrent @ h)
            i, f, g, o = z.reshape(4, hidden)
            c = 0.5 * ((1 + f) * c + (1 + i) * g)
            h = 0.5 * (1 + o) * np.tanh(c)
        return absolute(x[-1] + self.head @ h + self.head_bias, mean)

    def to_bytes(self) -> bytes:
        file = io.BytesIO()
        arrays = {field.name: np.asarray(getattr(self, field.name)) for field in fields(self)}
        np.savez(file, allow_pickle=False, version=np.asarray(VERSION), **arrays)
        return file.getvalue()


_NAMES: Final = ("version", *(field.name for field in fields(LstmWeights)))


def read_lstm(path: Path) -> LstmWeights:
    """Read a trained network; raises InputError that names the file and what is wrong with it."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        reason = error.strerror if isinstance(error, OSError) else "its name is not a file's"
        raise InputError(f"{str(path)!r} cannot be read: {reason}") from error
    try:
        return _read(data)
    except InputError as error:
        raise InputError(f"{path} is not a forecaster of serfer study train-forecaster: {error}") from error


def _read(data: bytes) -> LstmWeights:
    if len(data) > MAX_BYTES:
        raise InputError(f"it has more than {MAX_BYTES:,} bytes")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            sizes = {one.filename: one.file_size for one in packed.infolist()}
        if sorted(sizes) != sorted(f"{name}.npy" for name in _NAMES) or sum(sizes.values()) > MAX_BYTES:
            raise InputError(f"it should have the arrays {', '.join(_NAMES)}")
        with np.load(io.BytesIO(data), allow_pickle=False) as found:
            arrays = {name: found[name] for name in _NAMES}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, NotImplementedError, RuntimeError, MemoryError) as error:
        raise InputError("its arrays cannot be read") from error
    whole = [arrays.pop(name) for name in ("version", "window")]
    if any(one.shape or one.dtype.kind not in "iu" for one in whole):
        raise InputError("its version and window are whole numbers")
    version, window = map(int, whole)
    if version != VERSION:
        raise InputError(f"it is of version {version}, this SerFer reads {VERSION}")
    if any(array.dtype.kind != "f" for array in arrays.values()):
        raise InputError("its weights are floats")
    return LstmWeights(window, **{name: one.astype(np.float64) for name, one in arrays.items()})


class LstmForecaster:
    """Forecasts by a trained network; before the first window is over, its first peak stands for those before."""

    def __init__(self, weights: LstmWeights) -> None:
        self._weights = weights
        self._peaks: deque[float] = deque(maxlen=weights.window)

    def observe(self, peak: float) -> None:
        if not self._peaks:
            self._peaks.extend([peak] * self._weights.window)
        self._peaks.append(peak)

    def forecast(self, units: int) -> Floats:
        """Return the rates of the next units; those beyond the network's horizon are its last one."""
        if not self._peaks:
            return np.zeros(units)
        rates = self._weights.forecast(np.array(self._peaks))[:units]
        return np.concatenate((rates, np.full(units - len(rates), rates[-1])))
