"""A pool of EC2 instances in an Auto Scaling group, read and changed through boto3.

    start: the group's desired capacity goes up         stop: one instance ends, and the capacity goes down with it
    an instance that gets no more requests ends itself the same way (release_this_instance)
    stop of one that AWS has not delivered yet: only the capacity goes down, never below the instances there are

    an instance that AWS ends, a spot instance that is taken away above all, drains as soon as the group says so: it is
    unhealthy or Terminating, with a termination hook or capacity rebalancing some minutes before its end
    while there are more than the desired capacity the group replaces some by itself (it rebalances): those on their way
    beyond it are not members yet, and none is ended, which would take the replacement's place from the group

Machines of a warm pool are not members: they are stopped, and Auto Scaling takes them first when the capacity goes up.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.parsers import ResponseParserError
from botocore.session import get_session
from botocore.utils import IMDSFetcher

from serfer.core.errors import UnavailableError
from serfer.fleet.provisioners.provisioner import Member, State

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


_CONNECT_S, _READ_S, _TRIES = 5, 10, 4
_MAX_IDS = 100  # in one question about addresses
_STATES: Mapping[str, State] = {"Pending": "booting", "InService": "serving"}
_NO_MEMBERS = ("Warmed:", "Terminated", "Detached")
_REQUESTED = "asked-"
_log = logging.getLogger(__name__)


class AutoScalingProvisioner:
    """Starts and stops the instances of one group in boto3's region, which serve at `port`.

    An instance that was requested and does not exist yet is a member too, called asked-1 and so on until it has its id.
    Methods raise UnavailableError where AWS refuses, or does not answer after a few tries.
    """

    def __init__(self, group: str, port: int) -> None:
        self._group = group
        self._port = port
        self._addresses: dict[str, str] = {}
        self._clients: dict[str, Any] = {}
        self._lock = Lock()
        self._capacity = Lock()  # a change is a look at the capacity and a request: one after the other
        self._logged: str | None = None

    async def members(self) -> list[Member]:
        return await asyncio.to_thread(self._members)

    async def start(self, count: int) -> None:
        """Raise the group's desired capacity by `count`, to its MaxSize at most; beyond that a line is logged."""
        await asyncio.to_thread(self._start, count)

    async def stop(self, name: str) -> bool:
        """End an instance of this group, and lower the desired capacity; its MinSize stays, and a line is logged."""
        stop = self._withdraw if name.startswith(_REQUESTED) else self._end
        return await asyncio.to_thread(stop, name)

    async def close(self) -> None:
        clients, self._clients = self._clients, {}
        for client in clients.values():
            await asyncio.to_thread(client.close)

    def _members(self) -> list[Member]:
        group = self._described()
        there = {instance["InstanceId"]: _state(instance) for instance in _instances(group)}
        booting = sorted(name for name, state in there.items() if state == "booting")
        for name in booting[max(0, len(booting) - _replacing(group)) :]:
            del there[name]
        addresses = self._known_addresses(there)
        members = [self._member(name, state, addresses.get(name)) for name, state in there.items()]
        coming = group["DesiredCapacity"] - _staying(group)
        return members + [Member(f"{_REQUESTED}{number}", None, "booting") for number in range(1, coming + 1)]

    def _member(self, name: str, state: State, address: str | None) -> Member:
        return Member(name, f"http://{address}:{self._port}" if address else None, state)

    def _start(self, count: int) -> None:
        with self._capacity:
            group = self._described()
            desired, limit = group["DesiredCapacity"], group["MaxSize"]
            wanted = min(desired + count, limit)
            if wanted < desired + count:
                self._say(
                    f"{self._name}: {count} more instances are wanted and {max(0, wanted - desired)} may be: "
                    f"its MaxSize is {limit}"
                )
            if wanted > desired:
                self._set_desired(wanted)

    def _withdraw(self, name: str) -> bool:
        with self._capacity:
            group = self._described()
            desired = group["DesiredCapacity"]
            if desired <= _staying(group) or self._at_min_size(group, name):
                return False
            self._set_desired(desired - 1)
            return True

    def _end(self, name: str) -> bool:
        """End an instance if it is one of this group's, for AWS would end any other group's as well."""
        with self._capacity:
            group = self._described()
            found = next((instance for instance in _instances(group) if instance["InstanceId"] == name), None)
            if found is None or _is_ending(found) or _replacing(group):
                return False
            if self._at_min_size(group, name):
                return False
            self._call(
                "autoscaling",
                "terminate_instance_in_auto_scaling_group",
                InstanceId=name,
                ShouldDecrementDesiredCapacity=True,
            )
            return True

    def _at_min_size(self, group: Mapping[str, Any], name: str) -> bool:
        if group["DesiredCapacity"] > group["MinSize"]:
            return False
        self._say(f"{self._name}: {name} could end and does not: the group's MinSize is {group['MinSize']}")
        return True

    def _set_desired(self, count: int) -> None:
        self._call("autoscaling", "set_desired_capacity", DesiredCapacity=count, AutoScalingGroupName=self._group)

    def _described(self) -> Mapping[str, Any]:
        response = self._call("autoscaling", "describe_auto_scaling_groups", AutoScalingGroupNames=[self._group])
        groups: list[Mapping[str, Any]] = response["AutoScalingGroups"]
        if not groups:
            region = self._client("autoscaling").meta.region_name
            raise UnavailableError(
                f"{self._name}: there is no Auto Scaling group of that name in {region}: correct it, or set "
                "AWS_PROFILE or AWS_DEFAULT_REGION"
            )
        return groups[0]

    def _known_addresses(self, names: Collection[str]) -> Mapping[str, str]:
        unknown = [name for name in names if name not in self._addresses]
        for start in range(0, len(unknown), _MAX_IDS):
            # By a filter, since ids that EC2 does not know yet would be an error otherwise.
            ids = [{"Name": "instance-id", "Values": unknown[start : start + _MAX_IDS]}]
            response = self._call("ec2", "describe_instances", Filters=ids)
            for each in (instance for some in response["Reservations"] for instance in some["Instances"]):
                if address := each.get("PrivateIpAddress"):
                    self._addresses[each["InstanceId"]] = address
        self._addresses = {name: address for name, address in self._addresses.items() if name in names}
        return self._addresses

    def _call(self, service: str, operation: str, **arguments: Any) -> Mapping[str, Any]:  # noqa: ANN401 - AWS's
        with _named(self._name, operation):
            response: Mapping[str, Any] = getattr(self._client(service), operation)(**arguments)
        return response

    def _client(self, service: str) -> Any:  # noqa: ANN401 - a client of boto3's, untyped
        with self._lock:  # threads of several calls
            if service not in self._clients:
                with _named(self._name, "look for credentials"):
                    self._clients[service] = _connect(service)
            return self._clients[service]

    def _say(self, line: str) -> None:
        if line != self._logged:
            self._logged = line
            _log.warning("%s", line)

    @property
    def _name(self) -> str:
        return f"--instances ec2:{self._group}"


def release_this_instance() -> bool:
    """Take this machine out of its Auto Scaling group, which ends it and starts no other; say whether that worked.

    For an instance that ends because it gets no more requests. Nothing is raised: what goes wrong is logged.
    """
    try:
        this = this_instance()
        with _named("auto_scaling_release", "terminate_instance_in_auto_scaling_group"):
            client = _connect("autoscaling", this.region)
            try:
                client.terminate_instance_in_auto_scaling_group(InstanceId=this.id, ShouldDecrementDesiredCapacity=True)
            finally:
                client.close()
    except Exception as error:  # noqa: BLE001 - whatever it is, the process ends next
        _log.warning("this machine stays in its Auto Scaling group, and is billed: %s", error)
        return False
    _log.info("instance %s has left its Auto Scaling group", this.id)
    return True


def _state(instance: Mapping[str, Any]) -> State:
    """Return the state of an instance of a group; one that the group has found unhealthy is about to end."""
    return "draining" if _is_unhealthy(instance) else _STATES.get(_lifecycle(instance), "draining")


def _is_ending(instance: Mapping[str, Any]) -> bool:
    return _is_unhealthy(instance) or _lifecycle(instance) in {"Terminating", "Detaching"}


def _is_unhealthy(instance: Mapping[str, Any]) -> bool:
    return instance.get("HealthStatus") == "Unhealthy"


def _lifecycle(instance: Mapping[str, Any]) -> str:
    state: str = instance["LifecycleState"]
    return state.partition(":")[0]


def _staying(group: Mapping[str, Any]) -> int:
    return sum(_state(instance) != "draining" for instance in _instances(group))


def _replacing(group: Mapping[str, Any]) -> int:
    """Return how many more instances there are than were asked for: the group will end as many."""
    return max(0, _staying(group) - int(group["DesiredCapacity"]))


def _instances(group: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return [instance for instance in group["Instances"] if not instance["LifecycleState"].startswith(_NO_MEMBERS)]


def _connect(service: str, region: str | None = None) -> Any:  # noqa: ANN401 - a client of botocore's, untyped
    config = Config(
        connect_timeout=_CONNECT_S,
        read_timeout=_READ_S,
        retries={"mode": "standard", "total_max_attempts": _TRIES},  # of throttling too
    )
    return get_session().create_client(service, region_name=region, config=config)


@contextmanager
def _named(option: str, operation: str) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        detail = error.response.get("Error", {})
        code, message = detail.get("Code", ""), " ".join(str(detail.get("Message", "")).split())
        if code.startswith(("AccessDenied", "UnauthorizedOperation")):
            raise UnavailableError(
                f"{option}: these credentials may not {operation}: allow it, or set AWS_PROFILE"
            ) from error
        raise UnavailableError(f"{option}: AWS refuses to {operation}: {code}: {message:.300}") from error
    except (BotoCoreError, ResponseParserError, ValueError) as error:  # ValueError: an invalid AWS_ENDPOINT_URL
        reason = " ".join(str(error).split()).rstrip(".")
        raise UnavailableError(
            f"{option}: {reason:.300}: set AWS_DEFAULT_REGION and AWS_PROFILE, and see that AWS is reached"
        ) from error
