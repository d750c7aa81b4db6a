"""Instruction sets that 8-bit arithmetic depends on: on which an accuracy was measured, and on which it is served.

ONNX Runtime has other 8-bit kernels for each. Those for x86 without VNNI add pairs of products in 16 bits, where they
saturate, so that a network's answers, and its accuracy, may differ (onnxruntime issues 6004, 14642, 26324).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

INSTRUCTION_SETS: Final = (
    *("sse4_1", "avx2", "avx_vnni", "avx512bw", "avx512_vnni", "amx_int8"),
    *("asimd", "asimddp", "i8mm", "sve"),
)
"""What the kernel calls them, of x86 and of ARM, the oldest first."""
CUDA: Final = "cuda"
"""In place of them, for a network on a GPU."""
_LINES: Final = ("flags", "Features")


def instruction_sets_in(cpuinfo: str) -> tuple[str, ...]:
    """Return those of INSTRUCTION_SETS that the text of /proc/cpuinfo has of its first processor."""
    for line in cpuinfo.splitlines():
        name, _, flags = line.partition(":")
        if name.strip() in _LINES:
            has = set(flags.split())
            return tuple(known for known in INSTRUCTION_SETS if known in has)
    return ()


def caution(measured_on: Sequence[str], here: Sequence[str]) -> str:
    """Return why an accuracy in 8 bits that was measured elsewhere may be another here; empty where it is not."""
    if not measured_on:
        return f"on which processor its accuracy was measured is not known, this one has {_listed(here)}"
    if not here:
        return f"its accuracy was measured with {_listed(measured_on)}, what this processor has is not known"
    lacks = [known for known in measured_on if known not in here]
    adds = [known for known in here if known not in measured_on]
    differs = [*([f"lacks {_listed(lacks)}"] if lacks else []), *([f"adds {_listed(adds)}"] if adds else [])]
    own = " and ".join(differs)
    return f"its accuracy was measured with {_listed(measured_on)}, this processor {own}" if own else ""


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names) or "none that are known"
