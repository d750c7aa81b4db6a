"""The values of `--instances`: a provisioner of the scenario's first type, or one for each type and market.

static:URL,URL                                            addresses, of the first type
ec2:GROUP                                                 an Auto Scaling group, of the first type
local                                                     processes here, of every type and market with a price
TYPE=ec2:GROUP,TYPE/spot=ec2:GROUP,TYPE=static:URL|URL    one for each type and market; TYPE=local, too
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from serfer.control.scenario import Market, Scenario
from serfer.core.errors import UsageError
from serfer.fleet.provisioners.provisioner import Provisioner, StaticProvisioner
from serfer.fleet.purchase import Purchase, purchases_of

PORT = 8000
"""The port of an Auto Scaling group's instances."""
LOCAL: Final = "local"
_MAX_URLS = 256
_MAX_TEXT = 64 * 1024
_GROUP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+=@-]{0,254}")
_PASSWORD = re.compile(r"//[^/@]*@")
_WANTED = "it is local, static:URL,URL, ec2:GROUP, or one for each type: TYPE=ec2:GROUP,TYPE/spot=ec2:GROUP"


def split_specs(text: str) -> list[tuple[str | None, str]]:
    """Return the specs of a value with the types that they are of, None for the first type of the scenario.

    Raises UsageError for a value that is too long, or that has an address or a group twice.
    """
    if len(text) > _MAX_TEXT:
        raise UsageError(f"--instances has {len(text):,} characters, at most {_MAX_TEXT:,} can be used")
    parts = _parts(text)
    groups = [spec for _, spec in parts if spec.startswith("ec2:")]
    urls = [url for _, spec in parts if spec.startswith("static:") for url in _urls(spec.partition(":")[2])]
    for several in (groups, urls):
        if len(set(several)) < len(several):
            twice = next(kind for kind in several if several.count(kind) > 1)
            raise UsageError(f"--instances {_shown(twice)} is given for two types: each has instances of its own")
    if len(urls) > _MAX_URLS:
        raise UsageError(f"--instances static: {len(urls)} addresses, at most {_MAX_URLS} can be used")
    return parts


def check_instances(text: str) -> list[tuple[str | None, str]]:
    """Return the specs; raises UsageError for what no scenario makes a value of `--instances`."""
    parts = split_specs(text)
    for _, spec in parts:
        open_provisioner(spec, command=(sys.executable,), registry=Path())
    return parts


def specs_by_purchase(text: str, scenario: Scenario) -> dict[Purchase, str]:
    """Return the spec of each type and market, as `open_provisioner` takes it.

    Raises UsageError for what `check_instances` refuses, for a type or a spot price that the scenario does not have,
    and for a type and market that are given twice.
    """
    parts = check_instances(text)
    if parts == [(None, LOCAL)]:
        return dict.fromkeys(purchases_of(scenario), LOCAL)
    specs: dict[Purchase, str] = {}
    for key, spec in parts:
        bought = Purchase(scenario.instance.name) if key is None else _purchase(key, scenario)
        if bought in specs:
            raise UsageError(f"--instances: {_shown(str(bought))} is given twice")
        specs[bought] = spec
    return specs


def _parts(text: str) -> list[tuple[str | None, str]]:
    if text.partition(":")[0] in {LOCAL, "static", "ec2"}:
        return [(None, text)]
    parts: list[tuple[str | None, str]] = []
    for part in text.split(","):
        key, equals, spec = part.strip().partition("=")
        if not equals or not key:
            raise UsageError(
                f"--instances {_shown(part)}: {_WANTED}; the addresses of TYPE=static:URL|URL are divided by |"
            )
        parts.append((key, spec.replace("|", ",") if spec.startswith("static:") else spec))
    return parts


def _purchase(key: str, scenario: Scenario) -> Purchase:
    names = [kind.name for kind in scenario.instances]
    name, _, market = key.rpartition("/")
    bought = Purchase(name, Market(market)) if key not in names and market in [*Market] else Purchase(key)
    if bought.kind not in names:
        raise UsageError(
            f"--instances {_shown(key)}: the scenario has no instance type of that name: it has {', '.join(names):.200}"
        )
    if bought not in purchases_of(scenario):
        raise UsageError(f"--instances {_shown(key)}: the scenario has no spot price for it (spot_usd_per_hour)")
    return bought


def open_provisioner(
    spec: str,
    *,
    command: Sequence[str] = (),
    registry: Path | None = None,
    label: str = LOCAL,
    boot_delay_s: float = 0.0,
) -> Provisioner:
    """Return the provisioner that a spec of `--instances` names; nothing is started, and no request to AWS is sent yet.

    `local` takes `command`, `registry`, `label` and `boot_delay_s` (LocalProvisioner). Raises UsageError for a spec
    that is none of these.
    """
    kind, _, argument = spec.partition(":")
    if spec == LOCAL:
        if not command or registry is None:
            raise UsageError("--instances local: only what can be started here runs here: serve a --plan or a --model")
        from serfer.fleet.provisioners.local import LocalProvisioner  # noqa: PLC0415 - Linux only, and only this one needs it

        return LocalProvisioner(command, registry, label=label, boot_delay_s=boot_delay_s)
    if kind == "static":
        return StaticProvisioner(_urls(argument))
    if kind == "ec2":
        if not _GROUP.fullmatch(argument):
            raise UsageError(f"--instances {_shown(spec)}: there should be an Auto Scaling group's name behind ec2:")
        from serfer.fleet.provisioners.auto_scaling import AutoScalingProvisioner  # noqa: PLC0415 - the only one that needs boto3

        return AutoScalingProvisioner(argument, PORT)
    raise UsageError(f"--instances {_shown(spec)}: {_WANTED}")


def admits(specs: Mapping[Purchase, str], bought: Purchase, url: str) -> bool:
    """Return whether an instance of a type may be at `url`, which was read from a store that others may write."""
    spec = specs.get(bought, "")
    kind, _, argument = spec.partition(":")
    if kind == "static":
        return url in _urls(argument)
    try:
        host = IPv4Address(urlsplit(url).hostname or "")
    except ValueError:
        return False
    if spec == LOCAL:
        return host.is_loopback
    return kind == "ec2" and url == f"http://{host}:{PORT}" and not (host.is_loopback or host.is_link_local)


def _urls(argument: str) -> list[str]:
    urls = [url.strip().rstrip("/") for url in argument.split(",")]
    for url in urls:
        if not _is_address(url):
            why = ": an instance's key goes into SERFER_INSTANCE_KEY" if "@" in url else ""
            raise UsageError(f"--instances static: {_shown(url)} is not an address such as http://10.0.0.7:8000{why}")
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
    return repr(_PASSWORD.sub("//", text)[:80])
