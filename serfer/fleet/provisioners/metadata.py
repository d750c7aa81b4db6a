"""The id and region of the EC2 instance that this process runs on, from the instance metadata service (IMDSv2)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from botocore.exceptions import BotoCoreError
from botocore.session import get_session
from botocore.utils import IMDSFetcher

from serfer.core.errors import UnavailableError

_CONFIG = ("ec2_metadata_service_endpoint", "ec2_metadata_service_endpoint_mode")
_WAIT_S = 2
_ID = re.compile(r"i-[0-9a-f]{8,32}")
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]{2,12})+-\d{1,2}")


@dataclass(frozen=True)
class ThisInstance:
    """The machine that this process runs on, by EC2's id, and its region."""

    id: str
    region: str


class _Metadata(IMDSFetcher):
    """botocore's client; like its own subclasses, it reads a path with a token."""

    _RETRIES_EXCEEDED_ERROR_CLS = ValueError

    def read(self, path: str, pattern: re.Pattern[str]) -> str:
        """Return a text of the service's; raises BotoCoreError or ValueError where there is none like `pattern`."""
        token = self._fetch_metadata_token()  # type: ignore[attr-defined]
        if token is None:
            raise ValueError("it gives no token")
        text: str = self._get_request(f"latest/meta-data/{path}", None, token).text.strip()  # type: ignore[attr-defined]
        if not pattern.fullmatch(text):
            raise ValueError(f"it gives no valid {path}")
        return text


def this_instance() -> ThisInstance:
    """Ask the metadata service, at AWS_EC2_METADATA_SERVICE_ENDPOINT or its usual address, for a few seconds at most.

    Raises UnavailableError where it does not answer, or its response is not valid.
    """
    session = get_session()
    config = {name: session.get_config_variable(name) for name in _CONFIG}
    try:
        metadata = _Metadata(_WAIT_S, config=config)
        return ThisInstance(metadata.read("instance-id", _ID), metadata.read("placement/region", _REGION))
    except (BotoCoreError, ValueError) as error:
        raise UnavailableError(
            f"AWS_EC2_METADATA_SERVICE_ENDPOINT: no metadata service answers: {str(error) or 'no response'}"
        ) from error
