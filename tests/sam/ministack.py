"""ministack as an AWS account on loopback: CloudFormation, IAM, S3, Lambda, Step Functions, API Gateway.

It runs under the Python that Lambda has, because it starts a function's process with its own interpreter. Its own
packages are on `sys.path` of that one process, not in PYTHONPATH, so that a function finds in its layers what it needs
or fails, as in AWS, whose runtimes have boto3 besides. It has no service for s3express, caches and fleets, decides
nothing about permissions, and its client for functions is not AWS's own: test_built.py runs that.
"""

import os
import subprocess
import sys
from pathlib import Path

import boto3
import pytest

from serfer.local.die_with_parent import dying_with_me
from serfer.local.lambda_.function import ACCOUNT, REGION
from serfer.local.server import free_port
from serfer.packaging.compiling import interpreter
from tests.sam.ministack_server import MinistackServer

PACKAGES = Path(sys.prefix) / "ministack-python3.13"
_SDK = ("boto3", "botocore", "dateutil", "jmespath", "s3transfer", "six.py", "urllib3")  # that Lambda's runtimes have
_RUN = """\
import sys
sys.path.insert(0, sys.argv.pop(1))
from hypercorn.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


def python_of_ministack() -> Path:
    """Return the Python that runs it; skips the test where `make setup` could not set it up."""
    python = interpreter("python3.13")
    if python is None:
        pytest.skip("there is no python3.13: make setup brings it where apt is")
    if not (PACKAGES / "ministack").is_dir():
        pytest.skip("there is no ministack for python3.13: run make setup")
    return python


class Ministack(MinistackServer):
    """An account whose functions run; what they unpack lies in `directory`."""

    READY_S = 120.0

    def __init__(self, directory: Path, python: Path) -> None:
        self.port = free_port()
        self._log = (directory / "ministack.log").open("wb")
        (directory / "tmp").mkdir()
        (directory / "sdk").mkdir()
        for name in _SDK:
            (directory / "sdk" / name).symlink_to(PACKAGES / name)
        self._process = subprocess.Popen(
            dying_with_me(
                *(str(python), "-c", _RUN, str(PACKAGES)),
                *("--workers", "0", "--bind", f"127.0.0.1:{self.port}", "ministack.app:app"),
            ),
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env={
                "PATH": os.environ["PATH"],
                "TMPDIR": str(directory / "tmp"),
                "PYTHONPATH": str(directory / "sdk"),
                "GATEWAY_PORT": str(self.port),
                "MINISTACK_ACCOUNT_ID": ACCOUNT,
                "MINISTACK_REGION": REGION,
                "IOT_MTLS_ENABLED": "0",  # no second port
                "SFTP_ENABLED": "0",
            },
        )
        if not self._comes_up():
            self.stop()
            pytest.fail((directory / "ministack.log").read_text(errors="replace")[-2000:])

    def stop(self) -> None:
        """Kill it; its functions' processes end as they read the end of their input."""
        super().stop()
        self._log.close()

    @property
    def environment(self) -> dict[str, str]:
        return {**self.variables, "AWS_DISABLE_HOST_PREFIX_INJECTION": "true", "SAM_CLI_TELEMETRY": "0"}

    def client(self, service: str):
        return boto3.client(
            service,
            region_name=REGION,
            endpoint_url=self.environment["AWS_ENDPOINT_URL"],
            aws_access_key_id="testing",
            aws_secret_access_key="testing",  # noqa: S106 - it checks none
        )

    def api(self, url: str) -> str:
        """Return where a REST API answers here that has the URL https://ID.execute-api.REGION.amazonaws.com/STAGE."""
        host, _, stage = url.removeprefix("https://").partition("/")
        return f"{self.environment['AWS_ENDPOINT_URL']}/_aws/execute-api/{host.partition('.')[0]}/{stage}"
