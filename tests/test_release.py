"""`make release`: what is built of a commit is the same bytes twice, and its bill of materials is that of the pins."""

import json
import tarfile
import tomllib
import zipfile

import pytest
import yaml

import serfer
from tests import release
from tests.test_packaging import PINS, ROOT


@pytest.mark.deploy
def test_what_is_built_of_a_commit_is_the_same_bytes_twice_and_holds_its_licences(tmp_path):
    seconds = int(release.git("log", "-1", "--format=%ct"))
    first, second = (release.build(tmp_path / name, seconds) for name in ("first", "second"))
    assert first == second
    assert {name.partition("-")[0] for name in first} == {"serfer", "serfer_bench", "serfer_client"}
    [wheel] = [name for name in first if name.startswith("serfer-") and name.endswith(".whl")]
    names = zipfile.ZipFile(tmp_path / "first" / "out" / wheel).namelist()
    assert {"LICENSE", "NOTICE"} <= {name.rpartition("/")[2] for name in names if ".dist-info/licenses/" in name}
    [sdist] = [name for name in first if name.startswith("serfer-") and name.endswith(".tar.gz")]
    with tarfile.open(tmp_path / "first" / "out" / sdist) as source:
        assert any(name.endswith("/splitter/network/imagenet_labels.txt") for name in source.getnames())


def test_the_bill_of_materials_has_every_pin_once_and_no_time():
    text = release.materials()
    assert text == release.materials()
    document = json.loads(text)
    assert "timestamp" not in document["metadata"]
    listed = sorted(f"{part['name']}=={part['version']}" for part in document["components"])
    assert listed == sorted([*PINS, "torch==2.13.0"])
    assert all(part["purl"].startswith("pkg:pypi/") for part in document["components"])


def test_a_checkout_with_changes_is_not_released(monkeypatch):
    monkeypatch.setattr(release, "git", lambda *_: " M README.md\n")
    with pytest.raises(release.ReleaseError, match="has changes"):
        release.main()


def test_the_changelog_and_the_citation_name_the_version():
    assert f"## [{serfer.__version__}] - 20" in (ROOT / "CHANGELOG.md").read_text()
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == serfer.__version__


def test_hosted_runners_run_what_ci_runs_and_every_python_of_the_metadata():
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    assert "bash .ci/run" in [step.get("run") for step in workflow["whole"]["steps"]]
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    pythons = [name.rpartition(" ")[2] for name in classifiers if name.startswith("Programming Language :: Python ::")]
    assert workflow["first-hour"]["strategy"]["matrix"]["python"] == pythons
    commands = "\n".join(step["run"] for step in workflow["first-hour"]["steps"] if "run" in step)
    for name in ("tests/first_hour.py", "tests/without_torch.py", "tests/test_other_systems.py"):
        assert (ROOT / name).exists()
        assert name.removesuffix(".py").replace("/", ".") in commands.replace("/", ".")
