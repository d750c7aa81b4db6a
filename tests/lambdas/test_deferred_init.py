import sys

import pytest

from serfer.lambdas.deferred_init import defer_init


@pytest.fixture
def package(tmp_path, monkeypatch):
    directory = tmp_path / "deferred_package"
    directory.mkdir()
    (directory / "__init__.py").write_text("from deferred_package import other\nVALUE = 7\n")
    (directory / "module.py").write_text("NAME = 'module'\n")
    (directory / "other.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield "deferred_package"
    for name in [name for name in sys.modules if name.startswith("deferred_package")]:
        del sys.modules[name]


def test_a_module_is_imported_without_the_packages_init(package):
    defer_init(package)
    from deferred_package import module  # noqa: PLC0415

    assert module.NAME == "module"


def test_the_init_runs_when_a_name_is_requested(package):
    defer_init(package)
    import deferred_package.module  # noqa: PLC0415

    assert f"{package}.other" not in sys.modules
    with pytest.raises(AttributeError):
        _ = deferred_package.__missing__
    assert f"{package}.other" not in sys.modules
    assert deferred_package.VALUE == 7
    assert f"{package}.other" in sys.modules
    assert deferred_package.module.NAME == "module"
    defer_init(package)
    assert sys.modules[package] is deferred_package


def test_a_package_that_is_not_installed_stays_missing():
    defer_init("package_that_nobody_has")
    assert "package_that_nobody_has" not in sys.modules
