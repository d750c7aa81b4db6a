"""The cache: nothing is removed but what is ours."""

import os

from serfer.packaging.build_cache import forget_unused

KEY = "0123456789abcdef"
OURS = (
    *(KEY, f"net.onnx-{KEY}", f"net-{KEY}.refused", f".net-{KEY}.lock", f"whole-{KEY}-{KEY}", 4 * KEY),
    *(f".{4 * KEY}.{2 * KEY}", "worker-python3.12-x86_64-0123456789ab", "work-k3_9abcd", ".new-k3_9abcd"),
)
OTHERS = (
    *("photo.jpg", "x", "notes.txt", "2026-11-29", "550e8400-e29b-41d4-a716-446655440000", ".htaccess", "work-2026"),
    *("deadbeef", "worker-0123456789ab", "plan.lock", "resnet50", f"{KEY}.txt"),
)


def paths(root):
    return {path.relative_to(root).as_posix() for path in root.rglob("*")}


def test_forget_unused_removes_what_has_a_name_of_ours_alone(tmp_path):
    for number, name in enumerate((*OURS, *OTHERS)):
        (tmp_path / name).mkdir() if number % 2 else (tmp_path / name).touch()
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / f"young-{KEY}").touch()
    forget_unused(tmp_path)
    assert paths(tmp_path) == {*OTHERS, f"young-{KEY}"}
