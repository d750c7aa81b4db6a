"""The handlers of Gillis's functions."""

from __future__ import annotations

from typing import Any

from serfer_bench.study.baselines.handlers.environment import Environment
from serfer_bench.study.baselines.handlers.gillis_master import Master
from serfer_bench.study.baselines.handlers.gillis_worker import work

_ENVIRONMENT = Environment.of_this_process()
_MASTER = Master(_ENVIRONMENT)  # its threads start when it first forks


def master(event: Any, context: Any) -> dict[str, Any]:  # noqa: ANN401, ARG001 - awslambdaric's signature
    return _MASTER.handle(event)


def worker(event: Any, context: Any) -> dict[str, Any]:  # noqa: ANN401, ARG001 - awslambdaric's signature
    return work(event, _ENVIRONMENT)
