"""What the entry points of services are given: an address, and the choices by which models are opened."""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from serfer.local.server import listen

if TYPE_CHECKING:
    from serfer.applications.opening import ApplicationOptions
    from serfer.fleet.open_pool import Routing
    from serfer.settings import Settings
    from serfer.wiring.deployed import Deployment
    from serfer.wiring.options import Choices


@dataclass(frozen=True)
class Opening:
    """The choices of every model, as for `serfer.open`; `routing` is the first one's alone.

    `applications` are served beside the models. `deployment` is the stack, once it was asked about.
    """

    choices: Choices
    routing: Routing | None = None
    applications: ApplicationOptions | None = None
    deployment: Deployment | None = None


@dataclass(frozen=True)
class Address:
    """The address to listen at; port 0 is any free one.

    `state`, the numbers of ServingState, and `listener`, a descriptor, are of the parent that starts this process again
    (local/supervisor.py), if any: behind a balancer it has no listener.
    """

    host: str
    port: int
    state: memoryview | None = None
    listener: int | None = None

    @property
    def balanced(self) -> bool:
        return self.state is not None and self.listener is None

    def answers_to(self, settings: Settings) -> tuple[str, ...] | None:
        """Return which hosts a service here answers to; None for any, where API keys say who may ask."""
        return None if settings.keys_file else (self.host, *settings.allow_hosts)

    def listen(self) -> socket.socket:
        """Return the listening socket; raises UnavailableError where the address cannot be had."""
        return listen(self.host, self.port) if self.listener is None else socket.socket(fileno=self.listener)
