"""`serfer bench instance`: every query ends once, answers are compared, and a row says where it comes from."""

import json

import httpx
import pytest

from serfer.core.errors import UnavailableError
from serfer.instance.network import Hardware
from serfer_bench.core import processes as child
from serfer_bench.serving import turns
from serfer_bench.serving.instance import Workload, measure, systems
from tests.e2e.small import split_small


def test_bursts_and_steady_loads_at_an_instance_that_serves_already(serving, directory):
    url, engine = serving
    rows = measure(directory, {}, Workload(bursts=(5,), rates=(200.0,), seconds=0.05, rounds=2), url=url)
    assert [(row.system, row.load, row.queries, row.answered, row.failed) for row in rows] == [
        ("given", "burst of 5", 10, 10, 0),
        ("given", "200/s", 20, 20, 0),
    ]
    for row in rows:
        assert 0 < row.p50_ms <= row.p95_ms <= row.p99_ms
        assert row.images_per_s > 0
        assert 1 <= row.batch <= 8
        assert row.shown["load"] == row.load
    assert engine.counts.images == 16 + 30  # 16 warm up


def test_answers_of_another_network_are_failures(serving, tmp_path):
    url, _ = serving
    other = split_small(tmp_path, seed=1, grids=[(1, 1)])
    [row] = measure(other, {}, Workload(bursts=(3,), rounds=1), url=url)
    assert (row.answered, row.failed) == (0, 3)
    [row] = measure(other, {}, Workload(bursts=(3,), rounds=1, deadline_ms=1, precision="fp16"), url=url)
    assert (row.answered, row.failed + row.refused + row.late) == (0, 3)


def test_instances_are_compared_by_their_options():
    assert systems(None, None) == {"batched": [], "single": ["--max-batch", "1"]}
    assert systems(4, 5.0)["window"] == ["--max-batch", "4", "--window-ms", "5.0"]


def test_an_instance_start_failure_is_reported(directory, capfd):
    with pytest.raises(UnavailableError, match="exit code 2"), child.serving("no-such-command", directory, []):
        pytest.fail("it started")
    assert "no-such-command" in capfd.readouterr().err


def test_an_instance_is_started_with_its_options_and_ended(directory):
    with child.serving("instance", directory, ["--max-batch", "1", "--set", "threads=1"]) as ready:
        assert (ready["max_batch"], ready["device"]) == (1, "cpu")
    with pytest.raises(httpx.ConnectError):
        httpx.get(ready["url"])


def test_the_command_prints_rows_with_their_stamp(serfer_, serving, directory):
    arguments = ("--plan", directory, "--burst", 4, "--rounds", 1)
    result = serfer_("bench", "instance", *arguments, "--url", f"{serving[0]}/", "--json")
    assert (result.code, result.err) == (0, "")
    [row] = [json.loads(line) for line in result.lines]
    assert (row["system"], row["load"], row["answered"]) == ("given", "burst of 4", 4)
    assert row["stamp"]["command"].startswith("serfer bench instance")
    assert row["stamp"]["machine"]["processors"] >= 1


def test_networks_in_turns_and_at_once_get_the_same_queries_each_of_which_ends_once(directory):
    models = {"one": directory, "two": directory}
    rows = turns.measure(models, Hardware("cpu", threads=1, spin=False), 4, [0.3], 0.2, 2)
    assert [(row.system, row.load, row.model) for row in rows] == [
        (system, "30%", model) for system in ("in turns", "at once") for model in ("one", "two")
    ]
    for row, other in zip(rows[:2], rows[2:], strict=True):
        assert row.queries == other.queries > 0
        assert row.failed == other.failed == 0
    for row in rows:
        assert row.answered + row.refused + row.late == row.queries
        assert 0 <= row.p50_ms <= row.p95_ms
        assert row.interference > 0
        assert row.shown["model"] == row.model


def test_turns_of_one_network_are_refused(serfer_here, directory):
    serfer_here("bench", "instance", "turns", "--plan", directory).complains(2, "two networks or more")
