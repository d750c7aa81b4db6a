"""Does an instance answer as the plan's unsplit network does here, in fp32 on a processor (rule 1)?"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from serfer.core.errors import WrongAnswerError
from serfer.core.exactness import TOLERANCE, Difference, difference
from serfer.core.plan import Plan
from serfer.instance.network import Network
from serfer.pipeline.reference import unsplit

_IMAGES = 2


def compare(plan: Plan, directory: Path, network: Network) -> Difference:
    """Measure how far a network's answers are from the unsplit one's, on noise.

    Raises WrongAnswerError where fp32 breaks rule 1: then it must not serve. What fp16 loses is for the caller to say.
    """
    shape = plan.input
    size = (_IMAGES, shape.channels, shape.height, shape.width)
    batch = np.random.default_rng(0).standard_normal(size, dtype=np.float32)
    deviation = difference(network.run(batch), unsplit(plan, directory)(batch))
    if network.precision == "fp32" and not deviation.exact:
        raise WrongAnswerError(
            f"{plan.model} on {network.device} differs from the unsplit network by {deviation.error:.2g} of the "
            f"logits' range, more than {TOLERANCE:g}: use --device cpu"
        )
    return deviation
