"""The output of `serfer deploy package`: its record, `deployment.json`, and where things lie below BUILD.

{"format": 1, "serfer": "0.1.0", "options": {...}, "plans": ["0123456789ab"], "precompiled": true,
 "bytes": {"0-0": 31457280}, "digest": "..."}
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from serfer.core.dataclass_codec import structure, unstructure
from serfer.core.errors import InputError, PlanError, UsageError
from serfer.core.plan import Plan
from serfer.files import read_text
from serfer.plan_directory import COLD_DIRECTORY, load_cold_plan, load_plan
from serfer.sam.options import RECORD, TEMPLATE, Options

FORMAT = 1
_MOST_RECORD_BYTES = 1024 * 1024
_MOST_TEMPLATE_BYTES = 16 * 1024 * 1024
_DIGEST12 = re.compile(r"[0-9a-f]{12}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MOST_PLANS = 2
GENERATIONS = "plans"
"""The directory of a BUILD that has the functions of plans."""
COLD_FUNCTIONS = "cold-"
"""The beginning of the names that a record has for functions of a cold plan."""
_OPTIONAL = frozenset({"weights", "images", "cold", "driver_runs", "beside"})
_ADVICE = "write it again with serfer deploy package"


@dataclass(frozen=True)
class Deployment:
    """A packaged deployment: `plans` are the first twelve digits of plans' digests, what is current first.

    `serfer` is the version that wrote it. `bytes` has each function's size unzipped with its layers by "STAGE-PART" (a
    driver's that runs the plan as "0-0"), of the current plan's cold plan by "cold-STAGE-PART"; `digest` is the SHA-256
    of all that was packaged. `weights` has the bytes of what functions fetch by its SHA-256, `images` are tags of
    functions. By plan: `cold` its cold plan, `driver_runs` the MB of a driver function that runs it, `beside` the plans
    of other variants that came with it.
    """

    serfer: str
    options: Options
    plans: tuple[str, ...]
    precompiled: bool
    bytes: Mapping[str, int]
    digest: str
    weights: Mapping[str, int] = field(default_factory=dict)
    images: tuple[str, ...] = ()
    cold: Mapping[str, str] = field(default_factory=dict)
    driver_runs: Mapping[str, int] = field(default_factory=dict)
    beside: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    format: int = FORMAT

    @property
    def current(self) -> str:
        return self.plans[0]

    def is_image(self, name: str) -> bool:
        digest = self.cold[self.current] if name.startswith(COLD_FUNCTIONS) else self.current
        return f"{digest}-{name.removeprefix(COLD_FUNCTIONS)}" in self.images


def is_replaceable(directory: Path) -> bool:
    """Return whether a directory's record is ours, of any format: other tools have a `deployment.json` too."""
    try:
        document = json.loads(_text(directory / RECORD, _MOST_RECORD_BYTES))
    except (InputError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and {"format", "serfer", "plans"} <= document.keys()


def dump_deployment(deployment: Deployment) -> str:
    """Return the text of `deployment.json`; the same deployment gives the same text."""
    document = unstructure(deployment)
    for name in [name for name in _OPTIONAL if not document[name]]:
        del document[name]
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def parse_deployment(text: str) -> Deployment:
    """Read `deployment.json`; raises InputError for anything that `dump_deployment` would not have written."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{RECORD} is not JSON: {_ADVICE}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"{RECORD} is of another format than {FORMAT}: {_ADVICE}")
    try:
        deployment = structure(Deployment, document, "record")
        _check(deployment)
    except (PlanError, UsageError) as error:
        raise InputError(f"{RECORD}: {error}: {_ADVICE}") from error
    return deployment


def _check(deployment: Deployment) -> None:
    deployment.options.check()
    cold, beside = deployment.cold, deployment.beside
    digests = [*deployment.plans, *cold, *cold.values(), *beside, *chain(*beside.values())]
    if not 1 <= len(deployment.plans) <= _MOST_PLANS or not all(map(_DIGEST12.fullmatch, digests)):
        raise PlanError("plans should be one or two, each of twelve hexadecimal digits, as in cold and beside")
    if not cold.keys() | beside.keys() <= set(deployment.plans):
        raise PlanError("cold and beside should have plans of the deployment")
    if deployment.current not in cold and any(name.startswith(COLD_FUNCTIONS) for name in deployment.bytes):
        raise PlanError("bytes should have no functions of a cold plan that there is not")
    if not all(map(_SHA256.fullmatch, (deployment.digest, *deployment.weights))):
        raise PlanError("digest should be 64 hexadecimal digits, and so should the names of weights")
    sizes = (*deployment.bytes.values(), *deployment.weights.values(), *deployment.driver_runs.values())
    if any(size < 0 for size in sizes):
        raise PlanError("bytes, weights and driver_runs should not be negative")


def load_deployment(build: Path) -> Deployment:
    return parse_deployment(_text(build / RECORD, _MOST_RECORD_BYTES))


def load_template(build: Path) -> dict[str, Any]:
    """Read BUILD's template, whose intrinsic functions are in their long form; raises InputError."""
    try:
        template = yaml.load(_text(build / TEMPLATE, _MOST_TEMPLATE_BYTES), Loader=_Loader)  # noqa: S506 - a safe one
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{build / TEMPLATE} is not YAML without tags and aliases: {_ADVICE}") from error
    if not isinstance(template, dict) or not isinstance(template.get("Resources"), dict):
        raise InputError(f"{build / TEMPLATE} has no Resources: {_ADVICE}")
    for section in ("Parameters", "Mappings", "Globals", "Resources"):
        _check_section(build / TEMPLATE, section, template.get(section, {}))
    if not isinstance(template.get("Conditions", {}), dict):
        raise InputError(f"{build / TEMPLATE}: Conditions should be an object: {_ADVICE}")
    return template


class _Loader(yaml.SafeLoader):
    """Reads no aliases: a few lines of them stand for a template of any size, or for one without an end."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:  # noqa: ANN401 - PyYAML's
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("an alias")
        return super().compose_node(parent, index)


def _check_section(file: Path, section: str, named: Any) -> None:  # noqa: ANN401 - any YAML value
    if not isinstance(named, dict):
        raise InputError(f"{file}: {section} should be an object: {_ADVICE}")
    for name, resource in named.items():
        if not isinstance(name, str) or not isinstance(resource, dict):
            raise InputError(f"{file}: {section}: {name!r:.80} should be a text that names an object: {_ADVICE}")
        kind, properties = resource.get("Type"), resource.get("Properties", {})
        if section == "Resources" and not (isinstance(kind, str) and isinstance(properties, dict)):
            raise InputError(f"{file}: {name:.80} should have a Type and Properties: {_ADVICE}")


def plan_directory(build: Path, digest: str) -> Path:
    return build / "driver" / "plans" / digest


def load_packaged_plan(build: Path, digest: str) -> Plan:
    """Read a plan of BUILD by its first twelve digits; raises PlanError where it is missing, altered or another one."""
    plan = load_plan(plan_directory(build, digest))
    if not plan.digest.startswith(digest):
        raise PlanError(f"{plan_directory(build, digest)} holds another plan: {_ADVICE}")
    return plan


def load_packaged_cold(build: Path, deployment: Deployment, plan: Plan) -> Plan | None:
    """Read the cold plan of a plan of BUILD; None without one, PlanError where it is missing, altered or another."""
    recorded = deployment.cold.get(plan.digest[:12])
    if recorded is None:
        return None
    place = plan_directory(build, plan.digest[:12])
    cold = load_cold_plan(place, plan)
    if cold is None or not cold.digest.startswith(recorded):
        raise PlanError(f"{place / COLD_DIRECTORY} does not hold the plan {recorded}: {_ADVICE}")
    return cold


def _text(path: Path, most: int) -> str:
    if path.exists() and not path.is_file():  # a pipe would be waited for
        raise InputError(f"{path} is not a file: {_ADVICE}")
    try:
        return read_text(path, most)
    except InputError as error:
        raise InputError(f"{error}: {_ADVICE}") from error
