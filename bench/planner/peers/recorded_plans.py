"""Plans of Gillis's and MPHB's programs, run on 2026-11-28 by `programs.run_program` on their checkouts.

Gillis's at commit 2244da4, MPHB's at 37fed57, both with the coefficients of AWS Lambda and their own limits of memory,
1,400 and 2,048 MB; networks as in networks.py. These are results, not code of theirs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from serfer_bench.planner.peers.programs import Stage, TheirPlan

_ALONE: Final = 1, 1, False, True
_HALVES: Final = 1, 2, False, True
_QUARTERS: Final = 2, 2, False, True

RECORDED: Final[Mapping[str, Mapping[str, TheirPlan]]] = {
    "Gillis": {
        "vgg11": TheirPlan(16, 505.48457527, 1200, (Stage(0, 10, *_QUARTERS), Stage(10, 16, *_ALONE))),
        "vgg16": TheirPlan(21, 761.18636921, 2000, (Stage(0, 14, *_QUARTERS), Stage(14, 21, *_ALONE))),
        "resnet50": TheirPlan(36, 350.81601565, 400, (Stage(0, 36, *_ALONE),)),
        "wrn50-4": TheirPlan(
            36,
            2893.25338296,
            7700,
            (Stage(0, 18, 2, 2, columns=False, here=False), Stage(18, 30, *_HALVES), Stage(30, 36, *_ALONE)),
        ),
        "wrn50-5": TheirPlan(
            36,
            4384.47419696,
            12800,
            (
                Stage(0, 18, *_QUARTERS),
                Stage(18, 19, *_ALONE),
                Stage(19, 30, 2, 2, columns=False, here=False),
                Stage(30, 35, *_ALONE),
                Stage(35, 36, 1, 1, columns=False, here=False),
            ),
        ),
    },
    "MPHB": {
        "vgg11": TheirPlan(16, 597.32202578, 1.16367053e-05, (Stage(0, 10, *_HALVES), Stage(10, 16, *_ALONE))),
        "vgg16": TheirPlan(21, 955.30578769, 2.04576829e-05, (Stage(0, 14, *_HALVES), Stage(14, 21, *_ALONE))),
        "resnet50": TheirPlan(36, 350.81601565, 4.65085901e-06, (Stage(0, 36, *_ALONE),)),
        "wrn50-4": TheirPlan(
            36, 3305.82573516, 7.53052182e-05, (Stage(0, 18, *_HALVES), Stage(18, 30, *_HALVES), Stage(30, 36, *_ALONE))
        ),
        "wrn50-5": TheirPlan(
            36,
            5109.36978181,
            1.31087808e-04,
            (
                Stage(0, 18, *_HALVES),
                Stage(18, 30, *_HALVES),
                Stage(30, 34, 1, 2, columns=False, here=False),
                Stage(34, 36, *_ALONE),
            ),
        ),
    },
}
"""By program, then by network: milliseconds, and cost in its own unit, milliseconds or Alibaba's dollars."""
