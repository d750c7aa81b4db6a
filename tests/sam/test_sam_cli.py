"""SAM CLI itself takes the templates, without a network and without credentials."""

import os
import subprocess
from pathlib import Path

import pytest

from serfer.sam.template.template import dump
from tests.sam.offered import FEW, template

SAM = Path(__file__).parents[2] / ".venv" / "sam" / "bin" / "sam"
pytestmark = [pytest.mark.deploy, pytest.mark.skipif(not SAM.exists(), reason="`make setup` brings SAM CLI")]


def validate(source, place, *more):
    path = place / "template.yaml"
    path.write_text(dump(source), encoding="utf-8")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    settings = {
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "HOME": str(place),
        "HTTPS_PROXY": "http://127.0.0.1:9",  # where nobody listens
        "SAM_CLI_TELEMETRY": "0",
    }
    return subprocess.run(
        [SAM, "validate", "--template", path, *more],
        cwd=place,
        env={**kept, **settings},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("more", [[], ["--lint"]], ids=["plain", "lint"])
@pytest.mark.parametrize("chosen", [FEW[-1]], ids="-".join)
def test_sam_validates_it(chosen, more, tmp_path):
    checked = validate(template(*chosen), tmp_path, *more)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "is a valid SAM Template" in checked.stdout


def test_sam_reports_an_invalid_template(tmp_path):
    wrong = template()
    wrong["Resources"]["DriverFunction"]["Properties"]["Layers"] = [{"Ref": "Nothing"}]
    assert validate(wrong, tmp_path, "--lint").returncode == 1
    wrong["Resources"]["DriverFunction"]["Properties"]["Handel"] = "a property that there is not"
    assert validate(wrong, tmp_path).returncode == 1
