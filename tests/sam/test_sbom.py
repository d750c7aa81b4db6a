import json
from dataclasses import replace

import pytest
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation import make_schemabased_validator

from serfer import __version__
from serfer.sam.build.sbom import dump_sbom
from serfer.sam.build.wheels import LAYERS, lock_file, pins
from tests.core.plans import small_plan
from tests.sam.conftest import OPTIONS

PLAN = replace(small_plan(), model="net", digest="ab" * 32)

pytestmark = pytest.mark.deploy  # it looks into every wheel


@pytest.fixture(scope="module")
def text(cache, worker, driver):
    assert worker
    assert driver
    return dump_sbom(OPTIONS, [PLAN], cache)


def test_it_is_valid_cyclonedx_and_names_every_wheel_with_its_digest_and_licence_and_the_plan(text):
    assert make_schemabased_validator(OutputFormat.JSON, SchemaVersion.V1_6).validate_str(text) is None
    document = json.loads(text)
    parts = {part["name"]: part for part in document["components"]}
    pinned = {pin.name: pin for layer in LAYERS for pin in pins(lock_file(layer))}
    assert set(parts) == {*pinned, "net"}
    for name, pin in pinned.items():
        part = parts[name]
        assert part["version"] == pin.version
        assert part["purl"] == f"pkg:pypi/{name}@{pin.version}"
        assert part["hashes"][0]["content"] in pin.hashes
        assert part["licenses"]
    assert parts["numpy"]["licenses"] == [{"expression": "BSD-3-Clause AND 0BSD AND MIT AND Zlib AND CC0-1.0"}]
    [model] = [part for part in document["components"] if part["type"] == "machine-learning-model"]
    assert (model["version"], model["hashes"][0]["content"]) == ("ab" * 6, "ab" * 32)
    assert document["metadata"]["component"]["version"] == __version__


def test_the_same_deployment_gives_the_same_text(text, cache):
    assert dump_sbom(OPTIONS, [PLAN], cache) == text
    assert "timestamp" not in text
    other = replace(PLAN, digest="cd" * 32)
    assert json.loads(dump_sbom(OPTIONS, [other], cache))["serialNumber"] != json.loads(text)["serialNumber"]
