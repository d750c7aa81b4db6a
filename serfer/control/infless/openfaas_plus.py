"""OpenFaaS+: a request for each instance, 2 cores and 10% of a GPU each, whatever the function (INFless, 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from serfer.control.infless.fleet import FrontQueue
from serfer.control.infless.options import Function, Option, Sizes, fixed_option
from serfer.control.infless.profiles import Configuration
from serfer.control.infless.servers import Servers
from serfer.control.infless.uniform import KEEP_ALIVE_S, Uniform

INSTANCE: Final = Configuration(batch=1, cores=2, share=10)
_NO_WAIT: Final = FrontQueue(1, 0.0)


class OpenFaasPlus(Uniform):
    """Scales by the rate alone, without batches, SLO or profiles beyond how long a request takes."""

    name = "openfaas-plus"

    def __init__(
        self,
        functions: Sequence[Function],
        servers: Servers,
        sizes: Sizes,
        *,
        offset: float,
        keep_alive_s: float = KEEP_ALIVE_S,
    ) -> None:
        super().__init__(functions, servers, keep_alive_s=keep_alive_s)
        self._options = [fixed_option(one.network, INSTANCE, sizes, offset=offset) for one in functions]

    def option(self, function: int, rate: float) -> Option:
        """Return the one kind of instance."""
        del rate
        return self._options[function]

    def front(self, function: int) -> FrontQueue:
        """Return a buffer that keeps nothing back."""
        del function
        return _NO_WAIT
