"""The software bill of materials of a deployment, as CycloneDX 1.6: every wheel and plan that is packaged, and SerFer.

The same deployment gives the same text: no clock, no chance.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterable
from email.parser import HeaderParser
from pathlib import Path
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import License
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.utils import canonicalize_name

from serfer import __version__
from serfer.core.plan import Plan
from serfer.sam.build.wheels import GPU, LAYERS, Wheel, lock_file, wheels
from serfer.sam.options import Options, digest12, images_of

SBOM = "sbom.cdx.json"
_MOST_NAME = 100  # characters of a licence's name: some wheels give its whole text
_CLASSIFIER = "License :: OSI Approved :: "


def dump_sbom(options: Options, plans: Iterable[Plan], cache: Path) -> str:
    """Return the bill of materials of a deployment's layers and plans, as JSON; raises what `wheels` raises."""
    locks = [lock_file(layer) for layer in (*LAYERS, *([GPU] if options.gpu else []))]
    parts = {wheel for lock in locks for wheel in wheels(lock, options.runtime, options.architecture, cache)}
    plans = list(plans)
    models = [_model(plan) for plan in plans]
    if any(map(images_of, plans)):
        models.append(Component(name=options.builds_on, type=ComponentType.CONTAINER, bom_ref=options.builds_on))
    seed = " ".join(sorted([part.sha256 for part in parts] + [str(model.bom_ref) for model in models]))
    serfer = Component(
        name="serfer",
        version=__version__,
        type=ComponentType.APPLICATION,
        bom_ref="serfer",
        licenses=[LicenseFactory().make_from_string("Apache-2.0")],
    )
    bom = Bom(
        serial_number=uuid5(NAMESPACE_URL, f"serfer {__version__} {seed}"),
        metadata=BomMetaData(component=serfer),
        components=[*models, *map(_distribution, parts)],
    )
    bom.register_dependency(serfer, bom.components)
    document: dict[str, Any] = json.loads(JsonV1Dot6(bom).output_as_string())
    del document["metadata"]["timestamp"]
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def _model(plan: Plan) -> Component:
    return Component(
        name=plan.model,
        version=digest12(plan),
        type=ComponentType.MACHINE_LEARNING_MODEL,
        bom_ref=f"plan-{plan.digest}",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=plan.digest)],
    )


def _distribution(wheel: Wheel) -> Component:
    with zipfile.ZipFile(wheel.path) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        text = archive.read(name).decode("utf-8")
    purl = PackageURL("pypi", name=canonicalize_name(wheel.name), version=wheel.version)
    return Component(
        name=wheel.name,
        version=wheel.version,
        type=ComponentType.LIBRARY,
        bom_ref=str(purl),
        purl=purl,
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=wheel.sha256)],
        licenses=licences_of(text),
    )


def licences_of(metadata: str) -> list[License]:
    """Return what a wheel says of its licence: an SPDX expression, or else a name, or else its classifier."""
    fields = HeaderParser().parsestr(metadata)
    classifiers = [value for value in fields.get_all("Classifier", []) if value.startswith(_CLASSIFIER)]
    names = [fields["License-Expression"], fields["License"], *(name.removeprefix(_CLASSIFIER) for name in classifiers)]
    short = [name for name in names if name and "\n" not in name and len(name) <= _MOST_NAME]
    return [LicenseFactory().make_from_string(name) for name in short[:1]]
