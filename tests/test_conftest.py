import os
import signal
import socket
import subprocess
from types import SimpleNamespace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests import left_behind
from tests.conftest import pytest_collection_modifyitems


@settings(max_examples=7)
@given(st.none())
def about(_):
    """Stand for a property test."""


@given(st.none())
def usual(_):
    """Stand for one without a number of its own."""


def test_examples_are_multiplied_once_however_many_items_a_property_has(monkeypatch):
    monkeypatch.setenv("TEST_EXAMPLES", "2")
    pytest_collection_modifyitems([SimpleNamespace(obj=each) for each in (about, usual)] * 3)
    assert about._hypothesis_internal_use_settings.max_examples == 14
    assert usual._hypothesis_internal_use_settings.max_examples == 200


def test_a_process_that_is_left_behind_is_named_by_its_command_line():
    before = left_behind.present()
    with subprocess.Popen(["/bin/sleep", "3600"]) as process:
        assert left_behind.complaint(before, patience=0) == f"process {process.pid} (/bin/sleep 3600)"
        assert left_behind.complaint(before | left_behind.present(), patience=0) == ""
        process.kill()
        assert left_behind.complaint(before) == "", "it ends in a moment"


def test_a_process_whose_parent_has_ended_is_found_too():
    before = left_behind.present()
    command = "/bin/sleep 3600 >/dev/null 2>&1 & echo $!"
    run = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, check=True)
    try:
        assert left_behind.complaint(before, patience=0) == f"process {int(run.stdout)} (/bin/sleep 3600)"
    finally:
        os.kill(int(run.stdout), signal.SIGKILL)


def test_a_socket_that_listens_is_named_by_its_address():
    before = left_behind.present()
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert left_behind.complaint(before) == f"a socket that listens at {server.getsockname()}"
    assert left_behind.complaint(before) == ""
