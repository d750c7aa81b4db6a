"""Execution times of batches from combined operator profiles: f(b, c, g) of INFless (3.3).

An operator's time is affine in the batch; part of it divides by cores, or by the share of a GPU. Along a chain times
add up, of parallel branches the slowest counts; 10% are added so that errors of prediction miss no SLO.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Protocol

from serfer.core.costs.operator_costs import SAFETY
from serfer.core.dataclass_codec import Bounds
from serfer.core.units import MS_PER_S

WHOLE_GPU: Final = 100
"""Shares of a GPU: instances get them in percent of its streaming multiprocessors."""
_Ms = Annotated[float, Bounds(0.0, 1e6)]


@dataclass(frozen=True, slots=True, order=True)
class Configuration:
    """What an instance is given: the largest batch, CPU cores, and percent of one GPU (0: none)."""

    batch: int
    cores: int
    share: int


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of an operator: for each batch, for each image, for each image on one core, and on a whole GPU.

    `batch_core_ms` are those for each batch that cores divide, such as reading weights, on one core.
    """

    batch_ms: _Ms
    image_ms: _Ms = 0.0
    core_ms: _Ms = 0.0
    gpu_ms: _Ms = 0.0
    batch_core_ms: _Ms = 0.0

    def ms(self, one: Configuration) -> float:
        each = self.image_ms + self.core_ms / one.cores
        if one.share:
            each += self.gpu_ms * WHOLE_GPU / one.share
        return self.batch_ms + self.batch_core_ms / one.cores + one.batch * each


@dataclass(frozen=True, slots=True)
class Operator:
    """The profile of an operator: its times on cores alone, and beside a GPU, None where it does not use one."""

    name: str
    cpu: Times
    gpu: Times | None = None

    def ms(self, one: Configuration) -> float:
        return (self.gpu if self.gpu is not None and one.share else self.cpu).ms(one)


class Part(Protocol):
    """A part of a network: an operator, a chain, or branches."""

    def ms(self, one: Configuration) -> float: ...


@dataclass(frozen=True, slots=True)
class Chain:
    """Parts that run one after another: their times add up."""

    parts: Sequence[Part]

    def ms(self, one: Configuration) -> float:
        return sum(part.ms(one) for part in self.parts)


@dataclass(frozen=True, slots=True)
class Branches:
    """Parts that run side by side: the slowest counts."""

    parts: Sequence[Part]

    def ms(self, one: Configuration) -> float:
        return max(part.ms(one) for part in self.parts)


def exec_s(network: Part, one: Configuration, offset: float = SAFETY) -> float:
    """Return the predicted seconds of a full batch, with `offset` of them added (0.5 and 1 are OP1.5 and OP2)."""
    return network.ms(one) * (1 + offset) / MS_PER_S
