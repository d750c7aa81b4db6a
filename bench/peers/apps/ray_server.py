"""Ray Serve: a replica for each worker behind its HTTP proxy.

Its guide (docs.ray.io/en/latest/serve/advanced-guides/performance.html): a core for each replica, handlers that are
async, RAY_SERVE_THROUGHPUT_OPTIMIZED, which the caller sets. HAProxy in front is left out: no package brings it. The
store of objects, which these requests do not use, is as small as Ray lets it be, and the dashboard is off: both save
memory.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import ray
from ray import serve
from starlette.requests import Request

from serfer_bench.peers.apps.classifier import PORT, WORKERS, Classifier

_LEAST_OBJECTS = 80 << 20  # bytes; Ray wants 75 MiB


class Deployment:
    """The body of a request is an image."""

    def __init__(self) -> None:
        self._classifier = Classifier.of_variables()

    async def __call__(self, request: Request) -> dict[str, Any]:
        return self._classifier.answer(await request.body())


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    ray.init(
        num_cpus=int(os.environ[WORKERS]),
        include_dashboard=False,
        object_store_memory=_LEAST_OBJECTS,
        logging_level="error",
        log_to_driver=False,
    )
    serve.start(http_options={"host": "127.0.0.1", "port": int(os.environ[PORT])})
    deployment = serve.deployment(num_replicas=int(os.environ[WORKERS]), ray_actor_options={"num_cpus": 1})(Deployment)
    try:
        serve.run(deployment.bind(), blocking=True)
    finally:
        ray.shutdown()
