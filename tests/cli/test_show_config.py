"""`serfer serve --show-config`: what holds, and where it comes from."""

import json
from pathlib import Path

import pytest

from serfer.settings import Settings


@pytest.fixture
def shown(monkeypatch, tmp_path, serfer):
    """Return settings, by name, as (value, origin), of a folder with a file and of some variables."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "serfer.toml").write_text('port = 9000\nengine = "poll"\napi_queue = 1\n')
    for name, value in {"ENGINE": "push", "API_QUEUE": "2", "INSTANCE_KEY": "sf_hush", "KEYS_FILE": "k.json"}.items():
        monkeypatch.setenv(f"SERFER_{name}", value)

    def run(*options):
        out = serfer("serve", "--show-config", *options).out
        assert "hush" not in out
        if "--json" not in options:
            return out
        lines = [json.loads(line) for line in out.splitlines()]
        return {line["setting"]: (line["value"], line["from"]) for line in lines}

    return run


def test_options_win_over_variables_and_these_over_the_file(shown):
    held = shown("--json", "--set", "queue=3", "--set=max_image_bytes=5", "--route", "auto", "--keys", "mine.json")
    assert {*held} == {*Settings.model_fields}
    assert held["port"] == (9000, "serfer.toml")
    assert held["engine"] == ("push", "SERFER_ENGINE")
    assert held["api_queue"] == (3, "--set queue")
    assert held["route"] == ("auto", "--route")
    assert held["keys_file"] == (str(Path("mine.json").absolute()), "--keys")
    assert held["max_image_bytes"] == (5, "--set max_image_bytes")
    assert held["host"] == ("127.0.0.1", "default")
    assert held["instance_key"] == ("***", "SERFER_INSTANCE_KEY")
    assert held["yield_key"] == (None, "default")


def test_passwords_of_urls_are_hidden(shown, monkeypatch):
    monkeypatch.setenv("SERFER_STORE", "redis://:hush@host:6379/0")
    assert shown("--json")["store"] == ("redis://:***@host:6379/0", "SERFER_STORE")
    assert "rediss://reader:***@host" in shown("--store", "rediss://reader:hush@host")


def test_a_person_gets_a_table(shown):
    lines = [line.split() for line in shown("--port", "1").splitlines()]
    assert ["port", "1", "--port"] in lines
    assert ["engine", "push", "SERFER_ENGINE"] in lines
