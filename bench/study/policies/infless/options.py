"""The configurations of a function that keep its SLO: AvailableConfig of Algorithm 1 (3.4), made once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from serfer.core.costs.operator_costs import SAFETY
from serfer_bench.study.policies.infless.profiles import Configuration, Part, exec_s
from serfer_bench.study.policies.infless.rates import exact_range, keeps_slo, whole_batches


@dataclass(frozen=True, slots=True)
class Sizes:
    """Values that configurations are made of, and beta, what a core is worth in percent of a GPU (by FLOPS, 3.4).

    Batches have at most `images_per_core` images for each core.
    """

    batches: tuple[int, ...]
    cores: tuple[int, ...]
    shares: tuple[int, ...]
    beta: float
    images_per_core: float = math.inf

    def units(self, cores: float, share: float) -> float:
        """Return resources as one number: beta * c + g."""
        return self.beta * cores + share


@dataclass(frozen=True, slots=True)
class Option:
    """A configuration with its predicted seconds, the rates that it takes, and what it occupies (beta * c + g)."""

    configuration: Configuration
    exec_s: float
    low: float
    up: float
    units: float

    @property
    def efficiency(self) -> float:
        return self.up / self.units


@dataclass(frozen=True)
class Function:
    """A deployed function: its network, its SLO, and what its instances may look like, largest batches first."""

    name: str
    network: Part
    slo_s: float
    options: tuple[Option, ...]


def function_of(
    name: str, network: Part, slo_s: float, sizes: Sizes, *, offset: float = SAFETY, rounded: bool = False
) -> Function:
    """Return a function with every configuration that keeps its SLO; `rounded` takes equation 1 as it is printed."""
    made = []
    for configuration in _configurations(sizes):
        seconds = exec_s(network, configuration, offset)
        if not keeps_slo(seconds, slo_s, configuration.batch):
            continue
        rates = exact_range(seconds, slo_s, configuration.batch)
        if rounded and configuration.batch > 1:
            rates = whole_batches(seconds, slo_s, configuration.batch)
        if 0 < rates.up >= rates.low:
            made.append(
                Option(
                    configuration, seconds, rates.low, rates.up, sizes.units(configuration.cores, configuration.share)
                )
            )
    return Function(name, network, slo_s, tuple(made))


def fixed_option(network: Part, one: Configuration, sizes: Sizes, *, offset: float = SAFETY) -> Option:
    seconds = exec_s(network, one, offset)
    return Option(one, seconds, 0.0, one.batch / seconds, sizes.units(one.cores, one.share))


def _configurations(sizes: Sizes) -> Sequence[Configuration]:
    return [
        Configuration(batch, cores, share)
        for batch in sorted(sizes.batches, reverse=True)
        for cores in sorted(sizes.cores)
        for share in sorted(sizes.shares)
        if batch <= sizes.images_per_core * cores
    ]
