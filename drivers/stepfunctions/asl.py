"""A plan as a state machine in the Amazon States Language: the stages of the paper, taken in order by Step Functions.

    ┌ tiles ┐   ┌ stage-0 (Map) ─────┐   ┌ stage-1 (Task) ┐         ┌ clean-up ┐
 ──▶│ Pass  │──▶│ tile │ tile │ tile │──▶│ its only tile  │──▶ ... ─▶│  Task    │──▶ succeeded
    └───────┘   └─────────┬──────────┘   └───────┬────────┘         └──────────┘
                          ▼ an error that was retried in vain
                clean-up-after-failure ──▶ failed, with that error's name; its cause says which stage and tile

An execution's input is `{"query": id, "batch": N, "ttl": seconds, "dtype": "uint8" | "float32"}`; the query's crops and
what every tile writes lie in the store. Only names and reports travel, since a state of more than 256 KiB ends an
execution for good. What it ends with is its input and, for each stage under `stages`, the report of every tile with the
time at which the tile was entered and the number of its retries.

JSONPath, not JSONata, and nothing that Express workflows know and Standard ones do not: the same text serves both.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from serfer.core.errors import InputError, NotFiniteError, PlanError, StoreUnavailableError, UsageError
from serfer.core.keys import StoreCounts
from serfer.core.plan import Plan, Stage
from serfer.core.plan.sized_plan import check_one_size
from serfer.core.run_machine import LOST, Retry
from serfer.core.wire import Report, encode_report

MOST_STATE_BYTES = 262_144
MOST_DEFINITION_BYTES = 1_048_576
EXPRESS_LIMIT_S = 300
AT_ONCE = 40  # iterations of an inline Map that run side by side
TASK_MARGIN_S = 5  # a function's own timeout comes first, as it says more
THROTTLED = "Lambda.TooManyRequestsException"
_CLEAN_UP, _CLEAN_UP_AFTER_FAILURE, _FAILED, _DONE = "clean-up", "clean-up-after-failure", "failed", "answered"
_INPUTS = ("query", "batch", "ttl", "dtype")
_INVOKE = "arn:aws:states:::lambda:invoke"
_STAMP = "2026-11-21T00:00:00.000Z"
_ENVELOPE_BYTES = 2048  # the input, the names of the stages, and what surrounds them

State = dict[str, Any]


@dataclass(frozen=True)
class _Writer:
    plan: Plan
    functions: Sequence[Sequence[str]]
    retry: Retry
    timeout_s: int


def compile_plan(
    plan: Plan,
    functions: Sequence[Sequence[str]],
    *,
    express: bool,
    retry: Retry | None = None,
    task_timeout_s: float = 60.0,
    timeout_s: int = EXPRESS_LIMIT_S,
) -> State:
    """Return the state machine of a plan, whose stage k's function p goes by `functions[k][p]`, an ARN or a name.

    A task may take `task_timeout_s`, a whole execution `timeout_s`. Retries are those of the run machine as far as the
    language goes: it waits whole seconds, at least one, and draws each wait from zero up. The same arguments give the
    same text. Raises PlanError where the reports of all tasks cannot be kept, UsageError for an Express machine of more
    than five minutes.
    """
    if express and timeout_s > EXPRESS_LIMIT_S:
        raise UsageError(f"an Express state machine runs {EXPRESS_LIMIT_S} s at most, not {timeout_s} s")
    check_one_size(plan, "state machines")
    _check_sizes(plan, functions)
    writer = _Writer(plan, functions, retry or Retry(), math.ceil(task_timeout_s) + TASK_MARGIN_S)
    lists = {
        f"s{number}": _map_items(stage, functions[number]) if stage.grid.tiles > 1 else None
        for number, stage in enumerate(plan.stages)
    }
    tiles = {"Type": "Pass", "Result": lists, "ResultPath": "$.stages", "Next": stage_name(0)}
    machine = {
        "Comment": f"serfer plan {plan.digest}",
        "StartAt": "tiles",
        "TimeoutSeconds": timeout_s,
        "States": {"tiles": tiles, **dict(_stage_states(writer)), **_end_states(writer)},
    }
    size = len(json.dumps(machine))
    if size > MOST_DEFINITION_BYTES:
        raise PlanError(f"the state machine has {size:,} bytes, {MOST_DEFINITION_BYTES:,} are allowed: {_ADVICE}")
    return machine


def local_functions(plan: Plan) -> list[list[str]]:
    """Return the functions' own names, for services in which they have no other."""
    return [
        [plan.function(number, part) for part in range(len(stage.functions))]
        for number, stage in enumerate(plan.stages)
    ]


def stage_name(number: int) -> str:
    return f"stage-{number}"


_ADVICE = "split the model into fewer tiles (--grids), or use --engine push"


def _check_sizes(plan: Plan, functions: Sequence[Sequence[str]]) -> None:
    entry, total = _largest_entry_bytes(), _ENVELOPE_BYTES
    for number, stage in enumerate(plan.stages):
        items = json.dumps(_map_items(stage, functions[number])) if stage.grid.tiles > 1 else ""
        total += max(len(items), entry * stage.grid.tiles)
    if total > MOST_STATE_BYTES:
        most = (MOST_STATE_BYTES - _ENVELOPE_BYTES) // entry
        raise PlanError(f"the plan has {plan.tasks} tasks, a state machine keeps the reports of {most}: {_ADVICE}")


def _largest_entry_bytes() -> int:
    number, most = 1e300, 2**63
    counts = StoreCounts(*[most] * 5)
    report = Report("0" * 32, number, number, number, number, number, most, most, counts, None, most)
    return len(json.dumps({**encode_report(report), "at": _STAMP, "retries": 10})) + 2


def _map_items(stage: Stage, functions: Sequence[str]) -> list[Any]:
    numbers = range(stage.grid.tiles)
    items: list[Any] = [*numbers]
    if len(functions) > 1:
        items = [{"tile": number, "function": functions[stage.tiles[number].function]} for number in numbers]
    if len(items) <= AT_ONCE:
        return items
    groups = -(-len(items) // AT_ONCE)
    cuts = [len(items) * part // groups for part in range(groups + 1)]
    return [items[start:end] for start, end in itertools.pairwise(cuts)]


def _stage_states(writer: _Writer) -> Iterator[tuple[str, State]]:
    last = len(writer.plan.stages) - 1
    for number, stage in enumerate(writer.plan.stages):
        name, after = stage_name(number), stage_name(number + 1) if number < last else _CLEAN_UP
        place = {"ResultPath": f"$.stages.s{number}", "Next": after}
        if stage.grid.tiles > 1:
            yield name, {**_map_state(writer, number, stage), **place, "Catch": _catch(_CLEAN_UP_AFTER_FAILURE)}
            continue
        yield (
            name,
            {**_task(writer, number, writer.functions[number][0], 0), **place, "Catch": _catch(f"{name}-failed")},
        )
        cause = f"States.Format('stage {number}, tile 0: {{}}', States.JsonToString($.error))"
        known = {"Error.$": "$.error.Error", "Cause.$": cause}
        yield (
            f"{name}-failed",
            {"Type": "Pass", "Parameters": known, "ResultPath": "$.error", "Next": _CLEAN_UP_AFTER_FAILURE},
        )


def _map_state(writer: _Writer, number: int, stage: Stage) -> State:
    several = len(writer.functions[number]) > 1
    item = {"tile": "$$.Map.Item.Value"}
    if several:
        item = {"tile": "$$.Map.Item.Value.tile", "function": "$$.Map.Item.Value.function"}
    name, source = stage_name(number), f"$.stages.s{number}"
    states = _tile(writer, number, "$.function" if several else writer.functions[number][0])
    if stage.grid.tiles <= AT_ONCE:
        return _map_over(source, item, f"{name}-tile", states)
    inner = {**_map_over("$.tiles", item, f"{name}-tile", states), "End": True}
    return _map_over(source, {"tiles": "$$.Map.Item.Value"}, f"{name}-group", {f"{name}-group": inner})


def _map_over(source: str, item: dict[str, str], first: str, states: dict[str, State]) -> State:
    inputs = {f"{name}.$": f"$.{name}" for name in _INPUTS}
    return {
        "Type": "Map",
        "ItemsPath": source,
        "MaxConcurrency": AT_ONCE,
        "ItemSelector": {**inputs, **{f"{name}.$": path for name, path in item.items()}},
        "ItemProcessor": {"ProcessorConfig": {"Mode": "INLINE"}, "StartAt": first, "States": states},
    }


def _tile(writer: _Writer, number: int, function: str) -> dict[str, State]:
    name = f"{stage_name(number)}-tile"
    cause = f"States.Format('stage {number}, tile {{}}: {{}}', $.tile, States.JsonToString($.error))"
    return {
        name: {**_task(writer, number, function, "$.tile"), "End": True, "Catch": _catch(f"{name}-failed")},
        f"{name}-failed": {"Type": "Fail", "ErrorPath": "$.error.Error", "CausePath": cause},
    }


def _task(writer: _Writer, number: int, function: str, tile: int | str) -> State:
    step = {
        "plan": writer.plan.digest,
        "stage": number,
        **_valued("tile", tile),
        **{f"{name}.$": f"$.{name}" for name in _INPUTS},
    }
    kept = {"report.$": "$.Payload.report", "at.$": "$$.State.EnteredTime", "retries.$": "$$.State.RetryCount"}
    return {**_invoke(writer, function, {"step": step}), "ResultSelector": kept}


def _valued(name: str, value: int | str) -> State:
    path = isinstance(value, str) and value.startswith("$.")
    return {f"{name}.$" if path else name: value}


def _invoke(writer: _Writer, function: str, payload: State) -> State:
    return {
        "Type": "Task",
        "Resource": _INVOKE,
        "Parameters": {**_valued("FunctionName", function), "Payload": payload},
        "TimeoutSeconds": writer.timeout_s,
        "Retry": _retriers(writer.retry),
    }


def _retriers(retry: Retry) -> list[State]:
    """The run machine's; nothing where the store has lost what a tile reads: the driver restarts the query."""
    first = math.ceil(retry.backoff.base)
    waits = {
        "IntervalSeconds": first,
        "BackoffRate": 2.0,
        "MaxDelaySeconds": max(first + 1, math.ceil(retry.backoff.longest)),
        "JitterStrategy": "FULL",
    }
    return [
        {"ErrorEquals": [kind.__name__ for kind in (*LOST, NotFiniteError, InputError, PlanError)], "MaxAttempts": 0},
        {
            "ErrorEquals": [THROTTLED, StoreUnavailableError.__name__],
            "MaxAttempts": retry.unavailable_attempts - 1,
            **waits,
        },
        {"ErrorEquals": ["States.ALL"], "MaxAttempts": retry.attempts - 1, **waits},
    ]


def _catch(target: str) -> list[State]:
    return [{"ErrorEquals": ["States.ALL"], "ResultPath": "$.error", "Next": target}]


def _end_states(writer: _Writer) -> dict[str, State]:
    kept = {"ResultSelector": {"at.$": "$$.State.EnteredTime"}, "ResultPath": "$.ended", "End": True}
    uncleaned = {"ErrorEquals": ["States.ALL"], "ResultPath": "$.uncleaned"}
    return {
        _CLEAN_UP: {**_cleaning(writer, keep_answer=True), **kept, "Catch": [{**uncleaned, "Next": _DONE}]},
        _DONE: {"Type": "Succeed"},
        _CLEAN_UP_AFTER_FAILURE: {
            **_cleaning(writer, keep_answer=False),
            "ResultPath": None,
            "Next": _FAILED,
            "Catch": [{**uncleaned, "Next": _FAILED}],
        },
        _FAILED: {"Type": "Fail", "ErrorPath": "$.error.Error", "CausePath": "$.error.Cause"},
    }


def _cleaning(writer: _Writer, *, keep_answer: bool) -> State:
    request = {"plan": writer.plan.digest, "query.$": "$.query", "keep_answer": keep_answer}
    hasty = replace(writer, retry=replace(writer.retry, unavailable_attempts=writer.retry.attempts))
    return _invoke(hasty, writer.functions[-1][0], {"clean_up": request})
