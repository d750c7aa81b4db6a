"""Pre- and postprocessing of a package's tensors, as a plan has them; what it cannot have is refused by its name.

Steps of both versions of the format are read: 0.4 (`name`, axes as letters, `mode`) and 0.5 (`id`, axes by their ids).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from serfer.core.errors import ModelError
from serfer.core.plan import Preprocess
from serfer.core.plan.image_normalisation import EPS, ImageNormalisation
from serfer.core.plan.preprocess import BAND
from serfer.splitter.network.description import SIGMOID, SOFTMAX

_COLOURS = {1: "L", 3: "RGB"}
_UNIT = (0.0, 1.0)
_PER_DATASET = "its description normalises by all images of a dataset, and a map by each image"


@dataclass(frozen=True)
class Step:
    """A step of processing: its name, and its arguments."""

    name: str
    arguments: Mapping[str, Any]

    def refused(self, why: str) -> ModelError:
        """Return the error for a step that no plan has."""
        return ModelError(f"its processing has {self.name!r:.40}, {why}")


@dataclass
class _Values:
    """What steps so far make of a stored value x of each channel: gain * n(x) + offset, n being the normalisation."""

    channels: int
    by_image: ImageNormalisation | None = None
    gain: list[float] = field(default_factory=list)
    offset: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.gain, self.offset = [1.0] * self.channels, [0.0] * self.channels

    @property
    def untouched(self) -> bool:
        return set(self.gain) == {1.0} and set(self.offset) == {0.0}

    def scale(self, gain: Sequence[float], offset: Sequence[float]) -> None:
        self.gain = [factor * each for factor, each in zip(gain, self.gain, strict=True)]
        self.offset = [factor * each + more for factor, each, more in zip(gain, self.offset, offset, strict=True)]


def preprocess_of(steps: Sequence[Step], channels: int, axes: Mapping[str, str]) -> tuple[Preprocess, list[str]]:
    """Return the preprocessing of an input, and notes on what a plan does otherwise.

    `axes` are letters (b, c, y, x) of the ids of the input's axes. Raises ModelError that names the step.
    """
    values = _Values(channels)
    for step in steps:
        _PREPROCESSING.get(step.name, _refuse)(step, values, axes)
    signs = {math.copysign(1, gain) for gain in values.gain}
    if len(signs) > 1 or not all(values.gain):
        raise ModelError("its preprocessing multiplies channels by numbers of both signs, or by 0")
    [sign] = signs
    preprocess = Preprocess(
        resize=None,
        interpolation="bilinear",
        channels=_COLOURS.get(channels, BAND * channels),
        scale=sign,
        mean=tuple(-offset / abs(gain) for gain, offset in zip(values.gain, values.offset, strict=True)),
        std=tuple(1 / abs(gain) for gain in values.gain),
        by_image=values.by_image,
        stored=values.by_image is None,
    )
    return preprocess, values.notes


def reduction_of(steps: Sequence[Step], axes: Mapping[str, str]) -> str | None:
    """Return what is made of an output, as `--reduce` names it, None for nothing; raises ModelError for other steps."""
    done = None
    for step in steps:
        if step.name == "ensure_dtype" and step.arguments.get("dtype") in ("float32", None):
            continue
        if step.name not in (SIGMOID, SOFTMAX) or done:
            raise step.refused("which a map does not do")
        if step.name == SOFTMAX and axes.get(str(step.arguments.get("axis", "channel"))) != "c":
            raise step.refused("over another axis than the channels")
        done = step.name
    return done


def _refuse(step: Step, _values: _Values, _axes: Mapping[str, str]) -> None:
    raise step.refused("which a plan's preprocessing does not do: write it into the network")


def _linear(step: Step, values: _Values, axes: Mapping[str, str]) -> None:
    values.scale(*(_per_channel(step, key, each, values, axes) for key, each in (("gain", 1.0), ("offset", 0.0))))


def _fixed(step: Step, values: _Values, axes: Mapping[str, str]) -> None:
    mean, std = (_per_channel(step, key, None, values, axes) for key in ("mean", "std"))
    # Only format 0.4 has an eps here.
    spans = [each + _number(step, "eps", EPS if "mode" in step.arguments else 0.0) for each in std]
    if min(spans) <= 0:
        raise step.refused("whose std is not above 0")
    values.scale([1 / span for span in spans], [-each / span for each, span in zip(mean, spans, strict=True)])


def _unit_variance(step: Step, values: _Values, axes: Mapping[str, str]) -> None:
    mode = step.arguments.get("mode")
    if mode == "fixed" or (mode is None and {"mean", "std"} & {*step.arguments}):
        _fixed(Step(step.name, {"mode": "fixed", **step.arguments}), values, axes)
        return
    _by_image(step, values, axes, None)


def _range(step: Step, values: _Values, axes: Mapping[str, str]) -> None:
    if step.arguments.get("reference_tensor") is not None:
        raise step.refused("by the values of a tensor of its own: leave reference_tensor out where it is the input")
    low, high = _number(step, "min_percentile", 0.0), _number(step, "max_percentile", 100.0)
    _by_image(step, values, axes, (low, high))


def _by_image(step: Step, values: _Values, axes: Mapping[str, str], percentiles: tuple[float, float] | None) -> None:
    if values.by_image or not values.untouched:
        raise step.refused("behind other steps: a plan normalises the values that an image stores by the whole of it")
    reduced = _letters(step, axes)
    if not {"y", "x"} <= reduced:
        raise step.refused("over other axes than the whole image")
    if "b" in reduced or step.arguments.get("mode") == "per_dataset":
        values.notes.append(_PER_DATASET)
    eps = _number(step, "eps", EPS)
    values.by_image = ImageNormalisation(percentiles, per_channel="c" not in reduced, eps=eps)


def _letters(step: Step, axes: Mapping[str, str]) -> set[str]:
    """Return the axes that are normalised together: without any all of them."""
    given = step.arguments.get("axes")
    if given is None:
        return {*axes.values()}
    unknown = [name for name in given if name not in [*axes]] if isinstance(given, list | str) else [given]
    if unknown:
        raise step.refused(f"over the axis {unknown[0]!r:.40}, which the tensor does not have")
    return {axes[name] for name in given}


def _clip(step: Step, values: _Values, _axes: Mapping[str, str]) -> None:
    ends = tuple(_number(step, key, math.nan) for key in ("min", "max"))
    if ends != _UNIT or not values.by_image or values.by_image.percentiles is None or not values.untouched:
        raise step.refused("which a plan does to 0 and 1 alone, behind percentiles")
    values.by_image = replace(values.by_image, clip=True)


def _type(step: Step, _values: _Values, _axes: Mapping[str, str]) -> None:
    if step.arguments.get("dtype") not in ("float32", "float64"):
        raise step.refused("to whole numbers")


_PREPROCESSING = {
    "scale_linear": _linear,
    "fixed_zero_mean_unit_variance": _fixed,
    "zero_mean_unit_variance": _unit_variance,
    "scale_range": _range,
    "clip": _clip,
    "ensure_dtype": _type,
}


def _per_channel(step: Step, key: str, default: float | None, values: _Values, axes: Mapping[str, str]) -> list[float]:
    """Return an argument as a number for each channel, whether it is one number or a list."""
    given = step.arguments.get(key, default)
    if not isinstance(given, list):
        return [_as_number(step, key, given)] * values.channels
    along = axes.get(str(step.arguments.get("axis", "channel")), "c")
    if along != "c" or len(given) != values.channels:
        raise step.refused(f"whose {key} has {len(given)} numbers, not one for each of {values.channels} channels")
    return [_as_number(step, key, each) for each in given]


def _number(step: Step, key: str, default: float) -> float:
    given = step.arguments.get(key)
    return default if given is None else _as_number(step, key, given)


def _as_number(step: Step, key: str, given: object) -> float:
    """Return a number, which YAML 1.1 takes for text where it is written as 1e-6."""
    try:
        if (
            isinstance(given, int | float | str)
            and not isinstance(given, bool)
            and math.isfinite(number := float(given))
        ):
            return number
    except (ValueError, OverflowError):  # a whole number of YAML may be larger than any float
        pass
    raise step.refused(f"whose {key} is {given!r:.40}, and not a number")
