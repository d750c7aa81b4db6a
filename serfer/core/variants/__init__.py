"""Variants of an application's networks, what a query may ask of them, and the record in which they are registered.

    application "faces"
    ├── networks        resnet18 v1, resnet18 v2, mobilenet-v2 v1: what was registered, each with its variants
    │                   variant: plan or instance, precision, memory or batch; accuracy, latency, dollars
    ├── releases        1: {resnet18: v1}   2: {resnet18: v1, mobilenet-v2: v1}
    ├── live            the release whose variants answer queries: 2
    └── canary          versions that answer a share of them instead: {resnet18: v2, mobilenet-v2: v1}, a tenth

An application (INFaaS, 3.1: appID) is one record, which its writers replace by compare-and-set: a network version
appears in it with all of its variants or not at all.
"""

from serfer.core.http_messages import NO_OBJECTIVES, Objectives
from serfer.core.variants.application import (
    FORMAT,
    MAX_NETWORKS,
    MAX_RELEASES,
    MAX_VARIANTS,
    NAME,
    Application,
    Canary,
    CanaryLimits,
    NetworkVersion,
    Release,
    Validation,
    check_application,
    check_variant,
)
from serfer.core.variants.variant import (
    CUDA,
    INSTRUCTION_SETS,
    PRECISIONS,
    Accuracy,
    Figure,
    Place,
    Selection,
    SelectionReason,
    Source,
    Variant,
    VariantState,
    caution,
    instruction_sets_in,
)
