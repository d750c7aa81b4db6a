"""`serfer bench large-machine`: its parts run, each within its time, and one without a result keeps no other back."""

import json

import pytest
import typer
from typer.testing import CliRunner

from serfer.cli.main import app
from serfer.core.errors import SerferError, UsageError
from serfer_bench.pipeline import large_machine
from serfer_bench.pipeline.large_machine import _END_S, Part, parts


def large_machine_of(out, *options):
    words = ["bench", "large-machine", "--out", str(out), *options]
    return CliRunner().invoke(app, words, catch_exceptions=True)


def test_parts_without_a_result_are_named_and_the_others_go_on(tmp_path, monkeypatch):
    chosen = [
        Part("wide", ("--version",), 60, processors=10_000),
        Part("wrong", ("bench", "gangs", "--system", "nothing"), 60),
        Part("slow", ("--version",), 0.01),
        Part("right", ("--version",), 60),
    ]
    monkeypatch.setattr(large_machine, "parts", lambda _: chosen)
    shown = large_machine_of(tmp_path, "--json")
    assert isinstance(shown.exception, SerferError)
    assert str(shown.exception) == "3 of 4 parts have no result: wide, wrong, slow"
    rows = json.loads((tmp_path / "result.json").read_text())["rows"]
    results = {row["part"]: row["result"] for row in rows}
    assert "needs 10000 processors" in results["wide"]
    assert results["wrong"].startswith("failed with exit code 2: unknown system nothing")
    assert results["slow"].startswith("took more than 0.01 s")
    assert results["right"] == "done"
    assert (tmp_path / "right.txt").read_text().startswith("serfer ")


def test_a_part_that_is_not_there_is_refused(tmp_path):
    assert isinstance(large_machine_of(tmp_path, "--part", "nothing").exception, UsageError)


def test_parts_are_commands_that_there_are_and_end_within_ten_minutes(tmp_path):
    assert sum(part.limit_s + _END_S for part in parts(tmp_path)) <= 600
    for part in parts(tmp_path):
        name, command, words, context = "serfer", typer.main.get_command(app), [*part.words], None
        while words:
            context = command.make_context(name, words, parent=context)
            if not hasattr(command, "resolve_command"):
                break
            name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
        assert not hasattr(command, "resolve_command")


@pytest.mark.weekly
def test_all_parts_run_at_small_sizes(tmp_path, settings, monkeypatch):
    monkeypatch.setenv("SERFER_CACHE_DIR", str(settings.cache_dir))
    shown = large_machine_of(tmp_path, "--dry-run")
    assert shown.exit_code == 0, shown.output
    for name in ("gangs-and-stages-of-2", "figures-9-and-11", "two-networks"):
        assert json.loads((tmp_path / name / "result.json").read_text())["rows"]
    assert "[[instance]]" in (tmp_path / "batches.toml").read_text()
