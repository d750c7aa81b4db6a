"""The handlers of SerFer's functions; SERFER_STORE is the store's URL."""

from __future__ import annotations

import os
from typing import Any

from serfer.storage import open_store
from serfer_bench.study.baselines.handlers.environment import Environment
from serfer_bench.study.baselines.handlers.lambda_layer import run_task

_ENVIRONMENT = Environment.of_this_process()
_STORE = open_store(os.environ["SERFER_STORE"])


def published(event: Any, context: Any) -> None:  # noqa: ANN401, ARG001 - awslambdaric's signature
    run_task(event, _ENVIRONMENT.without_sessions(), _STORE)


def repaired(event: Any, context: Any) -> None:  # noqa: ANN401, ARG001 - awslambdaric's signature
    run_task(event, _ENVIRONMENT, _STORE)
