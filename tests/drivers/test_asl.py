"""Compiled state machines: sound to those who know the language, and of the same mind as the run machine."""

import itertools
import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serfer.core.errors import InputError, PlanError, UsageError
from serfer.core.keys import StoreCounts, query_id
from serfer.core.run_machine import (
    Failure,
    FailureKind,
    Finish,
    Invoke,
    Retry,
    Run,
    TaskDone,
    TaskFailed,
    TimePassed,
    WakeAt,
)
from serfer.core.wire import Report, decode_clean_up, decode_task, encode_report
from serfer.drivers.stepfunctions.asl import (
    AT_ONCE,
    MOST_DEFINITION_BYTES,
    MOST_STATE_BYTES,
    THROTTLED,
    compile_plan,
    local_functions,
)
from serfer.drivers.stepfunctions.result import parse_output
from tests.drivers.asl_interpreter import Machine, StateError
from tests.drivers.plans import wide_plan
from tests.sam.offered import findings

VALIDATOR = Path(__file__).parents[1] / "asl" / "node_modules" / ".bin" / "asl-validator"
QUERY = query_id(one_slot=True)
INPUT = {"query": QUERY, "batch": 3, "ttl": 180.5, "dtype": "float32"}
SHAPES = {
    "one task": ((1,), None),
    "tiles": ((4, 4, 1), None),
    "columns in functions of their own": ((4, 4, 16, 1), (1, 1, 4, 1)),
    "as many as run side by side": ((AT_ONCE, 1), None),
    "one more than run side by side": ((AT_ONCE + 1, 1), None),
    "many": ((200, 121, 90, 1), (1, 7, 90, 1)),
}
RETRY = Retry(attempts=3, unavailable_attempts=4)
BOOM, LOST, BUSY, GONE = "ValueError", "StoreUnavailableError", THROTTLED, "MissingKeyError"


def report(stage=0, tile=0, output=None):
    return Report(f"{stage:x}-{tile:x}", 0.0, 1.0, 2.0, 3.0, 6.0, 1, 1, StoreCounts(1, 2, 3, 4, 5), output)


def machine(plan, **chosen):
    return compile_plan(plan, local_functions(plan), **{"express": False, "retry": RETRY, **chosen})


def definitions():
    return [machine(wide_plan(*shape), express=number % 2 == 0) for number, shape in enumerate(SHAPES.values())]


@pytest.mark.slow
def test_cfn_lint_takes_every_definition_for_a_state_machine():
    machines = {
        f"Machine{number}": {
            "Type": "AWS::StepFunctions::StateMachine",
            "Properties": {"RoleArn": "arn:aws:iam::123456789012:role/x", "Definition": definition},
        }
        for number, definition in enumerate(definitions())
    }
    assert findings(json.dumps({"Resources": machines})) == []
    del machines["Machine0"]["Properties"]["Definition"]["States"]["stage-0"]["Resource"]
    [finding] = findings(json.dumps({"Resources": machines}))
    assert finding.startswith("E3601 ")


@pytest.mark.skipif(not shutil.which("node") or not VALIDATOR.exists(), reason="npm was not there for `make setup`")
def test_asl_validator_takes_every_definition(tmp_path):
    wrong = machine(wide_plan((2, 1)))
    wrong["States"]["stage-0"]["Next"] = "nowhere"
    paths = []
    for number, definition in enumerate([*definitions(), wrong]):
        paths.append(tmp_path / f"{number}.json")
        paths[-1].write_text(json.dumps(definition), encoding="utf-8")

    def check(*chosen):
        arguments = [word for path in chosen for word in ("--json-path", str(path))]
        return subprocess.run([VALIDATOR, *arguments], capture_output=True, text=True, check=False)

    right = check(*paths[:-1])
    assert right.returncode == 0, right.stdout + right.stderr
    assert check(paths[-1]).returncode == 1


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_text_is_always_the_same_and_small(shape):
    plan = wide_plan(*shape)
    texts = {json.dumps(machine(plan)) for _ in range(2)}
    assert len(texts) == 1
    assert len(texts.pop()) < MOST_DEFINITION_BYTES // 10


def test_function_names_may_be_template_placeholders():
    plan = wide_plan((6, 2, 1), (3, 1, 1))
    names = [[f"${{Function{stage}x{part}}}" for part in range(3 if stage == 0 else 1)] for stage in range(3)]
    workers = Workers(plan, names=names)
    workers.run()
    assert Counter(function for function, _, _ in workers.invoked) == {
        **dict.fromkeys(names[0], 2),
        names[1][0]: 2,
        names[2][0]: 1,
    }


def test_timeouts_are_whole_seconds_above_the_functions_own():
    definition = machine(wide_plan((2, 1)), task_timeout_s=10.5, timeout_s=120)
    task = definition["States"]["stage-0"]["ItemProcessor"]["States"]["stage-0-tile"]
    assert (definition["TimeoutSeconds"], task["TimeoutSeconds"]) == (120, 16)
    with pytest.raises(UsageError, match="300 s at most, not 301 s"):
        machine(wide_plan((1,)), express=True, timeout_s=301)


def test_as_many_tasks_as_reports_fit_and_no_more():
    """A state of more than 256 KiB ends an execution for good, and no Catch hears of it."""
    widest = Report("f" * 32, 0.1, 0.1, 0.1, 0.1, 0.1, 2**40, 2**40, StoreCounts(*[2**40] * 5), None, 1)
    most = next(count for count in itertools.count(500) if not fits((count + 1, 1)))
    workers = Workers(wide_plan((most, 1)), report=lambda _stage, _tile: widest)
    text = json.dumps(workers.run(), separators=(",", ":"))
    assert MOST_STATE_BYTES * 0.8 < len(text) < MOST_STATE_BYTES
    with pytest.raises(PlanError, match=rf"has {most + 2} tasks, .* keeps the reports of {most + 1}: .*--grids"):
        machine(wide_plan((most + 1, 1)))


def fits(tiles):
    try:
        machine(wide_plan(tiles))
    except PlanError:
        return False
    return True


class Workers:
    """Functions that fail as `script` has it: the names of errors of each (stage, tile), one after the other."""

    def __init__(self, plan, script=None, *, names=None, seed=0, report=report, clean_up=None):
        names = names or local_functions(plan)
        self.plan, self.script, self.report = plan, script or {}, report
        self.names, self.clean_up = names, clean_up
        self.machine = Machine(compile_plan(plan, names, express=True, retry=RETRY), self.invoke, seed)
        self.invoked, self.cleaned, self.tries = [], [], Counter()

    def run(self):
        return self.machine.run(dict(INPUT))

    def invoke(self, function, payload):
        if clean_up := decode_clean_up(payload):
            assert function == self.names[-1][0]
            self.cleaned.append(clean_up)
            if self.clean_up:
                raise StateError(self.clean_up, "no cause")
            return {}
        task = decode_task(payload)
        place = task.stage, task.tile
        assert (task.query, task.batch, task.ttl, task.plan) == (QUERY, 3, 180.5, self.plan.digest)
        assert (task.crop is not None) == (task.stage == 0)
        assert function == self.names[task.stage][self.plan.stages[task.stage].tiles[task.tile].function]
        tries = self.tries[place]
        self.tries[place] += 1
        self.invoked.append((function, *place))
        failures = self.script.get(place, ())
        if tries < len(failures):
            cause = json.dumps({"errorMessage": f"on {{}} purpose at {place}", "errorType": failures[tries]})
            raise StateError(failures[tries], cause)
        return encode_report(self.report(*place))


def run_machine(tiles, script):
    """Drive the run machine through the same; return what it invoked, in order, and its error."""
    run, invoked, now = Run(tiles, deadline=1e9, seed=1, retry=RETRY), [], 0.0
    actions, tries = run.start(now), Counter()
    while True:
        wakes = [action.time for action in actions if isinstance(action, WakeAt)]
        invokes = [action for action in actions if isinstance(action, Invoke)]
        for action in actions:
            if isinstance(action, Finish):
                return invoked, action.error
        actions = []
        for stage, tile, attempt in [(one.stage, one.tile, one.attempt) for one in invokes]:
            invoked.append((stage, tile))
            failures = script.get((stage, tile), ())
            if tries[stage, tile] < len(failures):
                name = failures[tries[stage, tile]]
                kind = FailureKind.THROTTLED if name == BUSY else FailureKind.FAILED_IN_CODE
                event = TaskFailed(stage, tile, attempt, Failure(kind, name, "on purpose"))
            else:
                event = TaskDone(stage, tile, attempt, report(stage, tile))
            tries[stage, tile] += 1
            actions += run.handle(event, now)
        if not invokes:
            now = min(time for time in wakes if time > now)
            actions += [WakeAt(time) for time in wakes if time > now]
            actions += run.handle(TimePassed(), now)
        else:
            actions += [WakeAt(time) for time in wakes]


@st.composite
def queries(draw):
    """Draw stages, their functions, and which attempts fail; one tile at most fails for good."""
    tiles = draw(st.lists(st.integers(1, 2 * AT_ONCE + 5), min_size=1, max_size=3))
    parts = [draw(st.integers(1, min(3, count))) for count in tiles]
    places = [(stage, tile) for stage, count in enumerate(tiles) for tile in range(count)]
    passing = st.lists(st.sampled_from([BOOM, LOST, BUSY]), max_size=5).filter(bearable)
    script = {place: tuple(draw(passing)) for place in draw(st.lists(st.sampled_from(places), max_size=6))}
    if draw(st.booleans()):
        last = draw(
            st.sampled_from([(BOOM,) * 3, (BUSY, LOST) * 2, (BOOM, BUSY, BOOM, LOST, BOOM), (GONE,), (BOOM, GONE)])
        )
        script[draw(st.sampled_from(places))] = last
    return tiles, parts, script


def bearable(failures):
    """Return whether a tile that fails like this is tried again every time."""
    refused = sum(name != BOOM for name in failures)
    return len(failures) - refused < RETRY.attempts and refused < RETRY.unavailable_attempts


@settings(deadline=None, max_examples=60)
@given(query=queries(), seed=st.integers(0, 1000))
def test_it_forks_joins_retries_and_fails_as_the_run_machine_does(query, seed):
    tiles, parts, script = query
    workers = Workers(wide_plan(tiles, parts), script, seed=seed)
    expected, error = run_machine(tiles, script)
    try:
        output, failure = workers.run(), None
    except StateError as end:
        output, failure = None, end
    invoked = [place for _, *place in workers.invoked]
    stages = [stage for stage, _ in itertools.groupby(stage for stage, _ in invoked)]
    assert stages == list(range(len(stages))), "a stage began before the one before it had ended, or again after it"
    assert stages[-1] == expected[-1][0]
    assert workers.machine.names[-1] == ("clean-up" if failure is None else "failed")
    assert [(one.query, one.plan, one.keep_answer) for one in workers.cleaned] == [
        (QUERY, workers.plan.digest, failure is None)
    ]
    if error is None:
        assert failure is None
        assert Counter(map(tuple, invoked)) == Counter(expected)
        check_output(output, tiles, script)
    else:
        check_failure(failure, error, script, Counter(map(tuple, invoked)), Counter(expected))


def check_output(output, tiles, script):
    parsed = parse_output(json.dumps(output), tiles)
    assert [[entry.report for entry in entries] for entries in parsed.stages] == [
        [report(stage, tile) for tile in range(count)] for stage, count in enumerate(tiles)
    ]
    assert [[entry.retries for entry in entries] for entries in parsed.stages] == [
        [len(script.get((stage, tile), ())) for tile in range(count)] for stage, count in enumerate(tiles)
    ]
    times = [[entry.at for entry in entries] for entries in parsed.stages]
    assert all(max(before) < min(later) for before, later in itertools.pairwise([*times, [parsed.ended]]))
    assert parsed.cleaned


def check_failure(failure, error, script, invoked, expected):
    place = next(place for place, names in script.items() if not bearable(names) or GONE in names)
    assert failure.name == script[place][-1]
    assert failure.cause.startswith("stage {}, tile {}: {{".format(*place))
    assert invoked[place] == expected[place] == len(script[place])
    assert f"stage {place[0]}, tile {place[1]}" in str(error)
    known = json.loads(json.loads(failure.cause.partition(": ")[2])["Cause"])
    assert known["errorMessage"] == f"on {{}} purpose at {place}"


@pytest.mark.parametrize("script", [{}, {(1, 0): (GONE,)}, {(0, 1): (GONE,)}])
def test_an_answer_or_an_error_outlives_a_clean_up_that_fails(script):
    workers = Workers(wide_plan((3, 1)), script, clean_up=LOST)
    if script:
        with pytest.raises(StateError, match=GONE):
            workers.run()
    else:
        output = parse_output(json.dumps(workers.run()), (3, 1))
        assert (output.cleaned, output.ended) == (False, None)
    assert len(workers.cleaned) == RETRY.attempts


@pytest.mark.parametrize("count", [1, 2, AT_ONCE, AT_ONCE + 1, 2 * AT_ONCE, 2 * AT_ONCE + 1, 509])
def test_every_tile_runs_once_however_deep_the_maps_are(count):
    workers = Workers(wide_plan((count, 1)), seed=count)
    workers.run()
    assert sorted(workers.tries) == [*((0, tile) for tile in range(count)), (1, 0)]
    assert set(workers.tries.values()) == {1}


def test_waits_before_retries_grow_up_to_their_limit():
    workers = Workers(wide_plan((1,)), {(0, 0): (BOOM, BUSY, BOOM, BUSY, BUSY)})
    workers.run()
    assert workers.machine.waits == [1, 1, 2, 2, 2]


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda output: output["stages"].pop("s1"), "not one of this plan"),
        (lambda output: output["stages"].update(s1=[]), "0 tiles of stage 1, not 1"),
        (lambda output: output["stages"]["s0"].pop(), "1 tiles of stage 0, not 2"),
        (lambda output: output["stages"]["s0"].insert(0, 7), "3 tiles of stage 0"),
        (lambda output: output["stages"]["s0"][1].update(report=None), "stage 0, tile 1: .* without a report"),
        (lambda output: output["stages"]["s0"][1].update(report="!"), "cannot be decoded"),
        (lambda output: output["stages"]["s0"][1].update(at="yesterday"), "invalid time"),
        (lambda output: output["stages"]["s0"][1].update(at=[7]), "invalid time"),
        (lambda output: output["stages"]["s0"][1].update(retries="no"), "without a report"),
        (lambda output: output.update(junk="x" * MOST_STATE_BYTES), "not one of this plan"),
    ],
)
def test_an_output_that_no_machine_of_ours_ends_with_is_refused(change, complaint):
    output = Workers(wide_plan((2, 1))).run()
    change(output)
    with pytest.raises(InputError, match=complaint):
        parse_output(json.dumps(output), (2, 1))


@pytest.mark.parametrize("text", ["", "{", "7", "[]", "[" * 100_000, '{"stages": 7}'])
def test_an_output_that_is_not_an_object_is_refused(text):
    with pytest.raises(InputError, match="not one of this plan"):
        parse_output(text, (2, 1))


def test_a_service_that_knows_no_times_is_believed_the_rest():
    output = Workers(wide_plan((2, 1))).run()
    for entry in output["stages"]["s0"]:
        entry.update(at=None, retries=None)
    parsed = parse_output(json.dumps(output), (2, 1))
    assert [(entry.at, entry.retries) for entry in parsed.stages[0]] == [(None, 0)] * 2
