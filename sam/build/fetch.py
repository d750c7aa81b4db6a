"""A plan back from the functions that run it: the one before, for `serfer deploy package --previous-of STACK`.

Where a BUILD directory is made from scratch, as in a pipeline, the generation that the stack serves is only in AWS. Its
functions' packages hold the plan, their layers the weights and graphs, the stack's bucket the weights that they fetch;
the plan's digest covers all of it.
"""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Any

import urllib3

from serfer.core.errors import InputError, UnavailableError, UsageError
from serfer.core.plan import CONTAINER, Artefact, Plan
from serfer.core.plan.layout import PLAN_FILE
from serfer.lambdas.artefacts import IN_LAYER
from serfer.plan_directory import load_plan
from serfer.sam.stacks import DeployedStack

_MOST_PACKAGE_BYTES = 262_144_000  # what Lambda takes unzipped; a zip file is smaller
_MOST_PLAN_BYTES = 64 * 1024 * 1024
_TIMEOUT_S = 60.0
_AT_ONCE = 1 << 20


def fetch_plan(
    stack: DeployedStack,
    digest: str,
    session: Any,  # noqa: ANN401 - boto3 has no types here
    directory: Path,
    progress: Callable[[str], None],
) -> Plan:
    """Write a plan of a stack, by its first twelve digits, into a directory and return it.

    The graph of the unsplit network, which no function has, is not among it. Raises InputError where the functions do
    not hold that plan, UnavailableError where a package cannot be downloaded.
    """
    functions = session.client("lambda")
    directory.mkdir(parents=True, exist_ok=True)
    first, runs = f"{stack.prefix}-{digest}-0-0", digest in stack.driver_runs
    owner, inside = (f"{stack.prefix}-driver", f"plans/{digest}/{PLAN_FILE}") if runs else (first, PLAN_FILE)
    with _downloaded(_location(stack, digest, _function(functions, owner)["Code"])) as package:
        (directory / PLAN_FILE).write_bytes(_member(package, inside, _MOST_PLAN_BYTES))
    plan = load_plan(directory, f"the plan {digest} of {stack.name}")
    if not plan.digest.startswith(digest):
        raise InputError(f"{stack.name}: the function {owner} holds another plan, {plan.digest[:12]}")
    if any(stage.weights_in == CONTAINER for stage in plan.stages):
        _location(stack, digest, {})
    for stage, number in plan.functions:
        name = plan.deployed(stack.prefix, stage, number)
        progress(f"fetching {name}")
        with _downloaded(_weights(functions, name, of_driver=runs)) as package:
            for artefact in plan.packaged(stage, number):
                data = _member(package, f"python/{IN_LAYER}/{artefact.path}", artefact.bytes)
                _write([data], f"{artefact.path} of a layer", artefact, directory)
    for artefact in {file.path: file for part in plan.functions for file in plan.fetched(*part)}.values():
        progress(f"fetching {artefact.path} from {stack.weights}")
        bucket, _, prefix = stack.weights.removeprefix("s3://").partition("/")
        body = session.client("s3").get_object(Bucket=bucket, Key=f"{prefix}/{artefact.sha256}")["Body"]
        _write(body.iter_chunks(_AT_ONCE), f"{artefact.path} of {stack.weights}", artefact, directory)
    return plan


def _function(functions: Any, name: str) -> Any:  # noqa: ANN401 - same
    try:
        return functions.get_function(FunctionName=name)
    except functions.exceptions.ResourceNotFoundException as error:
        raise InputError(
            f"there is no function {name}: the stack has lost its plan; package with --no-previous"
        ) from error


def _location(stack: DeployedStack, digest: str, code: Mapping[str, str]) -> str:
    if "Location" not in code:
        raise UsageError(
            f"--previous-of {stack.name}: functions of its plan {digest} are container images, which are not "
            "downloaded: package again in the BUILD directory that it was deployed from"
        )
    return code["Location"]


def _weights(functions: Any, name: str, *, of_driver: bool) -> str:  # noqa: ANN401 - same
    """Return where a function's layer of weights is; a driver may have another plan's now, so its is the newest."""
    if of_driver:
        layers = [
            version["LayerVersionArn"] for version in functions.list_layer_versions(LayerName=name)["LayerVersions"]
        ]
    else:
        layers = [layer["Arn"] for layer in _function(functions, name)["Configuration"].get("Layers", ())]
    for arn in layers:
        if arn.split(":")[-2] == name:
            location: str = functions.get_layer_version_by_arn(Arn=arn)["Content"]["Location"]
            return location
    raise InputError(f"the function {name} has no layer of that name: serfer deploy package did not deploy it")


@contextmanager
def _downloaded(location: str) -> Iterator[zipfile.ZipFile]:
    with tempfile.TemporaryFile() as file:
        try:
            with urllib3.request("GET", location, timeout=_TIMEOUT_S, preload_content=False) as response:
                if response.status != HTTPStatus.OK:
                    raise UnavailableError(f"a package cannot be downloaded: HTTP status {response.status}; try again")
                for piece in response.stream(_AT_ONCE):
                    file.write(piece)
                    if file.tell() > _MOST_PACKAGE_BYTES:
                        raise InputError(
                            f"a package has more than {_MOST_PACKAGE_BYTES:,} bytes: it is not a function's"
                        )
        except urllib3.exceptions.HTTPError as error:  # whose text has the link, which is signed
            raise UnavailableError(f"a package cannot be downloaded: {type(error).__name__}; try again") from error
        try:
            with zipfile.ZipFile(file) as package:
                yield package
        except zipfile.BadZipFile as error:
            raise InputError("a package that was downloaded is not a zip file: try again") from error


def _member(package: zipfile.ZipFile, name: str, most: int) -> bytes:
    try:
        with package.open(name) as file:
            data = file.read(most + 1)
    except KeyError as error:
        raise InputError(f"a package lacks {name}: serfer deploy package did not deploy it") from error
    if len(data) > most:
        raise InputError(f"{name} of a package has more than {most:,} bytes")
    return data


def _write(blocks: Iterable[bytes], name: str, artefact: Artefact, directory: Path) -> None:
    place = directory / artefact.path
    place.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    with place.open("wb") as file:
        for block in blocks:
            digest.update(block)
            file.write(block)
    if digest.hexdigest() != artefact.sha256:
        raise InputError(f"{name} is not the plan's: its digest does not match plan.json")
