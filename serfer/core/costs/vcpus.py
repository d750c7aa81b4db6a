"""Processors of a function by its memory: the one rule, for predictions and for workers.

Lambda gives processor time in proportion to memory: at `memory_per_vcpu` MB (1769) "the equivalent of one vCPU (one
vCPU-second of credits per second)" (AWS Lambda Developer Guide, Configure Lambda function memory). So 3000 MB are 1.7
vCPUs: two processors are visible, and all threads together get 1.7 seconds of them a second. Hence

    threads        = vcpus, rounded up: with fewer, some of what is paid for could never be used
    serial work    runs at the speed of one processor, or of the share of one
    parallel work  runs at the speed of all vCPUs, whole or not, as no more than that is granted to its threads
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def vcpus(memory_mb: Floats | float, memory_per_vcpu: float) -> Floats:
    return np.asarray(memory_mb) / memory_per_vcpu


def threads(memory_mb: float, memory_per_vcpu: float) -> int:
    return max(1, math.ceil(memory_mb / memory_per_vcpu))


def compute_seconds(serial: Floats | float, parallel: Floats | float, granted: Floats | float) -> Floats:
    """Return how long work takes on so many vCPUs that takes `serial` + `parallel` seconds on one (Amdahl's law)."""
    share = np.asarray(granted)
    return np.asarray(serial / np.minimum(1.0, share) + parallel / share)
