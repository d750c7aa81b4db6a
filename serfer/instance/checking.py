"""Does an instance answer as the plan's unsplit network does here, in fp32 on a processor (rule 1)?"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from serfer.core.errors import WrongAnswerError
from serfer.core.exactness import TOLERANCE, Difference, difference
from serfer.core.plan import Plan
from serfer.core.plan.answers import Answer
from serfer.instance.network import Array, Network
from serfer.pipeline.reference import unsplit

_IMAGES = 2


def expected(plan: Plan, directory: Path) -> Answer:
    """Return what the unsplit network of a plan makes of noise; it is in memory only meanwhile."""
    return unsplit(plan, directory)(_noise(plan))


def compare(plan: Plan, network: Network, answer: Answer) -> Difference:
    """Measure how far a network's answers are from `expected` ones.

    Raises WrongAnswerError where fp32 breaks rule 1: then it must not serve. What fp16 loses is for the caller to say.
    """
    deviation = difference(network.run(_noise(plan)), answer)
    if network.precision == "fp32" and not deviation.exact:
        raise WrongAnswerError(
            f"{plan.model} on {network.device} differs from the unsplit network by {deviation.error:.2g} of the "
            f"logits' range, more than {TOLERANCE:g}: use --device cpu"
        )
    return deviation


def _noise(plan: Plan) -> Array:
    shape = plan.input
    size = (_IMAGES, shape.channels, shape.height, shape.width)
    return np.random.default_rng(0).standard_normal(size, dtype=np.float32)
