"""What an EC2 instance is told about itself: the metadata service's second version, which wants a token."""

from __future__ import annotations

import http.client
import re
from contextlib import closing
from dataclasses import dataclass
from urllib.parse import urlsplit

from serfer.core.errors import UnavailableError

_ENDPOINT = "http://169.254.169.254"
_WAIT_S = 2.0
_MOST_BYTES = 1024
_TOKEN_S = 60
_ID = re.compile(r"i-[0-9a-f]{8,32}")
_REGION = re.compile(r"[a-z]{2,4}(-[a-z]{2,12})+-\d{1,2}")
_TOKEN = re.compile(r"[A-Za-z0-9+/=_-]{1,512}")


@dataclass(frozen=True)
class ThisInstance:
    """The machine that this process runs on, by EC2's id, and its region."""

    id: str
    region: str


def this_instance() -> ThisInstance:
    """Ask the metadata service, at AWS_EC2_METADATA_SERVICE_ENDPOINT or its usual address, for a few seconds at most.

    Raises UnavailableError where it doesn't answer, or answers what can't be.
    """
    endpoint = _endpoint()
    try:
        token = _ask(endpoint, "PUT", "/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_S)})
        _check(_TOKEN, token, "token")
        signed = {"X-aws-ec2-metadata-token": token}
        name = _check(_ID, _ask(endpoint, "GET", "/latest/meta-data/instance-id", signed), "instance id")
        region = _check(_REGION, _ask(endpoint, "GET", "/latest/meta-data/placement/region", signed), "region")
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UnavailableError(
            f"AWS_EC2_METADATA_SERVICE_ENDPOINT: no metadata service answers at {endpoint}: {reason}"
        ) from error
    return ThisInstance(name, region)


def _endpoint() -> str:
    """Return the service's address as botocore knows it."""
    from botocore.session import get_session  # noqa: PLC0415 - only instances of EC2 need botocore

    return str(get_session().get_config_variable("ec2_metadata_service_endpoint") or _ENDPOINT).rstrip("/")


def _ask(endpoint: str, method: str, path: str, headers: dict[str, str]) -> str:
    """Return a text of the service's; raises OSError, HTTPException or ValueError."""
    address = urlsplit(endpoint)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=_WAIT_S)
    with closing(connection):
        connection.request(method, address.path + path, headers=headers)
        answer = connection.getresponse()
        text = answer.read(_MOST_BYTES).decode("ascii").strip()
    if answer.status != http.client.OK:
        raise ValueError(f"it answers {answer.status} to {method} {path}")
    return text


def _check(pattern: re.Pattern[str], text: str, what: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(f"what it gives is no {what}")
    return text
