"""Commands made of a dataclass: a line wins over `--set`, this over variables, and these over the file."""

import json
import logging
import re
from importlib import import_module
from types import SimpleNamespace

import pytest

from serfer.cli.balanced import _Lines, _passed_on, _print_ready
from serfer.cli.main import COMMANDS
from serfer.cli.shared import schema
from serfer.cli.shared.lazy import make_typer_command
from serfer.cli.shared.schema import given_settings, settings_of
from serfer.cli.started_process import LEFT_OUT
from serfer.core.errors import InputError, UsageError
from serfer.core.options import is_on_line, options_of
from serfer.fleet.open_pool import local_instance
from serfer.settings import TABLES, Settings, load_settings, origins
from tests.core.plans import write_plan

GROUPS = {
    "app register": "serfer.cli.registry.options:RegisterCommand",
    "deploy package": "serfer.cli.shared.plan_commands:PackageCommand",
    "deploy warm": "serfer.cli.shared.plan_commands:WarmCommand",
}
CLASSES = {name: place[2] for name, place in COMMANDS.items() if len(place) > 2} | GROUPS
MOST_ON_LINE = 18
_NUMBERS = ("port", "drivers", "api_in_flight", "api_queue", "api_drain_s", "max_usd_per_hour")
VALUES = {
    **dict.fromkeys(_NUMBERS, (1, 2, 3)),
    "open_registry": (False, True, True),
    "allow_hosts": (["a"], ["b"], ["c"]),
    "route": ("auto", "b", "c"),
    "keep_warm": ("lsth", "b", "c"),
    "workers": ("local", "aws", "inprocess"),
    "engine": ("poll", "push", "poll"),
    "log_level": ("error", "debug", "warning"),
    "log_format": ("json", "text", "auto"),
}
"""Values of the file, of the variable and of the option, for settings that do not take any text."""


@pytest.fixture(autouse=True)
def folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def class_of(name):
    module, _, attribute = CLASSES[name].partition(":")
    return getattr(import_module(module), attribute)


@pytest.fixture
def called(monkeypatch):
    """Parse a line of a command, with what it takes at least: its options and settings; nothing runs."""

    def call(name, *arguments):
        got = SimpleNamespace()

        def run(options, context):
            got.options, got.settings, got.context = options, settings_of(context), context
            assert load_settings() == got.settings

        monkeypatch.setattr(schema, "import_module", lambda _module: SimpleNamespace(run=run))
        least = []
        for item, described in options_of(class_of(name)):
            if item.default is not item.default_factory:  # both are MISSING where there is none
                continue
            least += ["1"] if described.is_argument else [described.flag or f"--{item.name}", "1"]
        command = make_typer_command(name, schema.make_command(class_of(name), "nowhere:run"))
        with command.make_context("x", [*least, *arguments]) as context:
            command.invoke(context)
        return got

    return call


@pytest.fixture
def refusal(serfer):
    """What `serfer map` refuses, and its exit code."""

    def run(*arguments):
        refused = serfer("map", "x.tif", "--plan", "none", "--out", "y.tif", *arguments)
        return refused.code, " ".join(refused.err.split())

    return run


@pytest.mark.parametrize("name", CLASSES)
def test_line_has_about_a_dozen_options_and_help_names_every_key(name, serfer):
    kind = class_of(name)
    assert (kind.command, name.replace(" ", "-") in TABLES) == (name, True)
    described = {item.name: is_on_line(kind, item) for item, _ in options_of(kind)}
    assert set(kind.line.split()) <= set(described)
    assert len(kind.line.split()) <= MOST_ON_LINE
    text = " ".join(serfer(*name.split(), "--help").out.split())
    keys = re.search(r"Keys: ([^.]*)\.", text)
    assert (keys[1].split(", ") if keys else []) == [key for key, on_line in described.items() if not on_line]


def test_set_wins_over_variable_and_this_over_table(refusal, called, monkeypatch, folder):
    (folder / "serfer.toml").write_text("[map]\nconcurrency = 0\n[explain]\nburst = 2\n")
    assert refusal() == (2, "serfer: serfer.toml: [map] concurrency is at least 1, not 0")
    monkeypatch.setenv("SERFER_MAP_CONCURRENCY", "-1")
    assert refusal() == (2, "serfer: SERFER_MAP_CONCURRENCY is at least 1, not -1")
    assert refusal("--set", "concurrency=-2") == (2, "serfer: --set concurrency is at least 1, not -2")
    assert "none is not a plan directory" in refusal("--set", "concurrency=2")[1]
    assert called("explain").options.burst == 2
    monkeypatch.setenv("SERFER_EXPLAIN_BURST", "3")
    assert called("explain").options.burst == 3
    assert called("explain", "--set", "burst=4").options.burst == 4
    assert called("explain", "--set", "burst=4", "--burst", "5").options.burst == 5


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[map]\nconcurency = 2\n", "[map] 'concurency' is not a key of the command: did you mean concurrency?"),
        ("[map]\nstore = 'redis://me:secret@host'\n", "store has a password"),
        ("[map]\nconcurrency = true\n", "concurrency is a whole number, not 'True'"),
        ("[map]\nbands = ['a']\n", "serfer.toml: [map] bands: --bands is a list of numbers"),
        (f"[map]\nconcurrency = {'9' * 5000}\n", "serfer.toml: not TOML"),
        ("[map]\nno-data = 3\n", "'no-data' is not a key of the command: did you mean no_data?"),
        (
            "[map]\nyield_to = ['http://u:p@h:1']\n",
            "yield_to has a password, which belongs in the variable SERFER_MAP_YIE",
        ),
        ("[map]\nout = 'x.tif'\n", "[map] out is given on the command's line alone"),
        ("[mapplan]\n", "'mapplan' is not a setting: did you mean [map-plan]?"),
        ("[deploy.package]\nname = 'x'\n", "'deploy' is not a setting: did you mean [deploy-package]?"),
        ("[register]\nby = 'x'\n", "'register' is not a setting: did you mean [app-register]?"),
    ],
)
def test_wrong_table_is_refused_by_name(refusal, folder, text, why):
    (folder / "serfer.toml").write_text(text)
    assert why in refusal()[1]


def test_option_that_is_a_key_is_refused_with_the_key(refusal):
    code, line = refusal("--concurrency", "2")
    assert code == 2
    assert re.fullmatch(
        "serfer: No such option:? '?--concurrency'?: it is a key, "
        r"--set concurrency=VALUE \(see serfer map --help\)",
        line,
    )


SETTINGS = [
    pytest.param(name, described.setting, item.name, id=f"{name}-{item.name}")
    for name in CLASSES
    for item, described in options_of(class_of(name))
    if described.setting
]


@pytest.mark.parametrize(("name", "setting", "key"), SETTINGS)
def test_option_of_a_setting_wins_over_the_variable_and_this_over_the_file(
    called, name, setting, key, monkeypatch, folder
):
    in_file, in_variable, given = VALUES.get(setting, ("a", "b", "c"))
    described = {item.name: option for item, option in options_of(class_of(name))}[key]

    def check(value, *arguments):
        got = called(name, *arguments)
        expected = getattr(Settings(**{setting: value}), setting)
        assert getattr(got.settings, setting) == expected
        if described.own_default and not arguments:  # the command takes it from the settings itself
            assert getattr(got.options, key) is None
        else:
            found = getattr(got.options, key)
            assert [*found] == [*expected] if isinstance(found, tuple) else str(found) in (str(expected), str(value))

    (folder / "serfer.toml").write_text(f"{setting} = {json.dumps(in_file)}\n")
    check(in_file)
    text = [value[0] if isinstance(value, list) else value for value in (in_variable, given)]
    monkeypatch.setenv(f"SERFER_{setting.upper()}", str(text[0]))
    check(in_variable)
    check(given, "--set", f"{key}={text[1]}")


def test_settings_of_a_line_are_those_of_all_that_the_command_does(called):
    settings = called(
        "cost", "--set", "max_image_bytes=5", "--set", "allow_hosts=a", "--set", "allow_hosts=b, c"
    ).settings
    assert (settings.max_image_bytes, settings.allow_hosts) == (5, ("a", "b", "c"))
    with pytest.raises(UsageError, match=r"^--set port: "):
        called("cost", "--set", "port=abc")


def test_drivers_get_what_the_balancer_was_given(called):
    own = ["--app=demo", "--app=results", "--registry=r", "--route=random", "--keys=k.json", "--set=queue=1"]
    assert {*_passed_on(called("serve", *own, "--set=size=1x1", "--drivers=2").context)} == {*own}


def test_a_balancer_prints_a_request_that_any_network_answers(capsys):
    _print_ready(None, {"url": "http://[fd00::1]:1"})
    assert "'http://[fd00::1]:1/v1/predict' " in capsys.readouterr().out


@pytest.mark.parametrize(("name", "setting"), [("serve", "results"), ("serve", "keys_file"), ("instance", "keys_file")])
def test_none_takes_back_what_is_set_below_it(called, name, setting, monkeypatch, folder):
    key = {"keys_file": "keys"}.get(setting, setting)
    (folder / "serfer.toml").write_text(f'{setting} = "file:///somewhere"\n')
    assert getattr(called(name).settings, setting)
    assert getattr(called(name, "--set", f"{key}=none").settings, setting) is None
    monkeypatch.setenv(f"SERFER_{setting.upper()}", "none")
    assert getattr(called(name).settings, setting) is None


def test_instances_that_drivers_start_here_do_not_ask_for_the_keys_of_drivers(called, monkeypatch, folder):
    table = '[instance]\nmodel = ["vgg16"]\nregistry = "r"\nthreads = 3\n'
    (folder / "serfer.toml").write_text(f'keys_file = "keys.json"\n{table}')
    words = local_instance("--plan=plan")
    monkeypatch.setattr("serfer.settings._left_out", {*LEFT_OUT["instance"]})
    got = called("instance", *words[words.index("instance") + 1 :])
    assert (got.settings.keys_file, got.options.host, got.options.drain_s) == (None, "127.0.0.1", 0)
    assert (got.options.model, got.options.plan, got.options.registry, got.options.threads) == ((), ("plan",), None, 3)


@pytest.mark.parametrize(
    ("arguments", "variables", "file", "expected"),
    [
        ([], {"PORT": "8"}, "[serve]\nport = 9", {"port": 8}),
        ([], {}, "port = 7\n[serve]\nport = 9", {"port": 9}),
        ([], {"PORT": "8", "SERVE_PORT": "6"}, "[serve]\nport = 9", {"port": 6}),
        (["--set", "port=5"], {"SERVE_PORT": "6"}, "[serve]\nport = 9", {"port": 5}),
        ([], {"REGISTRY": "b"}, "[serve]\nregistry = 'a'", {"registry": None}),
        ([], {}, "[serve]\nregistry = 'a'", {"registry": "a"}),
        (["--set", "allow_hosts=b"], {}, "[serve]\nallow_host = ['a']", {"allow_host": ("b",)}),
        (["--set", "allow_host=a", "--set", "allow_host=b, c"], {}, "", {"allow_host": ("a", "b", "c")}),
        ([], {"WORKERS": "local"}, "[serve]\nstack = 's'", {"workers": "local"}),
        ([], {}, "store = 't'\n[serve]\nstack = 's'", {"stack": "s"}),
        ([], {"STACK": "s"}, "[serve]\nstore = 't'", {"stack": "s"}),
        (["--stack", "prod"], {"STORE": "s", "WORKERS": "local"}, 'object_store = "t"', {"stack": "prod"}),
        (["--stack", "prod", "--store", "s"], {"STORE": "file:///s"}, "", {"store": "s", "stack": "prod"}),
        ([], {"STACK": "prod", "STORE": "s"}, 'workers = "local"', {"store": "s", "stack": "prod"}),
        (["--workers", "local"], {"STACK": "prod", "STORE": "s"}, "", {"store": "s", "workers": "local"}),
        ([], {"WORKERS": "local"}, 'stack = "prod"\nobject_store = "o"', {"object_store": "o", "workers": "local"}),
        (["--workers", "aws"], {"STACK": "prod"}, 'store = "s3://b/p"', {"workers": "aws", "stack": "prod"}),
        (["--store", "s"], {}, 'stack = "prod"', {"store": "s", "stack": "prod"}),
        (["--set", "stack=prod"], {"STORE": "file:///s"}, "", {"stack": "prod"}),
    ],
)
def test_source_wins_over_those_below_and_a_stack_replaces_their_workers_and_stores(
    called, arguments, variables, file, expected, monkeypatch, folder
):
    (folder / "serfer.toml").write_text(file)
    for name, value in variables.items():
        monkeypatch.setenv(f"SERFER_{name}", value)
    got = called("serve", *arguments)
    of_a_stack = dict.fromkeys(("store", "object_store", "workers", "stack"))
    assert {name: getattr(got.options, name) for name in of_a_stack | expected} == of_a_stack | expected
    shown = {name: origin for name, _, origin in origins(got.settings, given_settings(got.context))}
    assert [name for name in of_a_stack if shown[name] != "default"] == [
        name for name in of_a_stack if name in expected
    ]


def test_wrong_setting_is_refused_by_the_name_of_what_has_it(called, monkeypatch, folder):
    with pytest.raises(UsageError, match=r"^--set allow_host: .*'http://a' is not a host name"):
        called("serve", "--set", "allow_host=http://a")
    (folder / "serfer.toml").write_text("port = 70000\n")
    with pytest.raises(InputError, match=r"^serfer.toml: port: "):
        called("instance")
    monkeypatch.setenv("SERFER_PORT", "80000")
    with pytest.raises(UsageError, match=r"^SERFER_PORT: "):
        called("instance")
    assert called("instance", "--port", "1").options.port == 1


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "(--store is from serfer.toml; --workers is from SERFER_WORKERS)"),
        (["--workers", "local"], "(--store is from serfer.toml)"),
        (["--workers", "local", "--store", "memory://"], ""),
        (["--workers", "local", "--set", "store=memory://"], "(--store is from --set store)"),
    ],
)
def test_error_says_where_an_option_is_from_that_was_not_given(arguments, told, monkeypatch, folder, serfer):
    (folder / "serfer.toml").write_text('store = "memory://"\n')
    monkeypatch.setenv("SERFER_WORKERS", "local")
    plan = write_plan(folder / "plan")
    refused = serfer("verify", str(plan), *arguments)
    [line] = refused.err.splitlines()
    assert refused.code == 2
    assert line.startswith("serfer: --store memory:// cannot be shared with local workers (--workers local)")
    assert line.endswith(told or "use redis:// or file://")


def test_error_says_of_an_option_that_it_names_that_it_is_a_key(folder, serfer):
    line = ["deploy", "package", str(write_plan(folder / "plan")), "--out", "build", "--set", "ping_queries=2"]
    refused = serfer(*line)
    assert refused.code == 2
    assert refused.err.endswith("(ping_every is a key: --set ping_every=VALUE)\n")


def test_a_functions_line_has_its_own_level_on_a_terminal(capfd, monkeypatch):
    monkeypatch.setattr("serfer.cli.balanced.err", SimpleNamespace(is_terminal=True))
    lines = _Lines("info")
    lines.of_a_function('net-0: {"level": "ERROR", "message": "task failed", "traceback": 5}')
    lines.of_a_function("net-0: as it is")
    handlers = logging.getLogger("serfer").handlers
    before = len(handlers)
    lines.close()
    assert len(handlers) == before - 1  # its own, whose descriptor is closed
    failed, plain = capfd.readouterr().err.splitlines()
    assert (failed.split()[1:5], plain.split()[1]) == (["ERROR", "function", "task", "failed"], "INFO")
    assert "stack=5" in failed
    assert "as it is" in plain
