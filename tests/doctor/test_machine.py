import importlib.metadata
import shutil
from collections import namedtuple

import pytest

from serfer.core.errors import UnavailableError
from serfer.doctor import machine as doctor
from serfer.doctor.machine import examine
from serfer.extras import pip_command
from serfer.settings import Settings

INSTALLED = 118_420_269  # bytes, with ONNX Runtime 1.32.0


@pytest.fixture(autouse=True)
def _measured(monkeypatch):
    """Assembling takes seconds, and `tests/splitter/test_bundle.py` does it."""
    monkeypatch.setattr("serfer.wiring.local.dependency_bytes", lambda _settings, _progress: INSTALLED)


def checks(tmp_path):
    return {check.name: check for check in examine(Settings(cache_dir=tmp_path / "cache"))}


def test_all_is_well_where_the_tests_run(tmp_path):
    results = checks(tmp_path)
    assert [check for check in results.values() if not check.ok] == []
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".serfer-cache"]


def test_failed_checks_have_a_remedy(tmp_path, monkeypatch):
    def missing(name):
        raise importlib.metadata.PackageNotFoundError(name)

    version = namedtuple("version", "major minor micro releaselevel serial")  # noqa: PYI024 - as sys.version_info
    monkeypatch.setattr("sys.version_info", version(3, 99, 0, "final", 0))
    newer = checks(tmp_path)["python"]
    assert (newer.ok, "untested" in newer.found) == (True, True)
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setattr("importlib.metadata.version", missing)
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    monkeypatch.setattr("sys.version_info", version(3, 10, 0, "final", 0))
    monkeypatch.setattr(doctor, "_NEEDED_BYTES", 1 << 60)
    (tmp_path / "cache").write_text("a file in the way")
    results = checks(tmp_path)
    bad = {name for name, check in results.items() if not check.ok}
    assert {"python", "platform", "numpy", "redis-server", "cache", "space"} <= bad
    assert "processors" not in bad
    assert all(results[name].remedy for name in bad)
    optional = [results[name] for name in ("torch", "haproxy", "s3 server", "step functions")]
    assert all(check.ok and "optional" in check.found and check.remedy for check in optional)
    assert results["torch"].remedy.endswith(f": {pip_command('torch')}")
    assert "Not a directory" in results["cache"].found


def test_an_older_package_than_is_required_is_a_failed_check(tmp_path, monkeypatch):
    """ONNX Runtime 1.30 never ends its reading of a streamed model: it holds Python's lock meanwhile."""
    version = importlib.metadata.version
    monkeypatch.setattr("importlib.metadata.version", lambda name: "1.30.0" if name == "onnxruntime" else version(name))
    check = checks(tmp_path)["onnxruntime"]
    assert (check.ok, check.remedy) == (False, pip_command("onnxruntime"))
    assert check.found.startswith("1.30.0, SerFer requires ")
    assert ">=1.31.1" in check.found


def test_the_size_of_dependencies_is_reported(tmp_path, monkeypatch):
    check = checks(tmp_path)["function package"]
    assert check.ok
    for words in ("118,420,269 bytes", "of 262,144,000", "reserve 118,420,269"):
        assert words in check.found
    monkeypatch.setattr("serfer.wiring.local.dependency_bytes", lambda _settings, _progress: 90_000_000)
    assert "plans reserve 117,000,000" in checks(tmp_path)["function package"].found
    monkeypatch.setattr("serfer.wiring.local.dependency_bytes", lambda _settings, _progress: 262_144_000)
    assert not checks(tmp_path)["function package"].ok


def test_dependencies_that_cannot_be_measured_are_a_line_not_a_traceback(tmp_path, monkeypatch):
    for error in (UnavailableError("SERFER_CACHE_DIR: full"), importlib.metadata.PackageNotFoundError("numpy")):

        def refuse(_settings, _progress, error=error):
            raise error

        monkeypatch.setattr("serfer.wiring.local.dependency_bytes", refuse)
        check = checks(tmp_path)["function package"]
        assert (check.ok, check.found) == (False, str(error))


def test_the_machine_of_the_profiles_is_named(tmp_path):
    assert "vCPU" in checks(tmp_path)["profiles"].found
    [failed] = [
        each for each in examine(Settings(cache_dir=tmp_path / "cache", profiles_file=tmp_path / "none")) if not each.ok
    ]
    assert (failed.name, "SERFER_PROFILES_FILE" in failed.remedy) == ("profiles", True)
    assert "none' cannot be read" in failed.found
