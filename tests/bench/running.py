"""Commands run in this process: what they raise is raised."""

import json

import typer
from typer.testing import CliRunner

from serfer.cli.main import app


def run(*words):
    result = CliRunner().invoke(app, [*map(str, words)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def rows(*words):
    return [json.loads(line) for line in run(*words, "--json").stdout.splitlines()]


def parse(words):
    """Have the command line parse words; return the command that they name, which is not a group."""
    name, command, context = "serfer", typer.main.get_command(app), None
    while hasattr(command, "resolve_command"):
        context = command.make_context(name, [*words], parent=context)
        name, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
    command.make_context(name, [*words], parent=context)
    return command
