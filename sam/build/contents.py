"""What the layers hold: the worker's as the splitter packs it, the driver's besides."""

from __future__ import annotations

from serfer.packaging.manifest import WORKER, Contents

DRIVER = Contents(
    packages=("drivers", "serfer", "storage"),
    distributions=(
        *("fastapi", "starlette", "anyio", "idna", "annotated-doc", "mangum", "python-multipart"),
        *("uvicorn", "click", "h11"),  # serfer.api.http.server, which the fleet runs
        *("pydantic", "pydantic_core", "pydantic-settings", "annotated-types", "typing_extensions"),
        *("typing-inspection", "python-dotenv"),
        *("aiohttp", "aiohappyeyeballs", "aiosignal", "attrs", "frozenlist", "multidict", "propcache", "yarl"),
        *("boto3", "botocore", "s3transfer", "jmespath", "python-dateutil", "six", "urllib3"),
        *("brotli", "msgpack", "numpy", "pillow", "prometheus_client", "redis"),
        *("opentelemetry-api", "opentelemetry-sdk", "opentelemetry-semantic-conventions", "opentelemetry-proto"),
        *("opentelemetry-exporter-otlp-proto-http", "opentelemetry-exporter-otlp-proto-common"),
        *("opentelemetry-exporter-otlp-common", "opentelemetry-exporter-http-transport"),
        *("googleapis-common-protos", "protobuf", "requests", "certifi", "charset-normalizer"),
    ),
    pruned=(
        *WORKER.pruned,
        "boto3/data/",
        *("serfer/cli/", "serfer/doctor/", "serfer/packaging/"),
        *("serfer/pipeline/verify.py", "serfer/wiring/local.py"),
    ),
    needed=(
        *(f"botocore/data/{name}.json" for name in ("_retry", "endpoints", "partitions", "sdk-default-configuration")),
        *(f"botocore/data/{service}/" for service in ("lambda", "s3", "stepfunctions", "sts")),
        *(f"botocore/data/{service}/" for service in ("autoscaling", "ec2")),  # which a GPU pool is asked by
    ),
)
CONTENTS = {"worker": WORKER, "driver": DRIVER}
"""What each layer holds, by the name of its lock file."""
