"""What has a model of values learnt, elsewhere: the policy gives it the past, and asks for the model later."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from serfer.control.values.load_record import LoadRecord


class Training(Protocol):
    """A training that has begun."""

    def model(self) -> bytes | None:
        """Return the model's file; None where it is not done, or failed."""
        ...


class Trainer(Protocol):
    """Begins trainings; deep copies of a policy share it."""

    def begin(self, record: LoadRecord) -> Training:
        """Begin to learn from a load, in the background."""
        ...


@runtime_checkable
class Trainable(Protocol):
    """A policy that has models learnt while it decides."""

    def learn_by(self, trainer: Trainer) -> None:
        """Have models learnt from now on."""
        ...
