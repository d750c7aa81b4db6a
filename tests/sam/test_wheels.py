import hashlib
import itertools
import os
import re
import tempfile
import zipfile
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from serfer.build_cache import assembled
from serfer.core.errors import UnavailableError, UsageError
from serfer.packaging.manifest import CONTENTS
from serfer.sam.build import wheels as module
from serfer.sam.build.wheels import GPU, LAYERS, Pin, lock_file, pins, unpack, wheels
from serfer.sam.options import ARCHITECTURES, RUNTIMES, Options
from tests.sam.relock import NEWEST_GPU, dump, newer_symbols, versions

ROOT = Path(__file__).parents[2]
OFTEN = (("python3.13", "x86_64"), ("python3.13", "arm64"), ("python3.12", "arm64"))
SECRET = "hunter2"  # noqa: S105 - of nobody


@pytest.fixture
def bare_pip(monkeypatch):
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


@pytest.fixture
def shelf(bare_pip, tmp_path, monkeypatch):  # noqa: ARG001 - a fixture
    """An index of files alone, with nothing in it yet."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shelf"))
    (tmp_path / "shelf").mkdir()
    return tmp_path / "shelf"


def make_wheel(directory, tag="py3-none-any", files=(("thing/__init__.py", b""),)):
    path = directory / f"thing-1.0-{tag}.whl"
    about = {
        "thing-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: thing\nVersion: 1.0\n",
        "thing-1.0.dist-info/WHEEL": f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n".encode(),
        "thing-1.0.dist-info/RECORD": b"",
    }
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (*files, *about.items()):
            archive.writestr(name, data)
    return path


def make_lock(directory, *paths):
    lock = directory / "things.txt"
    digests = frozenset(hashlib.sha256(path.read_bytes()).hexdigest() for path in paths)
    lock.write_text(dump((Pin("thing", "1.0", digests or frozenset({"0" * 64})),)))
    return lock


def test_onnx_runtime_that_leaks_on_arm64_is_not_packed_there(tmp_path):
    lock = tmp_path / "worker.txt"
    lock.write_text(dump((Pin("onnxruntime", "1.26.0", frozenset({"0" * 64})),)))
    with pytest.raises(UsageError, match=r"--architecture arm64: worker\.txt pins ONNX Runtime 1\.26\.0"):
        wheels(lock, "python3.13", "arm64", tmp_path)


@pytest.mark.parametrize("layer", LAYERS)
def test_a_layer_has_the_versions_that_are_tested_here(layer):
    pinned = {pin.name: pin.version for pin in pins(lock_file(layer))}
    assert pinned == {name: versions()[name] for name in map(canonicalize_name, CONTENTS[layer].distributions)}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_lock_file_reads_as_it_was_written_and_names_no_registry(layer):
    text = lock_file(layer).read_text()
    assert dump(pins(lock_file(layer))) == text
    assert "://" not in text
    assert all(pin.hashes for pin in pins(lock_file(layer)))


def test_gpu_instances_have_the_newest_onnx_runtime_for_gpus():
    (pin,) = pins(lock_file(GPU))
    assert (pin.name, pin.version) == ("onnxruntime-gpu", NEWEST_GPU)
    assert len(pin.hashes) == len(RUNTIMES)
    assert dump((pin,)) == lock_file(GPU).read_text()


def test_compiled_wheels_are_locked_for_every_runtime_and_architecture():
    hashes = {pin.name: len(pin.hashes) for layer in LAYERS for pin in pins(lock_file(layer))}
    offered = len(RUNTIMES) * len(ARCHITECTURES)
    assert [hashes[name] for name in ("numpy", "onnxruntime", "pillow", "pydantic-core", "aiohttp")] == [offered] * 5
    assert hashes["urllib3"] == 1


def test_the_client_for_tests_has_the_version_that_the_local_service_runs():
    for pin in pins(ROOT / "tests" / "python313" / "client.txt"):
        assert versions()[canonicalize_name(pin.name)] == pin.version


def test_wheels_come_once_and_then_need_no_index(shelf, tmp_path):
    wheel = make_wheel(shelf)
    lock = make_lock(tmp_path, wheel)
    (first,) = wheels(lock, "python3.13", "arm64", tmp_path / "cache")
    wheel.unlink()
    assert wheels(lock, "python3.13", "arm64", tmp_path / "cache") == (first,)
    assert first.path.is_relative_to(tmp_path / "cache")
    assert first.sha256 == hashlib.sha256(first.path.read_bytes()).hexdigest()


def test_a_wheel_altered_in_the_cache_is_got_again(shelf, tmp_path):
    lock = make_lock(tmp_path, make_wheel(shelf))
    (first,) = wheels(lock, "python3.13", "arm64", tmp_path / "cache")
    first.path.write_bytes(b"something else")
    (again,) = wheels(lock, "python3.13", "arm64", tmp_path / "cache")
    assert again == first
    assert hashlib.sha256(again.path.read_bytes()).hexdigest() == first.sha256


def test_another_file_than_was_locked_is_refused_and_leaves_nothing(shelf, tmp_path):
    make_wheel(shelf)
    with pytest.raises(UnavailableError, match="HASH"):
        wheels(make_lock(tmp_path), "python3.13", "x86_64", tmp_path / "cache")
    assert list((tmp_path / "cache" / "wheels").iterdir()) == []


def test_a_runtime_without_a_wheel_is_refused_by_name(shelf, tmp_path):
    wheel = make_wheel(shelf, "cp313-cp313-manylinux_2_28_x86_64")
    lock = make_lock(tmp_path, wheel)
    assert wheels(lock, "python3.13", "x86_64", tmp_path / "cache")
    for runtime, architecture in (("python3.14", "x86_64"), ("python3.13", "arm64")):
        with pytest.raises(UnavailableError, match=rf"--runtime {runtime} --architecture {architecture}.*thing==1.0"):
            wheels(lock, runtime, architecture, tmp_path / "cache")


def test_a_wheel_for_a_newer_c_library_is_never_taken(shelf, tmp_path):
    make_wheel(shelf, "cp313-cp313-manylinux_2_35_x86_64")
    with pytest.raises(UnavailableError, match=r"No matching distribution found for thing==1\.0"):
        wheels(make_lock(tmp_path), "python3.13", "x86_64", tmp_path / "cache")


def test_symbols_newer_than_lambdas_are_found_in_libraries(tmp_path):
    symbols = b"\0GLIBC_2.34\0GLIBC_2.35\0GLIBCXX_3.4.30\0GLIBCXX_3.4.9\0CXXABI_1.3.13\0"
    assert newer_symbols(make_wheel(tmp_path, files=[("thing/core.so", symbols), ("thing/data", symbols)])) == [
        (b"GLIBC", b"2.35"),
        (b"GLIBCXX", b"3.4.30"),
    ]


@pytest.mark.who_may
@pytest.mark.usefixtures("bare_pip")
def test_without_an_index_the_error_is_one_line_without_secrets(tmp_path, monkeypatch):
    monkeypatch.setenv("PIP_INDEX_URL", f"http://user:{SECRET}@127.0.0.1:9/simple")  # where nobody answers
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(UnavailableError) as caught:
        wheels(make_lock(tmp_path), "python3.13", "x86_64", tmp_path / "cache")
    text = str(caught.value)
    assert "PIP_INDEX_URL" in text
    assert SECRET not in text
    assert "\n" not in text
    assert len(text) < 700
    assert list((tmp_path / "cache" / "wheels").iterdir()) == []


def test_a_wheel_is_unpacked_as_pip_would(tmp_path):
    files = [
        ("thing/__init__.py", b"1"),
        ("thing/data.txt", b"2"),
        ("thing-1.0.data/purelib/thing/more.py", b"3"),
        ("thing-1.0.data/scripts/thing", b"4"),
    ]
    path = make_wheel(tmp_path, files=files)
    wheel = module.Wheel(path, "thing", "1.0", "")
    unpack(wheel, tmp_path / "root", lambda name: not name.endswith((".txt", "RECORD", "WHEEL", "METADATA")))
    paths = {path.relative_to(tmp_path / "root").as_posix() for path in (tmp_path / "root").rglob("*.*")}
    assert paths == {"thing/__init__.py", "thing/more.py"}


@pytest.mark.usefixtures("shelf")
def test_a_pip_that_never_ends_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_TIMEOUT_S", 0.01)
    with pytest.raises(UnavailableError, match="try again"), assembled(tmp_path / "into" / "it") as directory:
        module.download(make_lock(tmp_path), "python3.13", "x86_64", directory)
    assert list((tmp_path / "into").iterdir()) == []


def test_pip_that_is_not_installed_is_said(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(UnavailableError, match="not installed here: run python -m ensurepip"):
        module.download(Path("lock.txt"), "python3.13", "x86_64", tmp_path)


def test_pip_that_is_interrupted_leaves_no_temporary_files(tmp_path, monkeypatch):
    def run(*_, env, **__):
        Path(env["TMPDIR"], "pip-unpack-1").mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(module.subprocess, "run", run)
    with pytest.raises(KeyboardInterrupt):
        module.download(Path("lock.txt"), "python3.13", "x86_64", tmp_path)
    assert not any(tmp_path.iterdir())


@pytest.mark.deploy
@pytest.mark.parametrize(
    ("runtime", "architecture"),
    [
        pytest.param(*offered, marks=() if offered in OFTEN else pytest.mark.weekly)
        for offered in itertools.product(RUNTIMES, ARCHITECTURES)
    ],
)
@pytest.mark.parametrize("layer", LAYERS)
def test_every_offered_combination_can_be_had(layer, runtime, architecture, cache):
    Options("test", runtime=runtime, architecture=architecture).check()
    downloaded = wheels(lock_file(layer), runtime, architecture, cache)
    assert len(downloaded) == len(pins(lock_file(layer)))
    assert not [wheel.name for wheel in downloaded if newer_symbols(wheel.path)]
    tag = f"cp{re.sub(r'[^0-9]', '', runtime)}"
    assert any(f"-{tag}-{tag}-" in wheel.path.name for wheel in downloaded)
