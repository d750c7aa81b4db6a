"""Reports and traces of gangs, held against what the local Lambda service has measured of their invocations."""

import json
import os
import re

import pytest

import serfer
from serfer.core.costs.aws import shipped_aws
from serfer.local.lambda_.environment import Environment
from serfer.pipeline.trace import trace_events
from tests.e2e.gangs import images, split_gang

BILLED = re.compile(r"Billed Duration: (\d+) ms\tMemory Size: (\d+) MB")


@pytest.fixture(scope="module")
def gang(tmp_path_factory):
    return split_gang(tmp_path_factory.mktemp("gang"))


@pytest.fixture
def billed(monkeypatch):
    """Return the REPORT lines of all invocations so far, as (billed ms, MB)."""
    lines, settle = [], Environment._settle

    def recorded(self, *given):
        if self._invocation:
            log = self._report(self._invocation).decode()
            lines.append(tuple(map(int, BILLED.search(log).groups())))
        settle(self, *given)

    monkeypatch.setattr(Environment, "_settle", recorded)
    return lines


def test_a_gangs_report_is_what_lambda_bills_for_its_members(tmp_path, settings, redis, billed):
    directory, facts = split_gang(tmp_path, grids=("3x1", "3x1", "3x1", "1")), shipped_aws().functions
    shares = []
    with serfer.open(directory, store=redis, workers="local", settings=settings) as pipeline:
        for cold in (3, 0, 0):
            del billed[:]
            pipeline.run(images(pipeline.plan))
            report = pipeline.last_report
            assert len(billed) == 3
            assert [stage.cold for stage in report.stages] == [cold, 0, 0, 0]
            requests = 3 * facts.price_request
            lambdas = sum(ms / 1000 * mb / 1024 for ms, mb in billed) * facts.price_gb_second
            more_s = 0.001 + cold / os.sysconf("SC_CLK_TCK")  # a process knows when it was started to a tick
            more = sum(mb / 1024 for _, mb in billed) / 3 * more_s * facts.price_gb_second
            assert requests < report.cost_usd <= requests + lambdas + more
            shares.append((report.cost_usd - requests) / lambdas)
        assert max(shares) >= 0.5  # the runtime's own time is not seen, which is more of it on a busy machine
        assert [stage.gang for stage in report.stages] == [0, 0, 0, 0]
        assert report.stages[0].bytes_exchanged == 0 < report.stages[1].bytes_exchanged
        assert 0 < report.wait_gb_s < lambdas / facts.price_gb_second
        events = trace_events([("query", pipeline.last)])
    assert json.loads(json.dumps(events))
    spans = [event for event in events if event["ph"] == "X"]
    parts = [span for span in spans if span["name"].startswith("stage-") and "serfer.tile" in span["args"]]
    assert (len([span for span in spans if span["name"].startswith("task ")]), len(parts)) == (3, 3 * 3 + 1)


def test_commands_show_a_gang(gang, serfer_here, examples):
    where = ("--plan", gang, "--workers", "inprocess", "--store", "memory://")
    shown = serfer_here("classify", *where, examples / "rocket.jpg")
    assert shown.code == 0
    [head] = [line for line in shown.lines if "exchanged" in line]
    assert head.split()[-3:] == ["gang", "exchanged", "waited"]
    rows = [line.split() for line in shown.lines if line.split()[:1] in (["stage-0"], ["stage-3"])]
    assert [row.count("stage-0") for row in rows] == [2, 1]
    assert "for one another" in shown.out
    verified = serfer_here("verify", gang, "--workers", "inprocess", "--store", "memory://", "--json")
    assert verified.code == 0, verified.err


def test_a_gangs_function_is_warmed_once_for_all_of_its_members(gang, settings, redis):
    with serfer.open(gang, store=redis, workers="local", settings=settings) as pipeline:
        [warmth] = pipeline.warm(queries=2, hold_s=3.0)
        assert (warmth.asked, warmth.warm, warmth.problem) == (4, 4, None)
        pipeline.run(images(pipeline.plan))
        assert [stage.cold for stage in pipeline.last_report.stages] == [0, 0, 0, 0]
