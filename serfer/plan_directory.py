"""A plan directory: plan.json, explanation.json and the files of the plan, on a disk, checked against their digests.

It may hold a second plan of the same network, the cold plan, for queries that find no warm environments of the first
one's functions.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import astuple
from pathlib import Path

from serfer.core.errors import PlanError
from serfer.core.plan import Plan, check_sound, dump_plan, parse_plan
from serfer.core.plan.layout import COLD_DIRECTORY as COLD_DIRECTORY  # noqa: PLC0414 - taken from here
from serfer.core.plan.layout import EXPLANATION_FILE, PLAN_FILE

NETWORK_SUFFIX = ".onnx"
LIBRARIES = ("timm", "torchvision")
"""Libraries of networks that have a name there."""
_MAX_PLAN_BYTES = 64 * 1024 * 1024
_HASH_BLOCK = 1 << 20


def load_plan(directory: Path, name: str = "") -> Plan:
    """Read the plan of a plan directory, with its explanation if there is one, without looking at its artefacts.

    A plan of another format is refused by `name`, by default the file's path.
    """
    path = directory / PLAN_FILE
    text = _read(path)
    is_file = is_network_file(directory)
    if text is None and is_network(directory) and (not is_file or directory.exists()):
        what = "file" if is_file else "name"
        raise PlanError(
            f"{directory} is a network's {what}, not a plan directory: write one with serfer split {directory} --out "
            "plan (--whole: in seconds), and give plan"
        )
    if text is None and is_code(directory):
        how = "write one with serfer split FILE.py:FACTORY --out plan, and give plan"
        raise PlanError(f"{directory} is a Python file, not a plan directory: {how}")
    if text is None and directory.name == PLAN_FILE and directory.is_file():
        raise PlanError(f"{directory} is a file of a plan: give its directory, {directory.parent}")
    if text is None:
        why = "it is no .onnx file either" if directory.is_file() else f"it has no {PLAN_FILE}"
        why = f"{why if directory.exists() else 'it does not exist'}; make one with serfer split, or serfer map-plan"
        raise PlanError(f"{directory} is not a plan directory: {why}")
    plan = parse_plan(text, name or str(path))
    path = directory / EXPLANATION_FILE
    if (explanation := _read(path)) is None:
        return plan
    from serfer.core.plan.explanation import with_explanation  # noqa: PLC0415 - functions have none

    return with_explanation(plan, explanation, str(path))


def is_network_file(place: Path | str) -> bool:
    """Return whether a path is that of a network's file, by its name in either case, and not of a directory."""
    return str(place).lower().endswith(NETWORK_SUFFIX) and not Path(place).is_dir()


def is_network(place: object) -> bool:
    """Return whether this is not a plan directory but a network, by its file or by its name: timm:NAME."""
    library, colon, _ = str(place).partition(":")
    return bool(colon and library in LIBRARIES) or is_network_file(str(place))


def is_code(place: Path | str) -> bool:
    """Return whether a path is that of a Python file, or of what makes a network in it: FILE.py:FACTORY."""
    return re.search(r"\.py(:\w*)?$", str(place)) is not None and not Path(place).is_dir()


def is_plan_directory(place: Path | str) -> bool:
    try:
        return Path(place, PLAN_FILE).is_file()
    except OSError:  # such as a name that is too long
        return False


def _read(path: Path) -> str | None:
    try:
        if path.exists() and not path.is_file():
            raise PlanError(f"{path} is not a regular file: not a plan")
        with path.open("rb") as file:
            data = file.read(_MAX_PLAN_BYTES + 1)
        if len(data) > _MAX_PLAN_BYTES:
            raise PlanError(f"{path} is larger than {_MAX_PLAN_BYTES} bytes: not a plan")
        return data.decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:  # ValueError: no UTF-8, or a NUL in the name
        raise PlanError(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error


def plan_files(plan: Plan) -> dict[str, str]:
    """Return the texts of a plan's own files by their names; no explanation.json where it was read without one."""
    files = {PLAN_FILE: dump_plan(plan)}
    if plan.explained:
        from serfer.core.plan.explanation import dump_explanation  # noqa: PLC0415 - functions write none

        files[EXPLANATION_FILE] = dump_explanation(plan)
    return files


def write_plan(plan: Plan, directory: Path) -> None:
    for name, text in plan_files(plan).items():
        (directory / name).write_text(text, encoding="utf-8")


def load_cold_plan(directory: Path, plan: Plan) -> Plan | None:
    """Read the cold plan of a plan directory that holds `plan`, without looking at its artefacts; None without one.

    Raises PlanError where it is not a plan directory of its own, or its plan does not answer as `plan` does.
    """
    path = directory / COLD_DIRECTORY
    if path.is_symlink():
        raise PlanError(f"{path} is a link: copy the cold plan itself there, or split the model again")
    if not path.exists():
        return None
    cold = load_plan(path)
    if (path / COLD_DIRECTORY).exists():
        raise PlanError(f"{path} holds a cold plan of its own: a cold plan has none; split the model again")
    digests = f"its plan is {cold.digest[:12]}, that of {directory} is {plan.digest[:12]}"
    if cold.digest == plan.digest:
        raise PlanError(f"{path} is not another plan: {digests}; delete it")
    if differences := _differences(plan, cold):
        raise PlanError(
            f"{path} is not a plan of the same network: {digests}; they differ in {', '.join(differences)}: "
            "split the model again, with both plans from one command"
        )
    return cold


def _differences(plan: Plan, cold: Plan) -> list[str]:
    """Return what plans of one network that give the same answers have in common, and these two have not, in words."""
    compared: dict[str, Callable[[Plan], object]] = {
        "the model": lambda plan: plan.model,
        "the origin of the weights": lambda plan: plan.weights,
        "the input": lambda plan: plan.input,
        "the output": lambda plan: plan.output,
        "the activation": lambda plan: plan.activation,
        "the preprocessing": lambda plan: plan.preprocess,
        "the labels": lambda plan: plan.labels,
        "the operators": _operators,
    }
    if plan.explained and cold.explained:
        compared["the changes to the model"] = lambda plan: [(change.what, change.how) for change in plan.changes]
    return [name for name, of in compared.items() if of(plan) != of(cold)]


def _operators(plan: Plan) -> list[tuple[str, str, int]]:
    return sorted(astuple(operator) for stage in plan.stages for operator in stage.operators)


def check_artefacts(plan: Plan, directory: Path) -> None:
    """Hash every artefact of a plan directory; raises PlanError that names the first wrong file."""
    check_sound(plan)
    for artefact in plan.artefacts:
        path = directory / artefact.path
        if _is_linked(directory, Path(artefact.path)):  # ONNX Runtime follows no link out of a model's directory
            raise PlanError(f"{path} lies behind a link: copy the file itself into the plan, or split the model again")
        if not path.is_file():
            raise PlanError(f"{path} is missing, or no file; split the model again")
        if path.stat().st_size != artefact.bytes or file_sha256(path) != artefact.sha256:
            raise PlanError(f"{path} was altered: its digest does not match plan.json; split the model again")


def _is_linked(directory: Path, path: Path) -> bool:
    """Return whether a path in a directory, which may be a link itself, leads over a link."""
    return any((directory / part).is_symlink() for part in (path, *path.parents[:-1]))


def file_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256", _bufsize=_HASH_BLOCK).hexdigest()
