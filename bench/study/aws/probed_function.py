"""The function that is probed, as its owner changes it: its memory, its package, and a version with a snapshot.

Every change makes Lambda start new environments: those of before take no further invocation of it.
"""

from __future__ import annotations

import io
import secrets
import zipfile
from pathlib import Path
from typing import Any

from serfer.core.errors import UnavailableError

_REFUSED = frozenset(
    {
        "InvalidParameterValueException",
        "UnsupportedMediaTypeException",
        "CodeStorageExceededException",
        "RequestEntityTooLargeException",  # a zip of more than 50 MB
    }
)


class RefusedError(UnavailableError):
    """AWS refuses a change: it is not offered here, or beyond what the account may have."""


class ProbedFunction:
    """A function by its name, over a boto3 client of Lambda; `code` is the directory of its own package.

    Each call blocks until Lambda has made the change. Raises RefusedError for what Lambda does not take.
    """

    def __init__(self, client: Any, name: str, code: Path) -> None:  # noqa: ANN401 - boto3 has no types here
        self._client = client
        self.name = name
        self._code = code
        self._renewed = False

    def environments(self) -> int:
        limits = self._client.get_account_settings()["AccountLimit"]
        return int(limits.get("UnreservedConcurrentExecutions", limits["ConcurrentExecutions"]))

    def set_memory(self, memory_mb: int) -> None:
        self._change("update_function_configuration", MemorySize=memory_mb)

    def renew(self, memory_mb: int) -> None:
        """Have the next invocations start environments: with a MB less than `memory_mb`, and without it the next time.

        The sandbox of an environment has the function's memory, so that no old one can be of use.
        """
        self._renewed = not self._renewed
        self.set_memory(memory_mb - self._renewed)

    def pad(self, size: int) -> None:
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w") as archive:
            for path in sorted(self._code.rglob("*")):
                if path.is_file():
                    archive.write(path, path.relative_to(self._code))
            if size:
                archive.writestr("padding", secrets.token_bytes(size))
        self._change("update_function_code", ZipFile=buffer.getvalue())

    def publish_snapshot(self) -> str:
        self._change("update_function_configuration", SnapStart={"ApplyOn": "PublishedVersions"})
        version = self._call("publish_version")["Version"]
        self._client.get_waiter("published_version_active").wait(FunctionName=self.name, Qualifier=version)
        return f"{self.name}:{version}"

    def _change(self, operation: str, **given: Any) -> None:  # noqa: ANN401 - of boto3
        self._call(operation, **given)
        self._client.get_waiter("function_updated_v2").wait(FunctionName=self.name)

    def _call(self, operation: str, **given: Any) -> Any:  # noqa: ANN401 - of boto3
        from botocore.exceptions import ClientError  # noqa: PLC0415 - the extra `deploy`

        try:
            return getattr(self._client, operation)(FunctionName=self.name, **given)
        except ClientError as error:
            refusal = error.response.get("Error", {})
            if refusal.get("Code") not in _REFUSED:
                raise
            raise RefusedError(str(refusal.get("Message", error))) from error
