"""The values of `--instances`: local, static:URL,URL and ec2:GROUP."""

from __future__ import annotations

import re
from collections.abc import Sequence
from ipaddress import IPv4Address
from pathlib import Path
from urllib.parse import urlsplit

from serfer.core.errors import UsageError
from serfer.fleet.provisioners.provisioner import Provisioner

PORT = 8000
"""The port of an Auto Scaling group's instances."""
_MAX_URLS = 256
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+=@-]{0,254}")
_PASSWORD = re.compile(r"//[^/@]*@")
_WANTED = "it is local, static:URL,URL or ec2:GROUP"


def open_provisioner(
    spec: str,
    *,
    command: Sequence[str] = (),
    registry: Path | None = None,
    boot_delay_s: float = 0.0,
    region: str | None = None,
    port: int = PORT,
) -> Provisioner:
    """Return the provisioner that `--instances` names; nothing is started, and no request to AWS is sent yet.

    `local` takes `command`, `registry` and `boot_delay_s` (LocalProvisioner), `ec2:GROUP` takes `region`, by default
    boto3's, and `port`. Raises UsageError for a spec that is none of these.
    """
    kind, _, argument = spec.partition(":")
    if kind == "local" and not argument:
        if not command or registry is None:
            raise UsageError("--instances local: only what can be started here runs here: serve a --plan or a --model")
        from serfer.fleet.provisioners.local import LocalProvisioner  # noqa: PLC0415 - Linux only, and only this one needs it

        return LocalProvisioner(command, registry, boot_delay_s=boot_delay_s)
    if kind == "static":
        from serfer.fleet.provisioners.static import StaticProvisioner  # noqa: PLC0415 - only this one needs it

        return StaticProvisioner(_urls(argument))
    if kind == "ec2":
        if not _GROUP.fullmatch(argument):
            raise UsageError(f"--instances {_shown(spec)}: there should be an Auto Scaling group's name behind ec2:")
        from serfer.fleet.provisioners.auto_scaling import AutoScalingProvisioner  # noqa: PLC0415 - the only one that needs boto3

        return AutoScalingProvisioner(argument, region=region, port=port)
    raise UsageError(f"--instances {_shown(spec)}: {_WANTED}")


def admits(spec: str, url: str) -> bool:
    """Return whether an instance of such a pool may be at `url`, which was read from a store that others may write."""
    kind, _, argument = spec.partition(":")
    if kind == "static":
        return url in _urls(argument)
    try:
        host = IPv4Address(urlsplit(url).hostname or "")
    except ValueError:
        return False
    if kind == "local":
        return host.is_loopback
    return url == f"http://{host}:{PORT}" and not (host.is_loopback or host.is_link_local)


def _urls(argument: str) -> list[str]:
    """Return the addresses of a static pool, without the slashes at their ends."""
    urls = [url.strip().rstrip("/") for url in argument.split(",")]
    for url in urls:
        if not _is_address(url):
            raise UsageError(f"--instances static: {_shown(url)} is not an address such as http://10.0.0.7:8000")
    if len(set(urls)) < len(urls):
        raise UsageError("--instances static: an address is given twice")
    if len(urls) > _MAX_URLS:
        raise UsageError(f"--instances static: {len(urls)} addresses, at most {_MAX_URLS} can be used")
    return urls


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        return False
    whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and port != 0
    return whole and not ("@" in parts.netloc or parts.query or parts.fragment)


def _shown(text: str) -> str:
    """Return a value for an error message, without a password."""
    return repr(_PASSWORD.sub("//", text)[:80])
