import json
import logging
import os
import re
from datetime import UTC, datetime
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from typer.testing import CliRunner

from serfer.api.auth.keys import (
    Client,
    KeyRing,
    Quota,
    Scope,
    add_key,
    authorise,
    read_keys,
    remove_key,
    require,
    require_scope,
)
from serfer.api.http.problems import Problem
from serfer.cli.keys import app
from serfer.core.errors import InputError, UsageError
from tests.support.hand_clock import Clock


@pytest.fixture
def clock():
    return Clock(1000.0)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "keys.json"


def request(*headers):
    encoded = [(name.encode(), value.encode("latin-1")) for name, value in headers]
    return Request({"type": "http", "method": "GET", "headers": encoded})


def refused(status, ask, *arguments):
    with pytest.raises(Problem) as caught:
        ask(*arguments)
    assert caught.value.status == status, caught.value.detail
    return caught.value


@pytest.mark.who_may
def test_a_key_is_known_by_its_digest_alone(path, clock):
    key = add_key(path, "phone", None, now=datetime(2026, 1, 31, 12, tzinfo=UTC))
    assert re.fullmatch(r"sf_[\w-]{43}", key)
    assert KeyRing(path, clock).check(key) == Client("phone")
    assert json.loads(path.read_bytes()) == {
        "keys": [{"name": "phone", "sha256": sha256(key.encode()).hexdigest(), "created": "2026-01-31T12:00:00Z"}]
    }
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.who_may
def test_each_key_is_its_own_clients(path, clock):
    keys = {name: add_key(path, name, None) for name in ("a", "b", "c")}
    ring = KeyRing(path, clock)
    assert [ring.check(keys[name]).name for name in "cab"] == ["c", "a", "b"]


@pytest.mark.who_may
@pytest.mark.parametrize("presented", ["", "sf_", "sf_" + "A" * 43, "A" * 46, "é", "sf_" + "A" * 10_000])
def test_an_unknown_key_is_refused(path, clock, presented):
    add_key(path, "phone", None)
    assert refused(401, KeyRing(path, clock).check, presented).headers == {"WWW-Authenticate": "Bearer"}


@pytest.mark.who_may
def test_the_digest_of_a_password_opens_nothing(path, clock):
    path.write_text(json.dumps({"keys": [{"name": "a", "sha256": sha256(b"hunter2").hexdigest()}]}))
    refused(401, KeyRing(path, clock).check, "hunter2")


@pytest.mark.who_may
def test_a_key_may_come_in_either_header(path, clock):
    key = add_key(path, "phone", None)
    ring = KeyRing(path, clock)
    for headers in (
        [("authorization", f"Bearer {key}")],
        [("authorization", f"bearer  {key} ")],
        [("x-api-key", key)],
        [("x-api-key", key), ("authorization", f"Bearer {key}")],
        [("x-api-key", key), ("authorization", "Basic dTpw")],
    ):
        assert authorise(request(*headers), ring) == Client("phone")


@pytest.mark.who_may
def test_no_key_and_two_keys_are_refused(path, clock):
    one, other = add_key(path, "one", None), add_key(path, "other", None)
    ring = KeyRing(path, clock)
    for headers in (
        [],
        [("authorization", "Basic dTpw")],
        [("authorization", one)],
        [("authorization", "Bearer")],
        [("authorization", f"Bearer {one}"), ("x-api-key", other)],
        [("x-api-key", one), ("x-api-key", other)],
        [("x-api-key", f"{one}, {one}")],
    ):
        assert refused(401, authorise, request(*headers), ring).headers == {"WWW-Authenticate": "Bearer"}


@pytest.mark.who_may
def test_keys_come_and_go_without_a_restart_within_a_second(path, clock):
    first = add_key(path, "first", None)
    ring = KeyRing(path, clock)
    second = add_key(path, "second", None)
    clock.now += 0.9
    refused(401, ring.check, second)
    clock.now += 0.1
    assert ring.check(second).name == "second"
    remove_key(path, "first")
    clock.now += 1
    refused(401, ring.check, first)
    assert ring.check(second).name == "second"


@pytest.mark.who_may
@pytest.mark.parametrize("broken", [b"", b"{", b'{"keys": 1}', None])
def test_a_broken_file_keeps_the_keys_and_says_so_once(path, clock, caplog, broken):
    key = add_key(path, "phone", None)
    ring = KeyRing(path, clock)
    path.unlink() if broken is None else path.write_bytes(broken)
    for _ in range(3):
        clock.now += 1
        assert ring.check(key).name == "phone"
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "file of API keys" in record.getMessage()
    path.write_text('{"keys": []}')
    clock.now += 1
    refused(401, ring.check, key)


DIGEST = "5e" * 32


@pytest.mark.who_may
@pytest.mark.parametrize(
    ("content", "word"),
    [
        ({"keys": [{"name": "a"}]}, "keys.0.sha256"),
        ({"keys": [{"name": "a", "sha256": DIGEST[1:]}]}, "keys.0.sha256"),
        ({"keys": [{"name": "a", "sha256": DIGEST, "key": "x"}]}, "keys.0.key"),
        ({"keys": [{"name": "a b", "sha256": DIGEST}]}, "keys.0.name"),
        ({"keys": [{"name": "a", "sha256": DIGEST, "requests_per_minute": 0}]}, "requests_per_minute"),
        ({"keys": [{"name": "a", "sha256": DIGEST}, {"name": "b", "sha256": DIGEST}]}, "two keys"),
        ({"keys": [{"name": "a", "sha256": DIGEST}, {"name": "a", "sha256": "6f" * 32}]}, "two keys"),
        ({"keys": [{"name": str(n), "sha256": f"{n:064x}"} for n in range(1001)]}, "1000"),
        ([" " * 2**20], "1,048,576 bytes"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_and_no_digest(path, clock, content, word):
    path.write_text(json.dumps(content))
    with pytest.raises(InputError, match=re.escape(word)) as caught:
        KeyRing(path, clock)
    assert str(path) in str(caught.value)
    assert DIGEST[1:20] not in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.who_may
def test_a_missing_file_is_named_with_the_command_that_makes_it(path, clock):
    with pytest.raises(UsageError, match=f"keys add NAME --file {path}"):
        KeyRing(path, clock)


@pytest.mark.who_may
def test_neither_keys_nor_digests_show_in_a_repr(path, clock):
    key = add_key(path, "phone", 5)
    ring = KeyRing(path, clock)
    shown = repr((ring, ring._known, ring.check(key), read_keys(path)))
    assert key not in shown
    assert sha256(key.encode()).hexdigest() not in shown
    assert repr(sha256(key.encode()).digest()) not in shown


@pytest.mark.who_may
def test_a_key_over_quota_gets_retry_after(path, clock):
    key, other = add_key(path, "phone", 6, burst=2), add_key(path, "other", None)
    ring = KeyRing(path, clock)
    ring.check(key)
    ring.check(key)
    clock.now += 0.5
    problem = refused(429, ring.check, key)
    assert (problem.headers, problem.slug) == ({"Retry-After": "10"}, "quota")
    ring.check(other)
    clock.now += 9
    assert refused(429, ring.check, key).headers == {"Retry-After": "1"}
    clock.now += 1
    ring.check(key)


@pytest.mark.who_may
def test_quota_usage_survives_a_reload_unless_the_quota_changes(path, clock):
    key = add_key(path, "phone", 1, burst=1)
    ring = KeyRing(path, clock)
    ring.check(key)
    add_key(path, "other", None)
    clock.now += 1
    refused(429, ring.check, key)
    content = json.loads(path.read_bytes())
    content["keys"][0]["requests_per_minute"] = 2
    path.write_text(json.dumps(content))
    clock.now += 1
    assert ring.check(key) == Client("phone", 2, 1)


@pytest.mark.who_may
@given(
    st.integers(1, 10_000), st.integers(1, 20), st.floats(0, 1e8), st.lists(st.floats(0, 30), min_size=1, max_size=60)
)
def test_a_quota_is_never_exceeded_and_its_waits_are_exact(rate, burst, start, pauses):
    quota, now, taken = Quota(rate, burst, None), start, []
    for pause in pauses:
        now += pause
        wait = quota.take(now)
        if wait:
            assert wait < 1e-3 or quota.take(now + wait / 2) > 0
            now += wait
            assert quota.take(now) == 0
        taken.append(now)
    for first, begin in enumerate(taken):
        for last in range(first, len(taken)):
            allowed = burst + (taken[last] - begin + 1e-3) * rate / 60
            assert last - first + 1 <= allowed


@pytest.mark.who_may
def test_adding_refuses_existing_and_invalid_names(path):
    add_key(path, "phone", None)
    before = path.read_bytes()
    with pytest.raises(UsageError, match="'phone'"):
        add_key(path, "phone", None)
    with pytest.raises(InputError, match="name"):
        add_key(path, "two words", None)
    with pytest.raises(InputError, match="requests_per_minute"):
        add_key(path, "b", 0)
    with pytest.raises(UsageError, match="'b'"):
        remove_key(path, "b")
    assert path.read_bytes() == before
    assert sorted(os.listdir(path.parent)) == [f".{path.name}.lock", path.name]  # noqa: PTH208 - only the names


@pytest.mark.who_may
def test_a_broken_file_is_not_written_over(path):
    path.write_text("[keys]")
    with pytest.raises(InputError):
        add_key(path, "phone", None)
    assert path.read_text() == "[keys]"


def command(*words, **variables):
    return CliRunner(env={"SERFER_KEYS_FILE": "", **variables}).invoke(app, words)


@pytest.mark.who_may
def test_the_command_shows_a_key_once_and_no_digest_ever(path, clock):
    added = command("add", "phone", "--per-minute", "60", SERFER_KEYS_FILE=str(path))
    key = added.stdout.strip()
    assert KeyRing(path, clock).check(key) == Client("phone", 60)
    command("add", "other", "--file", str(path))
    table, lines = command("list", "--file", str(path)), command("list", "--json", "--file", str(path))
    assert re.search(r"phone +60 a minute +\d{4}-\d\d-\d\d\nother +no quota", table.stdout)
    assert [json.loads(line)["name"] for line in lines.stdout.splitlines()] == ["phone", "other"]
    for shown in (table.output, lines.output):
        assert key not in shown
        assert sha256(key.encode()).hexdigest() not in shown
    command("remove", "phone", "--file", str(path))
    assert [entry.name for entry in read_keys(path)] == ["other"]


@pytest.mark.who_may
@pytest.mark.parametrize("words", [["list"], ["add", "a", "--burst", "1", "--file", "x.json"]])
def test_the_command_names_missing_arguments(words):
    with pytest.raises(UsageError, match=r"SERFER_KEYS_FILE|--per-minute"):
        raise command(*words).exception


@pytest.mark.who_may
def test_a_key_without_scopes_may_classify_alone_and_for_every_application(path, clock):
    key = add_key(path, "phone", None)
    client = KeyRing(path, clock).check(key)
    for application in (None, "faces", "pets"):
        require(client, Scope.CLASSIFY, application)
        for scope in (Scope.PROMOTE, Scope.DELETE):
            problem = refused(403, require, client, scope, application)
            assert problem.slug == "scope"
            assert f"lacks the scope '{scope}': it has classify" in problem.detail


@pytest.mark.who_may
def test_a_key_is_good_for_its_scopes_and_applications_alone(path, clock):
    scopes = (Scope.OPERATE, Scope.PROMOTE)
    key = add_key(path, "trainer", None, scopes=scopes, applications={"faces": None})
    client = KeyRing(path, clock).check(key)
    for scope in Scope:
        if scope in scopes:
            require(client, scope, "faces")
            assert "is for faces alone" in refused(403, require, client, scope, "pets").detail
            assert "names no application" in refused(403, require, client, scope, None).detail
        else:
            refused(403, require, client, scope, "faces")


@pytest.mark.who_may
def test_without_keys_everything_is_allowed():
    require(None, Scope.DELETE, "faces")
    require_scope(None, Scope.DELETE)


@pytest.mark.who_may
def test_each_application_of_a_key_has_a_quota_of_its_own(path, clock):
    key = add_key(path, "phone", None, applications={"faces": 2, "pets": 1, "all": None})
    ring = KeyRing(path, clock)
    for application in ("faces", "faces", "pets", *["all"] * 9):
        require(ring.check(key), Scope.CLASSIFY, application)
    problem = refused(429, require, ring.check(key), Scope.CLASSIFY, "faces")
    assert (problem.slug, problem.headers) == ("quota", {"Retry-After": "30"})
    assert "2 requests a minute for faces" in problem.detail
    refused(429, require, ring.check(key), Scope.CLASSIFY, "pets")
    refused(403, require, ring.check(key), Scope.DELETE, "faces")  # what is refused is not counted
    add_key(path, "other", None)
    clock.now += 30
    require(ring.check(key), Scope.CLASSIFY, "faces")
    refused(429, require, ring.check(key), Scope.CLASSIFY, "faces")


@pytest.mark.who_may
def test_scopes_and_applications_change_without_a_restart(path, clock):
    key = add_key(path, "phone", None)
    ring = KeyRing(path, clock)
    content = json.loads(path.read_bytes())
    content["keys"][0] |= {"scopes": ["promote"], "applications": {"faces": None}}
    path.write_text(json.dumps(content))
    clock.now += 1
    client = ring.check(key)
    require(client, Scope.PROMOTE, "faces")
    refused(403, require, client, Scope.CLASSIFY, "faces")


@pytest.mark.who_may
@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"scopes": []}, "scopes"),
        ({"scopes": ["admin"]}, "scopes.0"),
        ({"scopes": ["classify"] * (len(Scope) + 1)}, "scopes"),
        ({"applications": {}}, "applications"),
        ({"applications": {"a/b": None}}, "applications"),
        ({"applications": {"faces": 0}}, "applications.faces"),
        ({"applications": {f"a{number}": None for number in range(201)}}, "applications"),
        ({"applications": ["faces"]}, "applications"),
    ],
)
def test_wrong_scopes_and_applications_are_refused_with_the_place(path, clock, fields, word):
    path.write_text(json.dumps({"keys": [{"name": "a", "sha256": DIGEST, **fields}]}))
    with pytest.raises(InputError, match=re.escape(f"keys.0.{word}")):
        KeyRing(path, clock)


@pytest.mark.who_may
def test_the_command_adds_scopes_and_applications_and_lists_them(path, clock):
    words = ["--scope", "classify", "--scope", "promote", "--app", "faces=60", "--app", "pets", "--file", str(path)]
    key = command("add", "ops", *words).stdout.strip()
    client = KeyRing(path, clock).check(key)
    assert client.scopes == {Scope.CLASSIFY, Scope.PROMOTE}
    assert client.applications == (("faces", 60), ("pets", None))
    assert "classify,promote faces=60 pets" in command("list", "--file", str(path)).stdout
    for wrong in ("faces=", "faces=x", "faces=-1"):
        with pytest.raises(UsageError, match="write NAME=N"):
            raise command("add", "b", "--app", wrong, "--file", str(path)).exception
    with pytest.raises(InputError, match="applications"):
        raise command("add", "b", "--app", "a b", "--file", str(path)).exception
    assert [entry.name for entry in read_keys(path)] == ["ops"]
