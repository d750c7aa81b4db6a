"""Commands whose line is made of a dataclass: `--set`, variables and a table of the file say the rest."""

import re
from importlib import import_module

import pytest

from serfer.cli.main import COMMANDS, app
from serfer.cli.shared.terminal import _exit_code, _Interrupt
from serfer.core.options import is_on_line, options_of
from serfer.settings import TABLES

CLASSES = {name: place[2] for name, place in COMMANDS.items() if len(place) > 2}
MOST_ON_LINE = 17


@pytest.fixture
def refusal(capsys, tmp_path, monkeypatch):
    """What `serfer map` refuses, and its exit code."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        code = _exit_code(app, ["map", "x.tif", "--plan", "none", "--out", "y.tif", *arguments], _Interrupt())
        return code, " ".join(capsys.readouterr().err.split())

    return run


@pytest.mark.parametrize("name", CLASSES)
def test_a_line_has_about_a_dozen_options_and_help_names_every_key(name, capsys):
    module, _, attribute = CLASSES[name].partition(":")
    kind = getattr(import_module(module), attribute)
    assert (kind.command, name.replace(" ", "-") in TABLES) == (name, True)
    described = {item.name: is_on_line(kind, item) for item, _ in options_of(kind)}
    assert set(kind.line.split()) <= set(described)
    assert len(kind.line.split()) <= MOST_ON_LINE or not name.startswith("map")
    assert _exit_code(app, [*name.split(), "--help"], _Interrupt()) == 0
    text = " ".join(capsys.readouterr().out.split())
    keys = re.search(r"Keys: ([^.]*)\.", text)
    assert (keys[1].split(", ") if keys else []) == [key for key, on_line in described.items() if not on_line]


def test_set_wins_over_variable_and_this_over_table(refusal, monkeypatch, tmp_path):
    (tmp_path / "serfer.toml").write_text("[map]\nconcurrency = 0\n")
    assert refusal() == (2, "serfer: serfer.toml: [map] concurrency is at least 1, not 0")
    monkeypatch.setenv("SERFER_MAP_CONCURRENCY", "-1")
    assert refusal() == (2, "serfer: SERFER_MAP_CONCURRENCY is at least 1, not -1")
    assert refusal("--set", "concurrency=-2") == (2, "serfer: --set concurrency is at least 1, not -2")
    assert "none is not a plan directory" in refusal("--set", "concurrency=2")[1]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[map]\nconcurency = 2\n", "[map] 'concurency' is not a key of the command: did you mean concurrency?"),
        ("[map]\nstore = 'redis://me:secret@host'\n", "store has a password"),
        ("[map]\nconcurrency = true\n", "concurrency is a whole number, not 'True'"),
        ("[map]\nwindow = 'wide'\n", "window is a whole number or auto, not 'wide'"),
        ("[map]\ncompression = 'gzip'\n", "compression is deflate, zstd or none, not 'gzip'"),
        ("[map]\nmin_score = 1.5\n", "min_score is from 0 to 1, not 1.5"),
    ],
)
def test_wrong_table_is_refused_by_name(refusal, tmp_path, text, why):
    (tmp_path / "serfer.toml").write_text(text)
    assert why in refusal()[1]
