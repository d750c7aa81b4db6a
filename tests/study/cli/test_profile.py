"""`serfer study profile`, with the measuring itself (tests/study/profiling/test_profile.py) left out."""

import json
import os
from unittest.mock import Mock

import pytest

from serfer.core.costs.operator_costs import dump_profiles, parse_profiles, shipped_profiles
from serfer.core.errors import InputError
from serfer.files import check_place, write_whole
from serfer_bench.study.cli import profile as command
from serfer_bench.study.profiling import profile


@pytest.fixture
def measured(monkeypatch):
    stand_in = Mock(return_value=shipped_profiles())
    monkeypatch.setattr(profile, "measure", stand_in)
    return stand_in


@pytest.mark.parametrize("quick", [False, True])
def test_measurements_are_written(measured, tmp_path, capsys, quick):
    command.profile(file=tmp_path / "mine.json", quick=quick, as_json=True)
    assert parse_profiles((tmp_path / "mine.json").read_text()) == shipped_profiles()
    captured = capsys.readouterr()
    assert json.loads(captured.out) == json.loads(dump_profiles(shipped_profiles()))
    assert "mine.json" in captured.err
    assert len(measured.call_args.args) == (3 if quick else 1)


def test_the_output_shows_the_fits_quality(measured, tmp_path, capsys):
    command.profile(file=tmp_path / "mine.json")
    shown = capsys.readouterr().out
    assert len(measured.call_args.args) == 1
    assert all(str(kind) in shown for kind in shipped_profiles().kinds)
    assert shipped_profiles().machine in " ".join(shown.split())


def test_where_nothing_can_be_written_nothing_is_measured(measured, tmp_path):
    for place in (tmp_path, tmp_path / "none" / "x.json"):
        with pytest.raises(InputError, match="cannot be written"):
            command.profile(file=place)
    measured.assert_not_called()
    assert list(tmp_path.iterdir()) == []


def test_a_file_replaces_an_earlier_one(tmp_path):
    check_place(tmp_path / "x")
    for data in (b"one", b"two"):
        write_whole(tmp_path / "x", data)
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_bytes() == b"two"
    with pytest.raises(InputError, match="cannot be written: it is not a regular file"):
        write_whole(tmp_path, b"")
    with pytest.raises(InputError, match="cannot be written"):
        write_whole(tmp_path / f"a{chr(0)}b", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["x"]


def test_a_device_is_never_replaced_by_a_file(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for refused in (lambda: check_place(pipe), lambda: write_whole(pipe, b"{}")):
        with pytest.raises(InputError, match="regular file"):
            refused()
    assert pipe.is_fifo()
    with pytest.raises(InputError, match="regular file"):
        check_place(tmp_path / "pipe" / "below")
