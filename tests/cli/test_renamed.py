"""Commands and options that were renamed: who types an old name is told the new one."""

import pytest
import typer

from serfer.cli.main import COMMANDS, app
from serfer.cli.shared.renamed import COMMANDS as RENAMED
from serfer.cli.shared.renamed import OPTIONS
from serfer.cli.shared.terminal import _exit_code, _Interrupt


@pytest.fixture
def said(capsys):
    """Run a command that is refused as wrong use; return what it says."""

    def run(*words):
        assert _exit_code(app, [*words], _Interrupt()) == 2
        return capsys.readouterr().err

    return run


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_command_names_the_new_one_which_exists(said, old):
    assert said(old, "--help") == f"serfer: `serfer {old}` is now `serfer {RENAMED[old]}`\n"
    assert old not in COMMANDS
    command, (first, *others) = typer.main.get_command(app), RENAMED[old].split()
    command = command.get_command(None, first)
    if others and not others[0].startswith("-"):
        assert others[0] in command.list_commands(None)


def test_an_old_option_names_the_new_one(said):
    assert [*OPTIONS] == ["--driver"]
    for words in (
        ["classify", "cat.png", "--driver", "poll"],
        ["serve", "--driver=poll"],
        ["deploy", "package", "plan"],
    ):
        refused = said(*words, *(["--driver", "poll"] if words[0] == "deploy" else []))
        command = " ".join(words[: 2 if words[0] == "deploy" else 1])
        assert refused == f"serfer: --driver is now --engine (see serfer {command} --help)\n"


def test_a_name_that_never_was_is_refused_without_advice(said):
    assert "is now" not in said("upp")
    assert "is now" not in said("app", "up")
    assert "is now" not in said("doctor", "--drive")
