"""Has the policies of a pool learn values from their load, each in its own process, where the extra is installed."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serfer.control.policy import Policy
from serfer.control.values.trainer import Trainable
from serfer.fleet.log_events import log_event
from serfer.learn.trainers import BackgroundTrainer, KeptTrainer, can_learn


class Learning:
    """The trainers of a pool's policies; what they learn from a history is kept in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._trainers: list[BackgroundTrainer] = []

    def join(self, policy: Policy) -> None:
        """Have a policy learn in the background."""
        if isinstance(policy, Trainable) and can_learn():
            trainer = BackgroundTrainer(lambda message: _report(policy, message))
            self._trainers.append(trainer)
            policy.learn_by(trainer)

    @contextmanager
    def at_once(self, policy: Policy) -> Iterator[None]:
        """Have a policy that goes through a history wait for what it learns, and learn in the background then."""
        if isinstance(policy, Trainable) and can_learn():
            policy.learn_by(KeptTrainer(self._directory))
        yield
        self.join(policy)

    def close(self) -> None:
        """End the processes that run."""
        for trainer in self._trainers:
            trainer.close()


def _report(policy: Policy, message: str) -> None:
    log_event(logging.WARNING, "policy values", policy=policy.name, message=message)
