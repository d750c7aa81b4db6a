"""The 175 variants of 22 architectures with which INFaaS was evaluated (appendix A, Table 8), as far as it has them.

From the paper: architectures, top-1 accuracies (BLEU for GNMT), numbers of variants and parameters; the ranges of
section 1 (loading 0.59 to 11 s, inference 1.5 ms to 5.7 s, $0.096 an hour for 2 vCPUs to $3.06 for a V100) and the
batch sizes of section 6 (1 to 64). Constructed, from a seed within those ranges: each variant's hardware, batch size,
latencies, memory and throughput. Variants of CPUs with a batch of 1 stand on functions, which the paper does not have.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

from serfer.core.variants import Accuracy, Figure, Place, Variant

IMAGES: Final = 50_000
"""Images of ImageNet's validation set."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A row of Table 8: accuracy in percent, and millions of parameters."""

    name: str
    accuracy: float
    variants: int
    parameters: float


ARCHITECTURES: Final = (
    Architecture("MobileNetV1", 70.4, 10, 4.254),
    Architecture("MobileNetV2", 71.3, 3, 3.539),
    Architecture("AlexNet", 56.6, 9, 62.378),
    Architecture("DenseNet121", 75.0, 12, 8.063),
    Architecture("DenseNet169", 76.2, 5, 14.308),
    Architecture("DenseNet201", 77.3, 5, 20.243),
    Architecture("ResNet50", 74.9, 19, 25.637),
    Architecture("ResNet50V2", 76.0, 4, 25.614),
    Architecture("ResNext50", 77.7, 3, 25.7),
    Architecture("ResNet101", 76.4, 12, 44.707),
    Architecture("ResNet101V2", 77.2, 4, 44.676),
    Architecture("ResNext101", 78.7, 3, 45.3),
    Architecture("ResNet152", 76.6, 12, 60.420),
    Architecture("ResNet152V2", 78.0, 4, 60.381),
    Architecture("VGG16", 71.3, 18, 138.358),
    Architecture("VGG19", 71.3, 12, 143.667),
    Architecture("InceptionV3", 77.9, 12, 23.852),
    Architecture("Xception", 79.0, 3, 22.910),
    Architecture("Inception-ResNetV2", 80.3, 10, 55.874),
    Architecture("NasNetMobile", 74.4, 3, 5.327),
    Architecture("NasNetLarge", 82.5, 3, 88.950),
    Architecture("GNMT", 24.5, 9, 210.0),
)
_KINDS: Final = (("cpu", 0.096, 1.0, 5700.0), ("inferentia", 0.362, 3.0, 120.0), ("gpu", 3.06, 1.5, 60.0))
"""Hardware: name, dollars an hour, and the range of a batch of one in ms."""
_BATCHES: Final = (1, 2, 4, 8, 16, 32, 64)
_LARGEST: Final = 210.0


def table8(seed: int = 0, more: int = 0) -> list[Variant]:
    chance = random.Random(seed)  # noqa: S311 - figures, no secret
    variants: list[Variant] = []
    for architecture in ARCHITECTURES:
        variants += [_variant(architecture, nth, chance) for nth in range(architecture.variants)]
    for nth in range(more):
        architecture = ARCHITECTURES[nth % len(ARCHITECTURES)]
        variants.append(_variant(architecture, architecture.variants + nth // len(ARCHITECTURES), chance))
    return variants


def _variant(architecture: Architecture, nth: int, chance: random.Random) -> Variant:
    """Return a variant: one for each kind of hardware first, then any; larger networks tend to be slower."""
    kind, usd_hour, least, most = _KINDS[nth] if nth < len(_KINDS) else chance.choice(_KINDS)
    batch = 1 if nth < len(_KINDS) else chance.choice(_BATCHES)
    size = (architecture.parameters / _LARGEST) ** 0.5
    one_ms = least * (most / least) ** (min(1.0, max(0.0, size * chance.uniform(0.7, 1.3))))
    latency_ms = min(5700.0, max(1.5, one_ms * (1 + (batch - 1) * chance.uniform(0.1, 0.6))))
    load_ms = min(11_000.0, max(590.0, 590.0 + 10_410.0 * size * chance.uniform(0.5, 1.2)))
    qps = 1000.0 * batch / latency_ms
    place = Place.FUNCTIONS if kind == "cpu" and batch == 1 else Place.INSTANCE
    precision = "fp32" if kind == "cpu" else "fp16"
    name = f"{architecture.name}-{kind}-b{batch}-{nth}"
    return Variant(
        name=name,
        network=architecture.name,
        version=1,
        place=place,
        precision=precision,
        artefact=name,
        plan=name,
        accuracy=Accuracy(round(IMAGES * architecture.accuracy / 100), IMAGES),
        latency_ms=Figure.predicted(latency_ms),
        load_ms=Figure.predicted(load_ms),
        peak_mb=Figure.predicted(architecture.parameters * (4 if precision == "fp32" else 2) * 2 + 10 * batch),
        qps=Figure.predicted(qps),
        usd=Figure.predicted(usd_hour / 3600 / qps),
        kind="" if place == Place.FUNCTIONS else kind,
        batch=batch,
        made=f"{kind}, batch {batch}",
    )
