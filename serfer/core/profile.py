"""STUB."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    macs: int
    touched: int


@dataclass(frozen=True)
class Profiles:
    def parts(self, work, batch=1):
        return work.touched / 3e10, work.macs / 1e11


def shipped_profiles():
    return Profiles()
