"""A recording is written beside the decisions: it never delays one, never outgrows its bound, and keeps older files."""

import json
import stat
from io import FileIO
from threading import Event

import pytest

from serfer.control.policies import make_policy
from serfer.control.policy import on_demand
from serfer.control.recording import Decision, read_recording
from serfer.core.errors import InputError
from serfer.fleet import recorder as recorder_module
from serfer.fleet.recorder import Recorder
from tests import bugs
from tests.control.worlds import scenario, seen

WORLD = scenario()
PLAN = on_demand(WORLD.instance, 1, "a test")


def recording(path, most_bytes=10_000_000):
    recorder = Recorder(path, most_bytes)
    recorder.begin(make_policy("break-even", WORLD), WORLD, fresh=True)
    return recorder


@pytest.mark.who_may
def test_lines_are_whole_and_for_their_owner_alone(tmp_path):
    recorder = recording(tmp_path / "r.jsonl")
    recorder.decided(seen(1.0, 2.0), PLAN)
    recorder.decided(seen(1.0, 3.0), None, ValueError("a secret"))
    recorder.close(60)
    header, events = read_recording(tmp_path / "r.jsonl")
    assert header.policy == "break-even"
    assert [*events] == [Decision(seen(1.0, 2.0), PLAN), Decision(seen(1.0, 3.0), None, "ValueError")]
    assert stat.S_IMODE((tmp_path / "r.jsonl").stat().st_mode) == 0o600
    assert "secret" not in (tmp_path / "r.jsonl").read_text()


class Forgetful:
    """A policy whose snapshot fails."""

    name = "forgetful"

    def snapshot(self):
        raise ValueError("nothing is known")

    def restore(self, snapshot):
        pass


def test_a_policy_whose_snapshot_fails_is_recorded_without_it(tmp_path, caplog):
    recorder = Recorder(tmp_path / "r.jsonl")
    recorder.begin(Forgetful(), WORLD, fresh=False)
    recorder.decided(seen(1.0, 2.0), PLAN)
    recorder.close(60)
    header, events = read_recording(tmp_path / "r.jsonl")
    assert (header.fresh, header.state) == (False, None)
    assert [*events] == [Decision(seen(1.0, 2.0), PLAN)]
    (message,) = [record.serfer["message"] for record in caplog.records if record.message == "record"]
    assert message.startswith("forgetful cannot tell what it had learnt before")


def test_earlier_recordings_are_kept(tmp_path):
    paths = []
    for _ in range(3):
        recorder = recording(tmp_path / "r.jsonl")
        paths.append(recorder.path.name)
        recorder.close(60)
    assert paths == ["r.jsonl", "r.1.jsonl", "r.2.jsonl"]


def test_a_recording_stops_at_its_bound_with_whole_lines_and_says_so(tmp_path, caplog):
    recorder = recording(tmp_path / "r.jsonl", 2000)
    for _ in range(100):
        recorder.decided(seen(1.0, 2.0), PLAN)
    recorder.close(60)
    text = (tmp_path / "r.jsonl").read_text()
    assert 1500 < len(text) <= 2000
    assert all(json.loads(line) for line in text.splitlines())
    messages = [record.serfer["message"] for record in caplog.records if record.message == "record"]
    assert len(messages) == 1
    assert "the recording stops: it has reached" in messages[0]


def test_a_disk_that_hangs_delays_nothing(tmp_path, monkeypatch, caplog):
    hangs, entered = Event(), Event()

    def hang(_fields):
        entered.set()
        assert hangs.wait(60)
        return b"{}"

    monkeypatch.setattr(recorder_module, "write_json", hang)
    monkeypatch.setattr(recorder_module, "_MAX_WAITING", 3)
    recorder = recording(tmp_path / "r.jsonl")
    assert entered.wait(60)
    for _ in range(10):
        recorder.decided(seen(1.0, 2.0), PLAN)
    assert [record.serfer["message"] for record in caplog.records] == [
        "the recording stops: the disk is too slow for it"
    ]
    hangs.set()
    recorder.close(60)


def test_a_bug_ends_the_recording_and_not_the_thread_and_is_logged_with_its_traceback(tmp_path, monkeypatch, caplog):
    recorder = recording(tmp_path / "r.jsonl")
    with monkeypatch.context() as broken:
        broken.setattr(recorder_module, "event_fields", bugs.buggy)
        recorder.decided(seen(1.0, 2.0), PLAN)
        recorder.decided(seen(1.0, 3.0), PLAN)
        recorder.close(60)
    assert bugs.logged(caplog.records) == 1
    said = [record.serfer["message"] for record in caplog.records]
    assert "the recording stops: a bug of ours; the log says more" in said
    header, events = read_recording(tmp_path / "r.jsonl")
    assert (header.policy, [*events]) == ("break-even", [])


def test_a_disk_that_is_full_ends_the_recording(tmp_path, monkeypatch, caplog):
    full = FileIO("/dev/full", "w")
    monkeypatch.setattr(recorder_module, "_new_file", lambda path: (path, full))
    recorder = recording(tmp_path / "r.jsonl")
    recorder.decided(seen(1.0, 2.0), PLAN)
    recorder.close(60)
    assert full.closed
    assert [record.serfer["message"] for record in caplog.records] == [
        "the recording stops: [Errno 28] No space left on device"
    ]


def test_a_place_that_cannot_be_written_is_refused_at_the_start(tmp_path):
    with pytest.raises(InputError, match="--record"):
        Recorder(tmp_path / "none" / "r.jsonl")
    with pytest.raises(InputError, match="--record"):
        Recorder(tmp_path / "a\0b")
