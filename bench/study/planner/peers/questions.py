"""What Gillis's and MPHB's programs are asked: their fastest plan, and Gillis's cheapest within a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from serfer.core.dataclass_codec import Bounds

Policy = Literal["fastest", "learnt", "best tried", "bayesian", "brute force"]
"""Both programs' dynamic programme, and Gillis's SLO-aware policies: reinforcement learning (`policy_rl.py`), and the
cheapest plan of all that its learning tried, which it does not keep; Bayesian optimisation (`policy_bayesian.py`); and
the search of `policy_bf.py` over all choices for the last layers."""


@dataclass(frozen=True)
class Question:
    """A policy, with its objective in seconds and its seed where it has them."""

    policy: Policy
    slo_s: Annotated[float, Bounds(0.0)] = 0.0
    seed: Annotated[int, Bounds(0, 10_000)] = 0


FASTEST: Final = Question("fastest")
OBJECTIVES_S: Final[Mapping[str, tuple[float, ...]]] = {"vgg11": (0.5, 0.6, 0.8), "vgg16": (0.8, 1.0, 1.5)}
"""By network: those of Gillis (`main.py` has 0.5 and 0.6 s for VGG-11) and MPHB up to the first that one function keeps
under their cost model, and one between. One function of ResNet-50 keeps all, and no plan of a Wide-ResNet does."""
SEEDS: Final = 5
_SEARCHED: Final = frozenset({("vgg11", 0.5), ("vgg11", 0.6)})
"""Where the slower policies are asked, too."""


def questions(network: str, objectives: Sequence[float]) -> list[Question]:
    asked = []
    for slo in objectives:
        policies: tuple[Policy, ...] = "learnt", "best tried"
        if (network, slo) in _SEARCHED:
            policies = *policies, "bayesian"
        asked += [Question(policy, slo, seed) for policy in policies for seed in range(SEEDS)]
        if (network, slo) in _SEARCHED:
            asked.append(Question("brute force", slo))
    return asked
