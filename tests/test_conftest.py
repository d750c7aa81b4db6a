import os
import signal
import socket
import subprocess
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import left_behind
from tests.conftest import set_examples


@settings(max_examples=7)
@given(st.none())
def about(_):
    """Stand for a property test."""


@given(st.none())
def usual(_):
    """Stand for one without a number of its own."""


def items_of(*functions, markers=()):
    marker = dict.fromkeys(markers, True).get
    return [SimpleNamespace(obj=function, get_closest_marker=marker) for function in functions] * 3


def test_examples_are_multiplied_once_however_many_items_a_property_has(monkeypatch):
    monkeypatch.setattr(about, "_hypothesis_internal_use_settings", settings(max_examples=7))
    monkeypatch.setattr(usual, "_hypothesis_internal_use_settings", None)
    monkeypatch.setenv("TEST_EXAMPLES", "2")
    set_examples(items_of(about, usual))
    assert about._hypothesis_internal_use_settings.max_examples == 14
    assert usual._hypothesis_internal_use_settings.max_examples == 200


@pytest.mark.parametrize(("markers", "examples"), [((), 7), (("slow",), 21)])
def test_a_commit_draws_a_third_of_the_examples_that_a_property_asks_for(monkeypatch, markers, examples):
    monkeypatch.setattr(about, "_hypothesis_internal_use_settings", settings(max_examples=21))
    monkeypatch.delenv("TEST_EXAMPLES", raising=False)
    set_examples(items_of(about, markers=markers))
    assert about._hypothesis_internal_use_settings.max_examples == examples


def test_a_process_that_is_left_behind_is_named_by_its_command_line():
    before = left_behind.present()
    orphan = "/bin/sleep 3600 >/dev/null 2>&1 & echo $!"  # its parent has ended
    run = subprocess.run(["/bin/sh", "-c", orphan], capture_output=True, text=True, check=True)
    try:
        assert left_behind.complaint(before, patience=0) == f"process {int(run.stdout)} (/bin/sleep 3600)"
    finally:
        os.kill(int(run.stdout), signal.SIGKILL)
    with subprocess.Popen(["/bin/sleep", "3600"]) as process:
        assert left_behind.complaint(before, patience=0) == f"process {process.pid} (/bin/sleep 3600)"
        assert left_behind.complaint(before | left_behind.present(), patience=0) == ""
        process.kill()
        assert left_behind.complaint(before) == "", "it ends in a moment"


def test_a_socket_that_listens_is_named_by_its_address():
    before = left_behind.present()
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert left_behind.complaint(before) == f"a socket that listens at {server.getsockname()}"
    assert left_behind.complaint(before) == ""
