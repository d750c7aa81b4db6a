import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import get_args

import pytest

from serfer.cli.shared.service_commands import ServeCommand
from serfer.control.policies import ROUTES
from serfer.control.scenario import read_scenario
from serfer.core.costs.aws import shipped_aws
from serfer.core.costs.operator_costs import dump_profiles, shipped_profiles
from serfer.core.errors import InputError, UsageError
from serfer.core.sigv4 import Access
from serfer.sam.cost.scenario import read_profile
from serfer.sam.options import GpuPool, Options
from serfer.sam.samconfig import stacks
from serfer.settings import Settings, command_keys, load_settings, settings_with, unknown_settings
from serfer.splitter.network.description import read_preprocess
from tests.test_build_cache import give_away


@pytest.fixture(autouse=True)
def _plain(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in (*Settings.model_fields, "config"):
        monkeypatch.delenv(f"SERFER_{name.upper()}", raising=False)


def test_every_setting_has_a_default(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    settings = load_settings()
    assert settings.cache_dir == Path("/home/someone/.cache/serfer")
    assert settings.max_image_pixels == 100_000_000
    assert settings.facts() == shipped_aws()


BY_KIND = {Path: Path("/somewhere/else"), int: 3, float: 0.5, bool: True}
BY_NAME = {
    "state_machine": "arn:aws:states:us-east-1:123456789012:stateMachine:serfer",
    "log_level": "debug",
    "log_format": "json",
    "allow_hosts": ("photos.example:8000", "[fd00::1]:80", "fd00::2", "10.0.0.5"),
    "prewarm": "never",
    "cold_plan": "never",
    "local_url": "http://127.0.0.1:9001",
    "local_access": "LOCAL:a-secret-of-the-test",
}


def test_every_setting_is_a_variable(monkeypatch):
    values = {}
    for name, field in Settings.model_fields.items():
        kinds = (field.annotation, *get_args(field.annotation))
        by_kind = next((value for kind, value in BY_KIND.items() if kind in kinds), f"of-{name}")
        values[name] = BY_NAME.get(name, by_kind)
        text = ",".join(values[name]) if name == "allow_hosts" else str(values[name])
        monkeypatch.setenv(f"SERFER_{name.upper()}", text)
    settings = load_settings()
    secrets = ("instance_key", "local_access", "yield_key")
    assert not [name for name in secrets if values[name] in repr(settings)]
    for name in secrets:
        assert getattr(settings, name).get_secret_value() == values.pop(name)
    assert settings.model_dump(exclude={*secrets}) == values
    assert settings.signing_access() == Access("LOCAL", "a-secret-of-the-test")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MAX_IMAGE_BYTES", "0"),
        ("STATE_MACHINE", "serfer"),
        ("MAX_IMAGE_PIXELS", "-1"),
        ("LOCAL_CONCURRENCY", "x"),
        ("LOCAL_PORT", "65536"),
        ("LOCAL_URL", "https://elsewhere/with/a/path"),
        ("LOCAL_ACCESS", "an-id-alone"),
        ("LOCAL_ACCESS", "LOCAL:short"),
        ("YIELD_KEY", "two words"),
        ("API_IN_FLIGHT", "0"),
        ("API_QUEUE", "-1"),
        ("API_MAX_IMAGES", "1025"),
        ("API_DEADLINE_MS", "86340001"),
        ("API_RESULT_TTL_S", "0"),
        ("MAX_USD_PER_HOUR", "0"),
        ("ALLOW_HOSTS", "https://photos.example"),
        ("ALLOW_HOSTS", "photos.example:x"),
        ("ALLOW_HOSTS", "photos.example:65536"),
        ("ALLOW_HOSTS", "photos.example,"),
    ],
)
def test_an_invalid_value_is_refused_with_its_variable(monkeypatch, name, value):
    monkeypatch.setenv(f"SERFER_{name}", value)
    with pytest.raises(UsageError, match=f"^SERFER_{name}: "):
        load_settings()


class TestFile:
    """serfer.toml: below variables, and strict."""

    def test_its_keys_are_the_settings_names_and_variables_win(self, monkeypatch, tmp_path):
        content = 'port = 9000\nallow_hosts = ["a.example"]\nkeys_file = "keys.json"\napi_queue = 1\n'
        (tmp_path / "serfer.toml").write_text(content)
        monkeypatch.setenv("SERFER_API_QUEUE", "2")
        settings = load_settings()
        assert (settings.port, settings.allow_hosts, settings.api_queue) == (9000, ("a.example",), 2)
        assert settings.keys_file == tmp_path / "keys.json"
        assert settings_with(settings, {"port": 1}, "--port").allow_hosts == ("a.example",)
        assert Settings(api_queue=3).api_queue == 3
        with pytest.raises(ValueError, match="frozen"):
            settings.port = 5
        monkeypatch.setenv("SERFER_PORT", "x")
        with pytest.raises(UsageError, match=r"^SERFER_PORT: "):
            load_settings()

    def test_a_variable_names_another_one(self, monkeypatch, tmp_path):
        (tmp_path / "serfer.toml").write_text("port = 1")
        (tmp_path / "other.toml").write_text("port = 2")
        monkeypatch.setenv("SERFER_CONFIG", str(tmp_path / "other.toml"))
        assert load_settings().port == 2
        monkeypatch.setenv("SERFER_CONFIG", str(tmp_path / "none.toml"))
        with pytest.raises(InputError, match=r"^--config or SERFER_CONFIG: .*none.toml.* cannot be read: No such file"):
            load_settings()

    def test_a_folder_in_its_place_is_refused(self, tmp_path):
        (tmp_path / "serfer.toml").mkdir()
        with pytest.raises(InputError, match=r"^.serfer\.toml. cannot be read: "):
            load_settings()

    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("prot = 1", "^serfer.toml: 'prot' is not a setting: did you mean port\\?$"),
            ("labels = 'a.txt'", "'labels' is not a setting: .* a command's keys stand in its table, .serve.$"),
            ("[quux]\nport = 1", "^serfer.toml: 'quux' is not a setting: without it, serfer serve --show-config lists"),
            ("drivers = true", "^serfer.toml: drivers: Input should be a number, not true or false$"),
            ("max_usd_per_hour = true", "^serfer.toml: max_usd_per_hour: .*a number, not true or false$"),
            ('instance_key = "sf_x"', "^serfer.toml: instance_key is a secret, .* variable SERFER_INSTANCE_KEY alone"),
            ('local_access = "ID:0123456789abcdef"', "local_access is a secret"),
            ('store = "redis://:pw@host:1"', "^serfer.toml: store has a password, .* the variable SERFER_STORE alone$"),
            ("port = -1", "^serfer.toml: port: "),
            ("port = ", "^serfer.toml: not TOML: "),
            ("port = " + "9" * 5000, "^serfer.toml: not TOML: "),
            ("port = " + "[" * 20_000, "^serfer.toml: not TOML: "),
            (r'registry = "d\ne.py:f"', r"^serfer.toml: registry may make code run, which 'd\\ne.py:f' names: "),
            ("allow_hosts = [1]", "^serfer.toml: allow_hosts: .*a list of names"),
            ("allow_hosts = 1", "^serfer.toml: allow_hosts: .*a list of names"),
        ],
    )
    def test_what_is_wrong_is_named_with_the_file(self, tmp_path, content, words):
        (tmp_path / "serfer.toml").write_text(content)
        with pytest.raises(InputError, match=words):
            load_settings()

    @pytest.mark.hostile
    @pytest.mark.parametrize("key", ["cache_dir", "route", "keep_warm", "selector"])
    def test_found_file_makes_no_code_run(self, tmp_path, key):
        table = partial(command_keys, ServeCommand)
        readers = {"cache_dir": [load_settings], "selector": [table]}.get(key, [load_settings, table])
        words = f"^serfer.toml: {key} may make code run, .* --config serfer.toml$"
        for text in (r"d\ne.py:A", "pk:A:a=1", "pk:9A", "pk:A.x", "auto:x", "mark:trace=pk:A", "infas", "lsth.x:y"):
            (tmp_path / "serfer.toml").write_text(f'{key} = "{text}"\n[serve]\n{key} = "{text}"')
            for read in readers:
                with pytest.raises(InputError, match=words):
                    read()

    @pytest.mark.who_may
    @pytest.mark.parametrize("place", ["", "serfer.toml"])
    def test_file_that_another_user_may_write_is_read_by_its_name_alone(self, monkeypatch, tmp_path, place):
        (tmp_path / "serfer.toml").write_text('route = "auto"')
        (tmp_path / place).chmod(0o1777)
        with pytest.raises(InputError, match=r"can be written by other users: .*serfer\.toml.* set SERFER_CONFIG="):
            load_settings()
        monkeypatch.setenv("SERFER_CONFIG", "serfer.toml")
        assert load_settings().route == "auto"

    @pytest.mark.who_may
    def test_file_of_another_user_is_refused(self, monkeypatch, tmp_path):
        (tmp_path / "serfer.toml").write_text('cache_dir = "/shared/cache"')
        give_away(tmp_path / "serfer.toml", monkeypatch)
        with pytest.raises(InputError, match=r"^serfer\.toml belongs to another user"):
            load_settings()

    def test_file_that_is_named_may_name_code(self, monkeypatch, tmp_path):
        for route in (*ROUTES, "mark", "target-tracking:target=0.5"):
            (tmp_path / "serfer.toml").write_text(f'route = "{route}"\nkeep_warm = "300"')
            assert load_settings().route == route
        (tmp_path / "serfer.toml").write_text('route = "mine.py:Policy"')
        monkeypatch.setenv("SERFER_CONFIG", "serfer.toml")
        assert load_settings().route == "mine.py:Policy"


@pytest.mark.hostile
@pytest.mark.parametrize("text", ["x = " + "9" * 5000, "x = " + "[" * 20_000, "x = \xff"])
def test_toml_that_no_parser_takes_is_an_input_error(tmp_path, text):
    file = tmp_path / "samconfig.toml"
    file.write_bytes(text.encode("latin-1"))
    read = (
        lambda: Settings(aws_file=file).facts(),
        lambda: read_scenario(file),
        lambda: read_preprocess(file),
        lambda: read_profile(file, 100.0, Options("x", gpu=GpuPool("g4dn.xlarge", 1)), shipped_aws()),
        lambda: stacks(tmp_path, None),
    )
    for reader in read:
        with pytest.raises(InputError):
            reader()
    file.write_text(f"lambda.price_request = {10**400}")
    with pytest.raises(InputError):
        Settings(aws_file=file).facts()


def test_variables_of_a_kubernetes_service_called_serfer_are_not_settings(monkeypatch):
    address = "tcp://10.0.0.7:8000"
    links = {"PORT": address, "SERVICE_HOST": "10.0.0.7", "SERVICE_PORT_HTTP": "8000", "PORT_8000_TCP_ADDR": "10.0.0.7"}
    for name, value in links.items():
        monkeypatch.setenv(f"SERFER_{name}", value)
    monkeypatch.setattr("os.environ", {name: value for name, value in os.environ.items() if name[7:] in links})
    assert unknown_settings() is None
    assert load_settings().port == 8000


@pytest.mark.parametrize(
    ("value", "expected"), [("relative", "{cwd}/relative"), ("~/kept", "{home}/kept"), ("", "{home}/.cache/serfer")]
)
def test_the_cache_is_an_absolute_path(monkeypatch, tmp_path, value, expected):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SERFER_CACHE_DIR", value)
    assert str(load_settings().cache_dir) == expected.format(cwd=tmp_path, home=Path.home())


def test_profiles_come_from_the_option_or_the_variable_or_ship(tmp_path):
    mine = replace(shipped_profiles(), machine="another machine")
    own, named = tmp_path / "own.json", tmp_path / "named.json"
    own.write_text(dump_profiles(mine))
    named.write_text(dump_profiles(replace(mine, machine="a third")))
    assert Settings().profiles() == shipped_profiles()
    assert Settings(profiles_file=own).profiles() == mine
    assert Settings(profiles_file=own).profiles(named).machine == "a third"
    for settings in (Settings(), Settings(profiles_file=own)):
        assert settings.profiles(safety=0.1).safety == 0.1


def test_the_users_own_prices_stand_in_for_the_shipped_ones(tmp_path):
    path = tmp_path / "aws.toml"
    path.write_text("[lambda]\nprice_request = 0.5\n")
    facts = Settings(aws_file=path).facts().functions
    assert (facts.price_request, facts.price_gb_second) == (0.5, shipped_aws().functions.price_gb_second)
    for content, words in (
        (b"\xff\xfe", "^SERFER_AWS_FILE: .*not UTF-8 text"),
        (b"= =", "not TOML"),
        (b"[lambda]\ncolour = 1", "unknown 'colour'"),
        (b"[lambda]\nprice_request = -1", "price_request should be"),
        (None, "^SERFER_AWS_FILE: .*cannot be read: No such file"),
    ):
        path.unlink() if content is None else path.write_bytes(content)
        with pytest.raises(InputError, match=words):
            Settings(aws_file=path).facts()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"no json", "are not JSON"),
        (b"[]", "should be an object"),
        (b"{}", "lacks"),
        (dump_profiles(shipped_profiles()).replace('"format": 1', '"format": 99').encode(), "have format 99"),
        (b" " * (4 * 1024 * 1024 + 1), "more than 4,194,304 bytes"),
    ],
)
def test_profiles_that_cannot_be_used_are_refused_with_their_names(tmp_path, content, words):
    path = tmp_path / "profiles.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=f"^SERFER_PROFILES_FILE: .*profiles.json.*{words}"):
        Settings(profiles_file=path).profiles()
    with pytest.raises(InputError, match=f"^--profiles: .*profiles.json.*{words}"):
        Settings().profiles(path)


def test_a_local_driver_has_an_invocation_for_each_core_unless_the_limit_is_set(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 5})
    assert [load_settings().local_share(drivers) for drivers in (1, 2, 64)] == [3, 3, 3]
    assert [load_settings().local_share(2, widest) for widest in (0, 2, 4)] == [3, 3, 4], "the members of a gang"
    assert settings_with(load_settings(), {"allow_hosts": ("a",)}, "--allow-host").local_share() == 3
    monkeypatch.setenv("SERFER_LOCAL_CONCURRENCY", "16")
    assert [load_settings().local_share(drivers) for drivers in (1, 2, 3, 64)] == [16, 8, 5, 1]
    assert load_settings().local_share(8, 4) == 2
