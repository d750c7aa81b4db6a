"""Provisioning policies of papers, plugged in by `serfer.policies`, and what policies are held against."""

from typing import Final

NAMES: Final = (
    "break-even",
    "ski-rental",
    "serverless",
    "instances",
    "target-tracking",
    "target-tracking-stepwise",
    "sagemaker",
    "mark",
    "mark-spot",
    "nonuniform",
)
"""SerFer's own policies and those of papers."""
