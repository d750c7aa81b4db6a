"""Commands run in this process: what they raise is raised."""

import json

from typer.testing import CliRunner

from serfer.cli.main import app


def run(*words):
    """Return the result of a command that ends well."""
    result = CliRunner().invoke(app, [*map(str, words)])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


def rows(*words):
    """Return the lines that a command prints with --json."""
    return [json.loads(line) for line in run(*words, "--json").stdout.splitlines()]
