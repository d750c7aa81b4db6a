"""Output directories: an existing directory is replaced only if it is a plan and nothing else."""

import errno
import json
import os
import shutil

import pytest

from serfer.core.errors import InputError, UnavailableError
from serfer.splitter.plan_dir import output_directory
from serfer.splitter.plan_dir.output_directory import appearing_whole, place_for
from tests.core.plans import write_plan

NEW = '{"format": 0, "digest": "new"}'


@pytest.fixture
def home(tmp_path, monkeypatch):
    path = tmp_path / "home"
    path.mkdir()
    monkeypatch.chdir(path)
    return path


@pytest.fixture
def plan(home):
    """A plan that is there already; `write` puts another in its place."""
    (home / "plan").mkdir()
    return write_plan(home / "plan")


def write(out, meanwhile=lambda: None):
    with appearing_whole(place_for(out)) as place:
        (place / "plan.json").write_text(NEW)
        meanwhile()


def names(path):
    return sorted(entry.name for entry in path.iterdir())


def refused(out, message, given=()):
    before = snapshot(out)
    with pytest.raises(InputError, match=message) as caught:
        place_for(out, given)
    assert "\n" not in str(caught.value)
    assert snapshot(out) == before


def snapshot(out):
    top = out.parent if out.is_symlink() or not out.is_dir() else out
    return sorted(map(str, top.rglob("*"))) if top.is_dir() else []


@pytest.mark.usefixtures("plan")
def test_dots_and_links_are_followed(home):
    (home / "link").symlink_to("plan")
    (home / "dangling").symlink_to("later")
    (home / "loop").symlink_to("loop")
    refused(home / "loop", "loop.*cannot be written")
    (home / "loop").unlink()
    for out in ("plan/../plan", "link", "dangling"):
        write(home / out)
    assert (home / "plan" / "plan.json").read_text() == NEW
    assert (home / "later" / "plan.json").read_text() == NEW
    assert names(home) == ["dangling", "later", "link", "plan"]
    assert (home / "link").readlink().name == "plan"


@pytest.mark.parametrize("out", [".", "..", "../..", "../other/..", "/"])
def test_the_working_directory_and_its_parents_are_never_replaced(plan, monkeypatch, out):
    (plan / "other").mkdir()
    (plan / "stage-0" / "x").mkdir()
    monkeypatch.chdir(plan / "stage-0")
    with pytest.raises(InputError, match="is or holds the working directory"):
        place_for(plan / "stage-0" / out)


@pytest.mark.hostile
@pytest.mark.parametrize(
    "text",
    ["", '{"format": 3, "dig', '{"format": 1, "digest": "x"}', '{"format": 99, "digest": "x", "more": [1]}'],
    ids=["empty", "cut off", "older", "newer"],
)
def test_a_plan_that_is_damaged_or_of_any_format_is_replaced(home, plan, text):
    (plan / "plan.json").write_text(text)
    shutil.rmtree(plan / "stage-1")
    (plan / "original.onnx").touch()
    write(plan)
    assert names(plan) == ["plan.json"]
    assert names(home) == ["plan"]


@pytest.mark.parametrize("text", ['{"terraform": 1}', "{", "[]", "", '{"format": 3}'])
def test_another_programs_plan_is_kept(home, text):
    (home / "other").mkdir()
    (home / "other" / "plan.json").write_text(text)
    refused(home / "other", "other exists and is not a plan directory")


@pytest.mark.parametrize(
    "name", ["thesis.txt", "stage-0/thesis.txt", "model.onnx", "stage-0/model.onnx", "stage-1b", ".git", "original.txt"]
)
def test_foreign_files_in_a_plan_directory_are_kept(plan, name):
    (plan / name).write_text("years of work")
    refused(plan, f"holds {name}, which is not part of a plan and would be deleted")
    (plan / name).unlink()
    (plan / "images").mkdir()
    refused(plan, "holds images,")


def test_a_model_inside_the_plan_directory_is_not_deleted(home, plan):
    (home / "link.onnx").symlink_to("plan/unsplit.onnx")
    for given in ("plan/unsplit.onnx", "link.onnx", "plan/../plan/unsplit.onnx"):
        refused(plan, r"plan holds .*onnx, which is to be read", [home / given])
    assert place_for(plan, [home / "plan", home / "elsewhere.onnx"]) == plan


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("n" * 300, "File name too long"),
        ("nul\0byte", "null"),
        ("file", "is not a directory"),
        ("file/plan", "file is not a directory"),
        ("file/deeper/plan", "file is not a directory"),
    ],
)
def test_an_impossible_path_is_refused_before_any_work(home, name, message, monkeypatch):
    (home / "file").write_text("x")
    with pytest.raises(InputError, match=message):
        place_for(home / name)
    assert names(home) == ["file"]
    monkeypatch.setattr(os, "access", lambda path, _mode: path != home)  # root may write anywhere
    for out in ("plan", "a/b/plan"):
        refused(home / out, "home is not writable")


def test_files_that_appear_during_a_split_are_kept_and_a_full_disk_leaves_nothing(home):
    def come():
        (home / "out").mkdir()
        (home / "out" / "thesis.txt").write_text("years of work")

    def fill():
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(UnavailableError, match="No space left on device; free some space, or choose another --out"):
        write(home / "out", fill)
    assert names(home) == []
    with pytest.raises(InputError, match="not a plan directory"):
        write(home / "out", come)
    assert names(home / "out") == ["thesis.txt"]
    assert names(home) == ["out"]


@pytest.mark.parametrize("end", [OSError(errno.EIO, "Input/output error"), KeyboardInterrupt()])
def test_a_failed_replacement_restores_the_old_plan(home, plan, monkeypatch, end):
    before = json.loads((plan / "plan.json").read_text())
    rename = output_directory.Path.rename

    def fail(self, target):
        if target == plan and not self.name.endswith(".old"):
            raise end
        return rename(self, target)

    monkeypatch.setattr(output_directory.Path, "rename", fail)
    with pytest.raises((UnavailableError, KeyboardInterrupt)):
        write(plan)
    assert json.loads((plan / "plan.json").read_text()) == before
    assert names(home) == ["plan"]
