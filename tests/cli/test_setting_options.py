"""Options that stand for a setting: the command line wins over variables, and these over serfer.toml."""

import json
from pathlib import Path

import pytest
import typer

from serfer.cli.main import COMMANDS, app
from serfer.cli.shared.setting_options import given_settings, setting_of, settings_of
from serfer.cli.shared.terminal import _exit_code, _Interrupt
from serfer.core.errors import InputError, UsageError
from serfer.fleet.open_pool import local_instance
from serfer.settings import Settings, origins
from tests.core.plans import write_plan

_NUMBERS = ("port", "drivers", "api_in_flight", "api_queue", "api_drain_s", "max_usd_per_hour")
VALUES = {
    **dict.fromkeys(_NUMBERS, (1, 2, 3)),
    "open_registry": (False, True, True),
    "allow_hosts": (["a"], ["b"], ["c"]),
    "workers": ("local", "aws", "inprocess"),
    "engine": ("poll", "stepfunctions", "push"),
}
"""Values of the file, of the variable and of the option, for settings that do not take any text."""


@pytest.fixture(autouse=True)
def _folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


def leaves():
    root = typer.main.get_command(app)
    context = root.make_context("serfer", [], resilient_parsing=True)

    def below(command, path):
        if not hasattr(command, "list_commands"):
            yield path, command
            return
        for name in command.list_commands(context):
            yield from below(command.get_command(context, name), f"{path} {name}")

    for name in COMMANDS:
        if name != "bench":
            yield from below(root.get_command(context, name), name)


LEAVES = dict(leaves())


def parsed(path, arguments=()):
    """Return the context of a command with what it takes at least, and nothing run."""
    command = LEAVES[path]
    least = []
    for param in command.params:
        if param.required:
            least += ["1"] if param.param_type_name == "argument" else [param.opts[0], "1"]
    return command.make_context(path, [*least, *arguments])


SHARED = {path: {name for param in command.params if (name := setting_of(param))} for path, command in LEAVES.items()}
"""The settings that each command has an option for."""


def words(option, value):
    """Return what a command line has of an option with this value."""
    if value is True:
        return [option]
    return [word for each in (value if isinstance(value, list) else [value]) for word in (option, str(each))]


@pytest.mark.parametrize(("path", "name"), [(path, name) for path, names in SHARED.items() for name in sorted(names)])
def test_an_option_wins_over_the_variable_and_this_over_the_file(path, name, monkeypatch, tmp_path):
    [param] = [param for param in LEAVES[path].params if setting_of(param) == name]
    in_file, in_variable, given = VALUES.get(name, ("a", "b", "c"))

    def check(value, *arguments):
        context, expected = parsed(path, arguments), getattr(Settings(**{name: value}), name)
        assert getattr(settings_of(context), name) == expected
        argument = context.params[param.name]
        if arguments:
            assert argument in (value, Path(str(value)))
        elif param.callback.__name__ == "as_given":  # the command takes it from the settings itself
            assert argument is None
        else:
            assert argument == expected

    (tmp_path / "serfer.toml").write_text(f"{name} = {json.dumps(in_file)}\n")
    check(in_file)
    monkeypatch.setenv(f"SERFER_{name.upper()}", ",".join(in_variable) if name == "allow_hosts" else str(in_variable))
    check(in_variable)
    check(given, *words(param.opts[0], given))


def test_an_option_that_is_not_given_has_the_default_of_the_setting():
    """What --help says of it is true without settings."""
    for path, names in SHARED.items():
        context = parsed(path)
        for param in LEAVES[path].params:
            name, default = setting_of(param), param.get_default(context)
            if name in names and default not in (None, False):
                assert context.params[param.name] == default


def test_a_command_ignores_settings_that_it_has_no_option_for(monkeypatch, tmp_path):
    (tmp_path / "serfer.toml").write_text('engine = "poll"\nkeep_warm = "lsth"\n')
    monkeypatch.setenv("SERFER_DRIVERS", "2")
    assert parsed("keys list").params["file"] is None


@pytest.mark.parametrize(("path", "name"), [("serve", "results"), ("serve", "keys_file"), ("instance", "keys_file")])
def test_none_takes_back_what_is_set_below_it(path, name, monkeypatch, tmp_path):
    option = next(param.opts[0] for param in LEAVES[path].params if setting_of(param) == name)
    (tmp_path / "serfer.toml").write_text(f'{name} = "file:///somewhere"\n')
    assert getattr(settings_of(parsed(path)), name)
    assert getattr(settings_of(parsed(path, [option, "none"])), name) is None
    monkeypatch.setenv(f"SERFER_{name.upper()}", "none")
    assert getattr(settings_of(parsed(path)), name) is None


def test_instances_that_drivers_start_here_do_not_ask_for_the_keys_of_drivers(tmp_path):
    (tmp_path / "serfer.toml").write_text('keys_file = "keys.json"\n')
    words = local_instance("--plan=plan")
    context = parsed("instance", words[words.index("instance") + 1 :])
    assert settings_of(context).keys_file is None
    assert context.params["host"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("arguments", "variables", "file", "left"),
    [
        (["--stack", "prod"], {"STORE": "file:///s", "WORKERS": "local"}, 'object_store = "s3://b/p"', ["stack"]),
        (["--stack", "prod", "--store", "s3://b/p"], {"STORE": "file:///s"}, "", ["store", "stack"]),
        ([], {"STACK": "prod", "STORE": "s3://b/p"}, 'workers = "local"', ["store", "stack"]),
        (["--workers", "inprocess"], {"STACK": "prod", "STORE": "file:///s"}, "", ["store", "workers"]),
        ([], {"WORKERS": "local"}, 'stack = "prod"\nobject_store = "file:///o"', ["object_store", "workers"]),
        (["--workers", "aws"], {"STACK": "prod"}, 'store = "s3://b/p"', ["workers", "stack"]),
        (["--store", "s3://b/p"], {}, 'stack = "prod"', ["store", "stack"]),
    ],
)
def test_a_stack_replaces_workers_and_stores_below_it_and_they_replace_a_stack(
    arguments, variables, file, left, monkeypatch, tmp_path
):
    (tmp_path / "serfer.toml").write_text(file)
    for name, value in variables.items():
        monkeypatch.setenv(f"SERFER_{name}", value)
    params = parsed("verify", arguments).params
    assert [name for name in ("store", "object_store", "workers", "stack") if params[name] is not None] == left


def test_what_a_stack_replaces_is_shown_as_not_set(monkeypatch):
    monkeypatch.setenv("SERFER_STORE", "file:///s")
    context = parsed("serve", ["--stack", "prod"])
    shown = {name: origin for name, _, origin in origins(settings_of(context), given_settings(context))}
    assert (shown["store"], shown["stack"]) == ("default", "--stack")


def test_a_wrong_value_is_refused_by_the_name_of_what_has_it(monkeypatch, tmp_path):
    with pytest.raises(UsageError, match=r"^--allow-host: .*'http://a' is not a host name"):
        settings_of(parsed("serve", ["--allow-host", "http://a"]))
    (tmp_path / "serfer.toml").write_text("port = 70000\n")
    with pytest.raises(InputError, match=r"^serfer.toml: port: "):
        settings_of(parsed("instance"))
    monkeypatch.setenv("SERFER_PORT", "80000")
    with pytest.raises(UsageError, match=r"^SERFER_PORT: "):
        settings_of(parsed("instance"))
    assert parsed("instance", ["--port", "1"]).params["port"] == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "(--store is from serfer.toml; --workers is from SERFER_WORKERS)"),
        (["--workers", "local"], "(--store is from serfer.toml)"),
        (["--workers", "local", "--store", "memory://"], ""),
    ],
)
def test_an_error_says_where_an_option_is_from_that_was_not_given(arguments, told, monkeypatch, tmp_path, capsys):
    (tmp_path / "serfer.toml").write_text('store = "memory://"\n')
    monkeypatch.setenv("SERFER_WORKERS", "local")
    plan = write_plan(tmp_path / "plan")
    assert _exit_code(app, ["verify", str(plan), *arguments], _Interrupt()) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("serfer: --store memory:// cannot be shared with local workers (--workers local)")
    assert line.endswith(told or "use redis:// or file://")
