"""The cache: a directory of our own, of no other user, in which nothing is removed but what is ours."""

import grp
import os
import pwd
import shutil
from types import SimpleNamespace

import pytest

from serfer.build_cache import assembled, forget_unused, make_folder_of_files
from serfer.core.errors import UsageError
from serfer.files import why_unsafe
from serfer.registry import open_registry
from serfer.settings import Settings, load_settings
from serfer.storage.file.store import FileStore

KEY = "0123456789abcdef"
COMMIT = "a0b1c2d3e4f5a6b7c8d9a0b1c2d3e4f5a6b7c8d9"
BY_DIGEST = 4 * KEY, f".{4 * KEY}.{2 * KEY}"
MADE = KEY, f"net.onnx-{KEY}", f"whole-{KEY}-{KEY}", "worker-python3.12-x86_64-0123456789ab"
OURS = f".serfer-net-{KEY}.refused", f".serfer-net-{KEY}.lock", ".serfer-work-k3_9abcd", ".serfer-new-k3_9abcd"
OTHERS = (
    *("photo.jpg", "x", "notes.txt", "2026-11-29", "550e8400-e29b-41d4-a716-446655440000", ".htaccess", "work-2026"),
    *("deadbeef", "worker-0123456789ab", "plan.lock", "resnet50", f"{KEY}.txt", "work-schedule", "2026112911223344"),
    *(COMMIT, f"resnet-{COMMIT}", f".resnet-{COMMIT}.lock", f"net-{KEY}", KEY[::-1], f"net-{KEY}.refused", *BY_DIGEST),
)
OF_BEFORE = (  # files that tell an entry of a version that did not mark its entries
    [f"before-{KEY}/plan.json"],
    [f"f{KEY[1:]}/serfer/lambdas/handler.py", f"f{KEY[1:]}/onnxruntime/__init__.py"],
    [f"driver-python3.12-x86_64-{KEY}/digest", f"driver-python3.12-x86_64-{KEY}/layer/python/six.py"],
)
OF_OTHERS = (
    *("uploads/visit/photo.jpg", "plans/x/plan.json", "plan.json", f"plans/x/{KEY}", f"plans/net-{KEY}/photo.jpg"),
    *(f"layers/resnet-{COMMIT}/plan.json", f"wheels/{COMMIT}/x", f"weights/{4 * KEY}"),
)


def paths(root):
    return {path.relative_to(root).as_posix() for path in root.rglob("*")}


def write(root, names):
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()


def left(root, names=()):
    write(root, names)
    for path in root.iterdir():
        os.utime(path, (1, 1))
    forget_unused(root)
    return {path.name for path in root.iterdir()}


@pytest.mark.parametrize("inside", ["", "/digest"])
def test_forget_unused_removes_what_is_proved_to_be_ours_alone(tmp_path, inside):
    for name in MADE:
        with assembled(tmp_path / name):
            pass
        shutil.copytree(tmp_path / name, tmp_path / f"copy-{name}")
    write(tmp_path, [f"mine-{COMMIT}/plan.json", *(name for names in OF_BEFORE for name in names)])
    assert left(tmp_path, [f"{name}{inside}" for name in (*OURS, *OTHERS)]) == {
        *OTHERS,
        f"mine-{COMMIT}",
        *(f"copy-{name}" for name in MADE),
    }


def test_forget_unused_removes_files_by_their_digest_where_we_made_the_folder(tmp_path):
    write(tmp_path / "of others", BY_DIGEST)
    for kind in ("ours", "of others"):
        make_folder_of_files(tmp_path / kind)
    assert left(tmp_path / "ours", BY_DIGEST) == {".serfer-cache"}
    assert left(tmp_path / "of others") == {*BY_DIGEST}


@pytest.mark.parametrize("entry", OF_OTHERS)
def test_cache_in_a_directory_with_other_things_is_refused_and_touches_nothing(tmp_path, entry):
    write(tmp_path, [entry])
    before = paths(tmp_path)
    with pytest.raises(UsageError, match=rf"SERFER_CACHE_DIR: .* {entry.partition('/')[0]}, .*{tmp_path}/serfer$"):
        Settings(cache_dir=tmp_path)
    assert paths(tmp_path) == before


@pytest.mark.parametrize("entry", [[], *OF_BEFORE])
def test_cache_that_is_new_or_of_an_earlier_version_is_marked(tmp_path, entry):
    cache = tmp_path / "cache"
    write(cache, [*(f"plans/{name}" for name in entry), *(["notes.txt"] if entry else [])])
    Settings(cache_dir=cache)
    shutil.rmtree(cache / "plans", ignore_errors=True)
    for _ in range(2):  # by its mark
        Settings(cache_dir=cache)
        (cache / "mine.txt").touch()


def test_cache_by_default_lies_in_xdg_cache_home_and_goes_on_whatever_is_in_it(tmp_path, monkeypatch):
    monkeypatch.delenv("SERFER_CACHE_DIR", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    for value, expected in {"": ".cache/serfer", "relative": ".cache/serfer", str(tmp_path / "x"): "x/serfer"}.items():
        monkeypatch.setenv("XDG_CACHE_HOME", value)
        write(tmp_path / expected, ["accounts.json", f"weights/{4 * KEY}"])
        assert load_settings().cache_dir == tmp_path / expected
        assert left(tmp_path / expected / "weights") == {".serfer-cache"}


def test_cache_is_not_writable_by_others_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        assert why_unsafe(Settings(cache_dir=tmp_path / "cache").cache_dir) == ""
    finally:
        os.umask(before)


def give_away(path, monkeypatch):
    if os.geteuid() == 0:
        os.chown(path, 65534, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)


@pytest.mark.who_may
def test_cache_of_another_user_is_refused(tmp_path, monkeypatch):
    cache = Settings(cache_dir=tmp_path / "cache").cache_dir
    give_away(cache, monkeypatch)
    with pytest.raises(UsageError, match=r"SERFER_CACHE_DIR: .* belongs to another user"):
        Settings(cache_dir=cache)
    if os.geteuid() == 0:
        monkeypatch.setenv("SUDO_UID", "65534")
        assert why_unsafe(cache) == ""


@pytest.mark.who_may
@pytest.mark.parametrize(
    ("mode", "name", "members", "safe"),
    [
        (0o755, "staff", ["bob"], True),
        (0o775, "own", [], True),  # a group of each user's own, and umask 002
        (0o775, "own", ["own"], True),
        (0o775, "own", ["bob"], False),
        (0o775, "users", [], False),  # whose primary group that is, its list does not say
        (0o775, None, [], True),  # a container's random user
        (0o777, "own", [], False),
        (0o1777, "own", [], False),
    ],
)
def test_directory_is_safe_where_no_other_user_may_write_it(tmp_path, monkeypatch, mode, name, members, safe):
    def group(_):
        if name is None:
            raise KeyError
        return SimpleNamespace(gr_name=name, gr_mem=members)

    monkeypatch.setattr(grp, "getgrgid", group)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="own"))
    tmp_path.chmod(mode)
    assert (why_unsafe(tmp_path) == "") is safe
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    assert why_unsafe(tmp_path) == ""


@pytest.mark.who_may
@pytest.mark.parametrize("opened", [FileStore, lambda place: open_registry(str(place))])
def test_data_is_kept_in_no_directory_that_another_user_made_for_others_to_write(tmp_path, monkeypatch, opened):
    for mode in (0o1777, 0o775, 0o755):  # root's may be for others, as mounted volumes are
        tmp_path.chmod(mode)
        opened(tmp_path)
    give_away(tmp_path, monkeypatch)
    opened(tmp_path)
    monkeypatch.setattr(pwd, "getpwuid", lambda _: SimpleNamespace(pw_name="own"))
    monkeypatch.setattr(grp, "getgrgid", lambda _: SimpleNamespace(gr_name="users", gr_mem=[]))
    for mode in (0o1777, 0o775):
        tmp_path.chmod(mode)
        with pytest.raises(UsageError, match="belongs to another user"):
            opened(tmp_path)
